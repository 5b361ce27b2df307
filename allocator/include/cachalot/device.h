// The door to the device: everything the allocator asks of a GPU, and nothing else.
//
// Two implementations are equals: CudaDevice (the CUDA runtime and driver) and SimulatedDevice (a model with a
// virtual clock, for machines without a GPU). The calls cost microseconds, so they are virtual; that buys fakes,
// fault injection and peers.
//
// Errors, for every call: out of memory is a value (an empty optional); every other failure throws CudaError, which
// names the call and carries the code. A call that throws has changed nothing.
// Thread safety: every call may be made from any thread at any time.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// CUDA's own handle types, so that a Stream is a cudaStream_t whether or not a toolkit is present.
struct CUstream_st;
struct CUevent_st;

namespace cachalot {

using Address = std::uintptr_t;      // of device memory
using Stream = CUstream_st*;         // cudaStream_t; nullptr is the legacy default stream
using Event = CUevent_st*;           // cudaEvent_t
using MemoryHandle = std::uint64_t;  // CUmemGenericAllocationHandle: physical memory without an address

struct AddressRange {
  Address address = 0;
  std::size_t bytes = 0;
};

struct MemoryInfo {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
};

struct DeviceProperties {
  std::string name;
  std::size_t total_bytes = 0;
  bool virtual_memory = false;  // reserve/create/map/set_access/unmap/release are supported
  std::size_t page_bytes = 0;   // granularity of create and map, a power of two (2 MiB on every GPU so far); 0 without
  bool rdma_capable = false;    // handles may be created for GPUDirect RDMA
};

struct CaptureStatus {
  bool capturing = false;
  std::uint64_t id = 0;  // of the capture; 0 when not capturing
};

// What another process needs to open this memory (cudaIpcMemHandle_t's 64 bytes).
struct IpcHandle {
  unsigned char bytes[64] = {};
};

// What another process needs to open one MemoryHandle.
struct ShareableHandle {
  enum class Kind : std::uint8_t { descriptor, fabric };
  Kind kind = Kind::descriptor;
  int descriptor = -1;                        // a file of this process; it keeps the memory alive while it is open
  std::array<unsigned char, 64> fabric = {};  // CUmemFabricHandle: valid in every process of the machine's fabric
};

class Device {
 public:
  virtual ~Device() = default;

  // The CUDA ordinal; device `i` of a CachingAllocator must be a Device with index() == i.
  virtual int index() const = 0;
  virtual DeviceProperties properties() const = 0;
  virtual MemoryInfo memory_info() = 0;

  // cudaMalloc: `bytes` > 0 (else cudaErrorInvalidValue); nullopt when the device has not that much. Legal during
  // stream capture.
  virtual std::optional<Address> malloc(std::size_t bytes) = 0;
  // cudaFree of an address malloc returned (null is not one). Waits for all work on the device; not allowed while a
  // stream captures.
  virtual void free(Address address) = 0;

  // Virtual memory. Sizes and addresses are multiples of properties().page_bytes.
  // Address space without memory; nullopt when there is no such range.
  virtual std::optional<Address> reserve(std::size_t bytes) = 0;
  // Gives back a whole reserved range; nothing may be mapped in it.
  virtual void unreserve(Address address, std::size_t bytes) = 0;
  // Physical memory without an address; nullopt when the device has not that much.
  virtual std::optional<MemoryHandle> create(std::size_t bytes) = 0;
  // Drops our reference; the memory is freed once no mapping is left.
  virtual void release(MemoryHandle handle) = 0;
  // Maps the whole handle (CUDA requires offset 0) at a reserved, unmapped range of its size. One handle may be
  // mapped at several addresses. Not accessible before set_access.
  virtual void map(Address address, std::size_t bytes, MemoryHandle handle) = 0;
  // Unmaps whole mappings in the range. Work still using them would fault: the caller has seen it finish.
  virtual void unmap(Address address, std::size_t bytes) = 0;
  // Read and write access for this device, and for the devices `peers`, to a mapped range, which may cover many mappings:
  // one call a range. Who had access keeps it.
  virtual void set_access(Address address, std::size_t bytes, const std::vector<int>& peers) = 0;

  // Memory of create, and of mappings, in another process. A descriptor that export_handle returns is the caller's to
  // close. import_handle leaves the caller its descriptor, and returns a handle to be mapped whole and released; its size
  // is the exporter's to tell.
  virtual ShareableHandle export_handle(MemoryHandle handle) = 0;
  virtual MemoryHandle import_handle(const ShareableHandle& shared) = 0;

  // Work on this device may use the memory that `peer` gives by malloc; nothing happens if it may already. Memory of
  // create is opened by set_access.
  virtual void enable_peer_access(int peer) = 0;

  // Pinned host memory, whole pages, `bytes` > 0 (else cudaErrorInvalidValue); nullptr when the host has not that much.
  virtual void* host_malloc(std::size_t bytes) = 0;
  virtual void host_free(void* memory) = 0;
  // Copies `bytes` > 0 bytes between accessible memory of the device and host memory; done when the call returns. The
  // caller has seen the work finish that uses the device's bytes. Not allowed while a stream captures.
  virtual void copy_to_host(void* to, Address from, std::size_t bytes) = 0;
  virtual void copy_from_host(Address to, const void* from, std::size_t bytes) = 0;

  // Work on `stream`: every one of `bytes` > 0 bytes of accessible memory becomes `value`. Joins a capture.
  virtual void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) = 0;

  // Events, created without timing. record marks the work queued on `stream` so far.
  virtual Event event_create() = 0;
  virtual void event_destroy(Event event) = 0;
  virtual void event_record(Event event, Stream stream) = 0;
  // True when the work marked is done; true for an event never recorded. Like synchronizing, not allowed while a
  // stream captures in CUDA's global mode, and never for an event recorded inside a capture: that fails and spoils the
  // capture.
  virtual bool event_query(Event event) = 0;
  virtual void event_synchronize(Event event) = 0;
  // A number that has changed if an event recorded on `stream` by event_record completed since it was last read:
  // a memory read, no driver call, so that an event that cannot be done need not be asked. A change is a hint that
  // some event may be done; an event's completion is never hidden. nullopt: this device cannot tell, ask the event.
  virtual std::optional<std::uint64_t> completion_hint(Stream stream) = 0;

  // Work queued on `stream` from now on waits for the event.
  virtual void stream_wait(Stream stream, Event event) = 0;
  virtual CaptureStatus capture_status(Stream stream) = 0;
  // Waits for all work on the device. Not allowed while a stream captures.
  virtual void synchronize() = 0;

  // Sharing between processes; `address` is what malloc returned.
  virtual IpcHandle ipc_export(Address address) = 0;
  virtual Address ipc_import(const IpcHandle& handle) = 0;
  virtual void ipc_close(Address address) = 0;

  // Microseconds since the Unix epoch (real device) or since its creation (simulated device).
  virtual std::int64_t clock_us() = 0;
};

// The machine's GPUs, by ordinal; empty where there is none, or no driver, and always without a CUDA toolkit at build
// time. Throws CudaError for any other failure.
std::vector<std::shared_ptr<Device>> cuda_devices();

}  // namespace cachalot
