// A GPU, through the CUDA driver alone (cuda_driver.h): a CUDA runtime in the program, of whatever version, is neither
// needed nor called.
//
// The calling thread's current context, and with it its current device, is as before after every call; a thread that had
// none has none. Nothing touches the runtime's last error (cudaGetLastError): a failure is reported once, by the
// exception. Among the failures are those of the program's earlier work on the device, under their own codes.
// A device's primary context is made by the first call that needs one: the constructor does not.
//
// completion_hint: each event_record also queues a write of a rising number to a word of the stream in pinned host
// memory, if the device can (and the driver: of CUDA 11.7 and newer). Its cost is in bench/device_costs;
// completion_hints false does without.
// After a cudaDeviceReset every call throws DeviceReset (drivers of CUDA 12 and newer tell): a
// CudaDevice is good for one life of its device's primary context, which begins with its first such call.
// Thread safety: as Device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/locks.h"
#include "cachalot/device.h"
#include "device/unified_memory.h"

struct CUctx_st;

CACHALOT_BEGIN

// A device's primary context, which the CUDA runtime uses as well, in one life of it: a reset of the device ends it.
//
// It is made when it is first current, so that a program has none on GPUs it does not use, and stays permanently, as
// those of the CUDA runtime do. Thread-safe.
class CudaContext {
 public:
  // `ordinal` as in cuDeviceGet.
  explicit CudaContext(int ordinal) : ordinal_(ordinal) {}
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Returns the driver's number of the context, which no other of the process ever has; 0 before it was first current.
  // Drivers from before CUDA 12 do not tell: 1 there.
  std::uint64_t id() const { return id_.load(std::memory_order_acquire); }

  // Makes the context current to the calling thread for a scope. Afterwards the thread's current context is the one from
  // before, or none. Asks the driver two questions where the context is current already.
  // Throws DeviceReset where the device was reset since the first scope: what was made in the context is gone, and what the
  // driver would do with old handles is its own to choose. Drivers from before CUDA 12 do not tell.
  class Current {
   public:
    explicit Current(CudaContext& context) : pushed_(!context.is_current()) {
      if (pushed_) context.push();
    }
    ~Current() {
      if (pushed_) pop();
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const bool pushed_;
  };

 private:
  bool is_current() const;
  void push();
  static void pop();
  CUctx_st* handle();
  bool is_in_its_life();
  [[noreturn]] void throw_reset() const;

  const int ordinal_;
  std::atomic<std::uint64_t> id_{0};
  SleepingMutex making_;                    // held while the handle is made; …
  std::atomic<CUctx_st*> handle_{nullptr};  // … it is read without, and constant once it is there
};

class CudaCompletionWords;
class CudaHandleForm;

class CudaDevice final : public Device {
 public:
  struct Config {
    bool completion_hints = true;
  };
  // `ordinal` as in cuDeviceGet. Requires that cuda_devices was called: it initializes the driver.
  CudaDevice(int ordinal, const Config& config);
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  int index() const override { return ordinal_; }
  DeviceProperties properties() const override;
  MemoryInfo memory_info() override;
  std::optional<Address> malloc(std::size_t bytes) override;
  std::optional<Address> malloc_managed(std::size_t bytes) override;
  std::optional<Address> malloc_async(std::size_t bytes, Stream stream) override;
  void free_async(Address address, Stream stream) override;
  void free(Address address) override;
  std::optional<Address> reserve(std::size_t bytes) override;
  void unreserve(Address address, std::size_t bytes) override;
  std::optional<MemoryHandle> create(std::size_t bytes) override;
  void release(MemoryHandle handle) override;
  void map(Address address, std::size_t bytes, MemoryHandle handle) override;
  void unmap(Address address, std::size_t bytes) override;
  void set_access(Address address, std::size_t bytes, const std::vector<int>& peers) override;
  void* host_malloc(std::size_t bytes) override;
  void host_free(void* memory) override;
  void copy_to_host(void* to, Address from, std::size_t bytes) override;
  void copy_from_host(Address to, const void* from, std::size_t bytes) override;
  void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) override;
  ShareableHandle export_handle(MemoryHandle handle) override;
  MemoryHandle import_handle(const ShareableHandle& shared) override;
  void enable_peer_access(int peer) override;
  void copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) override;
  bool has_stream(Stream stream) override;
  std::uint64_t stream_id(Stream stream) override;
  Stream new_stream() override;
  void stream_destroy(Stream stream) override;
  Event event_create() override;
  void event_destroy(Event event) override;
  void event_record(Event event, Stream stream) override;
  bool event_query(Event event) override;
  void event_synchronize(Event event) override;
  std::size_t event_synchronize_any(const std::vector<Event>& events) override;
  std::optional<std::uint64_t> completion_hint(Stream stream) override;
  void stream_wait(Stream stream, Event event) override;
  CaptureStatus capture_status(Stream stream) override;
  void synchronize() override;
  IpcHandle ipc_export(Address address) override;
  Address ipc_import(const IpcHandle& handle) override;
  void ipc_close(Address address) override;
  std::int64_t clock_us() override;

  // The device's context, for code that calls the driver beside this class.
  CudaContext& context() { return context_; }

 private:
  void query_virtual_memory(int device);
  void require_virtual_memory(const char* call) const;
  // Returns whether an integrated GPU should not be asked for `bytes`: the machine would swap until it stands still.
  bool exceeds_host_memory(std::size_t bytes) const;
  void record_across_contexts(Event event, Stream stream, CUctx_st* owner);

  const int ordinal_;
  std::optional<HostMemory> host_memory_;  // of an integrated GPU; nullopt: the GPU has memory of its own
  DeviceProperties properties_;
  CudaContext context_;
  std::unique_ptr<CudaHandleForm> form_;        // null: no virtual memory
  std::unique_ptr<CudaCompletionWords> words_;  // null: no hints
};

// The CUDA version the installed driver supports, as 1000 * major + 10 * minor; 0 without a driver, and in a build without
// CUDA.
int cuda_driver_version();

CACHALOT_END
