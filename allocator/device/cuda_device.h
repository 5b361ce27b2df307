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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/device.h"
#include "device/cuda_context.h"
#include "device/unified_memory.h"

CACHALOT_BEGIN

class CudaCompletionWords;
class CudaHandleForm;

class CudaDevice final : public Device {
 public:
  struct Config {
    bool completion_hints = true;
    // Of an integrated GPU: where the system says how its memory is used (device/unified_memory.h).
    std::string host_memory_file = kHostMemoryFile;
  };
  // `ordinal` as in cuDeviceGet. Requires that cuda_devices was called: it initializes the driver.
  CudaDevice(int ordinal, const Config& config);
  explicit CudaDevice(int ordinal);
  ~CudaDevice() override;

  int index() const override { return ordinal_; }
  DeviceProperties properties() const override;
  MemoryInfo memory_info() override;
  std::optional<Address> malloc(std::size_t bytes) override;
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
  Event event_create() override;
  void event_destroy(Event event) override;
  void event_record(Event event, Stream stream) override;
  bool event_query(Event event) override;
  void event_synchronize(Event event) override;
  std::optional<std::uint64_t> completion_hint(Stream stream) override;
  void stream_wait(Stream stream, Event event) override;
  CaptureStatus capture_status(Stream stream) override;
  void synchronize() override;
  IpcHandle ipc_export(Address address) override;
  Address ipc_import(const IpcHandle& handle) override;
  void ipc_close(Address address) override;
  bool allows_background_threads() const override { return true; }
  std::int64_t clock_us() override;

  // The device's context, for code that calls the driver beside this class.
  CudaContext& context() { return context_; }

 private:
  void query_virtual_memory(int device);
  void require_virtual_memory(const char* call) const;
  // Whether an integrated GPU should not be asked for so much: the machine would swap until it stands still.
  bool exceeds_host_memory(std::size_t bytes) const;
  void record_across_contexts(Event event, Stream stream, CUctx_st* owner);

  const int ordinal_;
  std::string host_memory_file_;  // empty: the GPU has memory of its own
  DeviceProperties properties_;
  CudaContext context_;
  std::unique_ptr<CudaHandleForm> form_;        // null: no virtual memory
  std::unique_ptr<CudaCompletionWords> words_;  // null: no hints
};

// The CUDA version the installed driver supports, as 1000 * major + 10 * minor; 0 without a driver, and in a build without
// CUDA.
int cuda_driver_version();

CACHALOT_END
