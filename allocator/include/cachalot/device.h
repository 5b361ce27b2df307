/// @file
/// Devices: what an allocator asks of a GPU, and the names that both use: streams, pools, shared
/// memory.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

CACHALOT_BEGIN_API

/// A PoolId names a private pool, as PyTorch's MempoolId_t does.
///
/// - {0, 0} is the default pool.
/// - {n, 0} is the private pool of a CUDA graph (PyTorch's graph_pool_handle).
/// - {0, n} is a MemPool of the user.
/// - {n, n} is the pool of the n-th tag (CachingAllocator::begin_tagged).
struct PoolId {
  std::uint64_t first = 0;   ///< MempoolId_t's first number
  std::uint64_t second = 0;  ///< MempoolId_t's second number
  /// Returns true for the default pool, {0, 0}.
  bool is_default() const { return first == 0 && second == 0; }

  /// Compares both numbers; ids are ordered by `first`, then by `second`.
  friend constexpr bool operator==(const PoolId& a, const PoolId& b) {
    return a.first == b.first && a.second == b.second;
  }
  /// Returns !(a == b).
  friend constexpr bool operator!=(const PoolId& a, const PoolId& b) { return !(a == b); }
  /// Returns true if `a` is ordered before `b`.
  friend constexpr bool operator<(const PoolId& a, const PoolId& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
  /// Returns b < a.
  friend constexpr bool operator>(const PoolId& a, const PoolId& b) { return b < a; }
  /// Returns !(b < a).
  friend constexpr bool operator<=(const PoolId& a, const PoolId& b) { return !(b < a); }
  /// Returns !(a < b).
  friend constexpr bool operator>=(const PoolId& a, const PoolId& b) { return !(a < b); }
};

/// The size class of a block.
enum class PoolKind : std::uint8_t {
  small,  ///< blocks of up to 1 MiB
  large,  ///< blocks above 1 MiB
};

CACHALOT_END_API

// CUDA's own handle types, so that a Stream is a cudaStream_t with or without a toolkit.
struct CUstream_st;
struct CUevent_st;

CACHALOT_BEGIN_API

using Address = std::uintptr_t;  ///< an address of device memory
using Stream = CUstream_st*;     ///< cudaStream_t; nullptr is the legacy default stream
using Event = CUevent_st*;       ///< cudaEvent_t
/// CUmemGenericAllocationHandle: physical memory without an address.
using MemoryHandle = std::uint64_t;

/// An AddressRange is the range [address, address + bytes).
struct AddressRange {
  Address address = 0;    ///< of the first byte
  std::size_t bytes = 0;  ///< length
};

/// A MemoryInfo says how much memory a device has, as cudaMemGetInfo does.
struct MemoryInfo {
  std::size_t free_bytes = 0;   ///< bytes that no process uses; of integrated GPUs: `integrated`
  std::size_t total_bytes = 0;  ///< bytes of the device
};

/// DeviceProperties are what a device is and can do.
struct DeviceProperties {
  std::string name;             ///< as in "NVIDIA H100 80GB HBM3"
  std::size_t total_bytes = 0;  ///< bytes of its memory
  /// True if the device has virtual memory: reserve, create, map, set_access, unmap, release. False
  /// as well if the driver does not tell page_bytes.
  bool virtual_memory = false;
  /// Granularity of create and map in bytes, a power of two (2 MiB on every GPU so far); 0 if the
  /// device has no virtual memory.
  std::size_t page_bytes = 0;
  /// The mappings that the page heap keeps before it removes unused ones: half of the 500,000 per
  /// context that drivers are reported to support.
  std::size_t max_mappings = 262144;
  /// The most managed memory (malloc_managed) that lies on device and host together, in bytes; 0 if
  /// the device has none that moves between the two by itself while both work.
  std::size_t managed_bytes = 0;
  /// True if its memory is the machine's (GB10, Jetson). Free is then MemAvailable of
  /// /proc/meminfo less 1 GiB, of machines below 16 GiB less a sixteenth; more is refused as on a
  /// full GPU.
  bool integrated = false;
  /// True if calls take the time by clock_us() that they cost. Under a simulated driver they do
  /// not, so that nothing is learned from it.
  bool calls_take_time = true;

  // Properties of new handles of create. On a GPU they are its claims until its first create, which
  // tries them, and from then on the properties that work.
  bool rdma_capable = false;          ///< their memory is for GPUDirect RDMA, too
  bool shares_by_descriptor = false;  ///< they can be shared by file descriptor
  bool shares_by_fabric = false;      ///< they can be shared by fabric handle

  /// The UUID of the GPU or MIG instance, by which NVML knows it, too; zeros if it is unknown.
  std::array<unsigned char, 16> uuid = {};
};

/// A CaptureStatus says whether a stream captures a graph.
struct CaptureStatus {
  bool capturing = false;  ///< true while the stream captures
  std::uint64_t id = 0;    ///< of the capture; 0 if the stream does not capture
};

/// An IpcHandle is what another process needs to open memory of malloc (cudaIpcMemHandle_t).
struct IpcHandle {
  unsigned char bytes[64] = {};  ///< cudaIpcMemHandle_t's bytes
};

/// A ShareableHandle is what another process needs to open one MemoryHandle.
struct ShareableHandle {
  /// The two ways to share.
  enum class Kind : std::uint8_t {
    descriptor,  ///< a POSIX file descriptor
    fabric,      ///< a fabric handle
  };
  Kind kind = Kind::descriptor;  ///< the member below that is valid
  /// A file descriptor of this process. It keeps the memory alive while it is open.
  int descriptor = -1;
  /// CUmemFabricHandle: valid in every process of the machine's fabric.
  std::array<unsigned char, 64> fabric = {};
};

/// The kinds of copies that a stream does.
enum class CopyKind : std::uint8_t {
  from_host,      ///< from host memory to the device
  to_host,        ///< from the device to host memory
  within_device,  ///< from memory of the device to other memory of it
};

/// A Device is one GPU, or a model of one, as the allocator uses it.
///
/// There are two implementations: CudaDevice (cuda_devices), over the CUDA runtime and driver, and
/// SimulatedDevice (simulated_device.h), a model with a virtual clock for machines without a GPU.
///
/// Errors: a lack of memory is a return value (an empty optional or a null pointer). Every other
/// failure throws CudaError, which names the call and carries CUDA's code. A call that throws has
/// changed nothing.
/// Thread safety: every method may be called from any thread at any time.
class Device {
 public:
  virtual ~Device() = default;

  /// Returns the CUDA ordinal. Device `i` of a CachingAllocator is a Device with index() == i.
  virtual int index() const = 0;
  /// Returns what the device is and can do.
  virtual DeviceProperties properties() const = 0;
  /// Returns how much memory the device has and how much is free.
  virtual MemoryInfo memory_info() = 0;

  /// Allocates `bytes` bytes (cuMemAlloc). Returns nullopt if the device does not have that much.
  /// Throws CUDA_ERROR_INVALID_VALUE for 0 bytes. Allowed while a stream captures.
  virtual std::optional<Address> malloc(std::size_t bytes) = 0;
  /// Allocates `bytes` bytes of managed memory, accessible to all devices and the host
  /// (cuMemAllocManaged, CU_MEM_ATTACH_GLOBAL). The part that the device has no room for lies on
  /// the host, so that more may be allocated than the device has. Returns nullopt for more than
  /// properties().managed_bytes, and if there is no room, which a driver may notice only when the
  /// memory is used. Throws CUDA_ERROR_INVALID_VALUE for 0 bytes. Allowed while a stream captures.
  /// A device without managed memory throws CUDA_ERROR_NOT_SUPPORTED, or allocates as malloc.
  virtual std::optional<Address> malloc_managed(std::size_t bytes) { return malloc(bytes); }
  /// Frees an address that malloc or malloc_managed returned (cuMemFree). Null is not such an
  /// address.
  /// Requires: no stream captures.
  /// Blocks: until all work on the device is done.
  virtual void free(Address address) = 0;

  /// Allocates `bytes` bytes of CUDA's own pool for work on `stream` (cuMemAllocAsync). Returns
  /// nullopt if the device does not have that much. A device without pools allocates as malloc.
  /// Requires: the stream does not capture.
  virtual std::optional<Address> malloc_async(std::size_t bytes, Stream stream) {
    static_cast<void>(stream);
    return malloc(bytes);
  }
  /// Frees an address that malloc_async returned, behind the work queued on `stream`
  /// (cuMemFreeAsync). Does not block.
  /// Requires: the stream does not capture; work of other streams that uses the memory is done.
  virtual void free_async(Address address, Stream stream) {
    static_cast<void>(stream);
    free(address);
  }

  // Virtual memory. Sizes and addresses are multiples of properties().page_bytes.

  /// Reserves `bytes` bytes of addresses without memory. Returns nullopt if there is no such range.
  virtual std::optional<Address> reserve(std::size_t bytes) = 0;
  /// Gives back a whole reserved range. Requires: nothing is mapped in it.
  virtual void unreserve(Address address, std::size_t bytes) = 0;
  /// Creates physical memory without an address. Returns nullopt if the device does not have that
  /// much.
  virtual std::optional<MemoryHandle> create(std::size_t bytes) = 0;
  /// Drops the caller's reference to the handle. Its memory is freed once no mapping is left.
  virtual void release(MemoryHandle handle) = 0;
  /// Maps the whole handle (CUDA requires an offset of 0) at a reserved, unmapped range of its
  /// size. One handle may be mapped at several addresses. The range is not accessible before
  /// set_access.
  virtual void map(Address address, std::size_t bytes, MemoryHandle handle) = 0;
  /// Unmaps whole mappings in the range.
  /// Requires: work that uses them is done; on a GPU it would fault.
  virtual void unmap(Address address, std::size_t bytes) = 0;
  /// Gives this device and the devices `peers` read and write access to a mapped range, which may
  /// cover many mappings. Devices that had access keep it.
  virtual void set_access(Address address, std::size_t bytes, const std::vector<int>& peers) = 0;

  /// Returns what another process needs to open the handle's memory. The caller closes the
  /// descriptor, if it is one.
  virtual ShareableHandle export_handle(MemoryHandle handle) = 0;
  /// Opens memory that a process exported. Returns a handle to be mapped whole and released. The
  /// descriptor stays the caller's. The exporter tells the size of the handle.
  virtual MemoryHandle import_handle(const ShareableHandle& shared) = 0;

  /// Allows work on this device to use memory that `peer` returns from malloc and malloc_async:
  /// CUDA's current pool of `peer` is opened. Does nothing if it is allowed already. Memory of
  /// create is opened by set_access.
  virtual void enable_peer_access(int peer) = 0;

  /// Allocates pinned host memory in whole pages (cuMemHostAlloc). Returns nullptr if the host does
  /// not have that much. Throws CUDA_ERROR_INVALID_VALUE for 0 bytes.
  virtual void* host_malloc(std::size_t bytes) = 0;
  /// Frees what host_malloc returned.
  virtual void host_free(void* memory) = 0;
  /// Copies `bytes` > 0 bytes of accessible device memory to the host.
  /// Requires: work that uses these bytes is done; no stream captures.
  /// Blocks: until the bytes are copied.
  virtual void copy_to_host(void* to, Address from, std::size_t bytes) = 0;
  /// Copies `bytes` > 0 bytes of the host to accessible device memory.
  /// Requires: work that uses the device's bytes is done; no stream captures.
  /// Blocks: until the bytes are copied.
  virtual void copy_from_host(Address to, const void* from, std::size_t bytes) = 0;

  /// Queues work on `stream` that sets `bytes` > 0 bytes of accessible memory to `value`. Joins the
  /// capture if the stream captures.
  virtual void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) = 0;
  /// Queues work on `stream` that copies `bytes` > 0 bytes (cuMemcpyAsync). `kind` says which of
  /// `to` and `from` is host memory. Joins the capture if the stream captures.
  /// Requires: the ranges do not overlap; pinned host memory is not freed, and not written where
  /// it is the source, before the copy is done.
  /// Blocks: not for pinned host memory and within the device. For pageable host memory: until
  /// the source may be written, or the destination read.
  virtual void copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) = 0;

  /// Returns false if `stream` is a stream of another device. A stream that CUDA names for each
  /// device (nullptr, cudaStreamLegacy, cudaStreamPerThread) belongs to every device.
  /// Requires: the stream exists. Cost: nanoseconds.
  virtual bool has_stream(Stream stream) = 0;

  /// Returns the number of the stream, which no other stream of the process ever has
  /// (cudaStreamGetId): a handle may be that of another stream as soon as its stream is destroyed.
  /// cudaStreamPerThread has a number in each thread. Returns 0 if the driver cannot tell (before
  /// CUDA 12). Requires: the stream exists. Cost: nanoseconds.
  virtual std::uint64_t stream_id(Stream stream) = 0;

  /// Creates a stream that does not wait for the legacy default stream (cudaStreamNonBlocking). The
  /// caller owns it; a stream that is not destroyed lives as long as the device. On a GPU it is a
  /// cudaStream_t for every function of CUDA. Allowed while a stream captures.
  virtual Stream new_stream() = 0;
  /// Destroys a stream of the device, as cudaStreamDestroy does. Work that is queued on it is done
  /// nevertheless. Call CachingAllocator::stream_ends before, and its like of pools and of pinned
  /// host memory, for all that have used the stream. Allowed while another stream captures.
  /// Throws CUDA_ERROR_INVALID_HANDLE for a stream that CUDA names for each device (has_stream).
  /// Requires: the stream exists and does not capture. Blocks: no.
  virtual void stream_destroy(Stream stream) = 0;

  /// Creates an event without timing.
  virtual Event event_create() = 0;
  /// Destroys an event.
  virtual void event_destroy(Event event) = 0;
  /// Marks, with the event, the work queued on `stream` so far. The stream may belong to another
  /// device or context.
  virtual void event_record(Event event, Stream stream) = 0;
  /// Returns true if the work that the event marks is done, and for an event that was never
  /// recorded. Allowed while a stream captures.
  /// Requires: the event was not recorded inside a capture; the call then fails.
  virtual bool event_query(Event event) = 0;
  /// Waits until event_query returns true.
  /// Requires: no stream captures in CUDA's global mode, and the event was not recorded inside a
  /// capture: the call then fails and spoils the capture.
  virtual void event_synchronize(Event event) = 0;
  /// Waits until event_query returns true for one of `events`, which are not empty. Returns its
  /// index: that of the first to complete, as far as the device can tell. A device that cannot
  /// waits for the first of them. Otherwise as event_synchronize.
  virtual std::size_t event_synchronize_any(const std::vector<Event>& events) {
    event_synchronize(events.front());
    return 0;
  }
  /// Returns a number that has changed if an event recorded on `stream` by event_record has
  /// completed since the number was last read. Returns nullopt if the device cannot tell. It is a
  /// hint that saves driver calls: a change means that some event may be done, and no completion
  /// goes without a change. Cost: a memory read.
  virtual std::optional<std::uint64_t> completion_hint(Stream stream) = 0;

  /// Makes work queued on `stream` from now on wait for the event. Blocks: no; the GPU waits.
  virtual void stream_wait(Stream stream, Event event) = 0;
  /// Returns whether `stream` captures a graph.
  virtual CaptureStatus capture_status(Stream stream) = 0;
  /// Waits for all work on the device. Requires: no stream captures.
  virtual void synchronize() = 0;

  /// Returns what another process needs to open the allocation at `address`, which malloc returned.
  /// Throws CUDA_ERROR_INVALID_VALUE for managed memory, which no other process can open.
  virtual IpcHandle ipc_export(Address address) = 0;
  /// Opens memory that another process exported. Returns its address in this process.
  virtual Address ipc_import(const IpcHandle& handle) = 0;
  /// Closes what ipc_import returned, once for each ipc_import.
  virtual void ipc_close(Address address) = 0;

  /// Returns the time in microseconds: since the Unix epoch, or on a simulated device since it was
  /// made.
  virtual std::int64_t clock_us() = 0;
};

/// Returns the machine's GPUs in the order of their ordinals. Returns none if the machine has no
/// GPU or no driver, and if cachalot was built without cuda.h.
/// Throws CudaError for any other failure.
std::vector<std::shared_ptr<Device>> cuda_devices();

/// A SharedMemory describes an allocation for other processes: CachingAllocator::share makes it,
/// and CachingAllocator::open_shared of another process takes it.
///
/// Over heap:segments it names the segment (the cudaMalloc) that holds the allocation. Over
/// heap:pages it names the handles behind the allocation, which the other process maps whole and
/// one after the other.
struct SharedMemory {
  /// A Handle names one piece of physical memory.
  struct Handle {
    ShareableHandle shared;  ///< the handle that the other process imports
    std::size_t bytes = 0;   ///< of the whole handle; a multiple of the device's page
    /// A random number that no other export of any process has, while descriptors are reused:
    /// handles with one key are opened once. 0: unknown, so that each is opened for itself.
    std::uint64_t key = 0;
  };
  std::vector<Handle> handles;  ///< in address order; empty: `segment` is valid
  IpcHandle segment;            ///< of the segment, if `handles` is empty
  std::size_t offset = 0;       ///< from the start of the segment or first handle to the allocation
  std::size_t bytes = 0;        ///< of the allocation
};

/// Throws InvalidArgument, which names stream and device, if `stream` is a stream of another
/// device.
/// Requires: the stream exists. Cost: nanoseconds.
void require_stream_of_device(Device& device, Stream stream);

CACHALOT_END_API
