/// @file
/// The model of a CUDA device, for machines without a GPU.
#pragma once

#include "cachalot/require_cpp17.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/managed_memory.h"

CACHALOT_BEGIN_API

/// The kinds of calls of a device, for latencies, counts, faults and the log. Each is named after
/// the method of Device that makes the call.
enum class DeviceCall : std::uint8_t {
  malloc,              ///< Device::malloc
  free,                ///< Device::free
  reserve,             ///< Device::reserve
  unreserve,           ///< Device::unreserve
  create,              ///< Device::create
  release,             ///< Device::release
  map,                 ///< Device::map
  unmap,               ///< Device::unmap
  set_access,          ///< Device::set_access
  host_malloc,         ///< Device::host_malloc
  host_free,           ///< Device::host_free
  copy_to_host,        ///< Device::copy_to_host
  copy_from_host,      ///< Device::copy_from_host
  fill,                ///< Device::fill
  event_create,        ///< Device::event_create
  event_destroy,       ///< Device::event_destroy
  event_record,        ///< Device::event_record
  event_query,         ///< Device::event_query
  event_synchronize,   ///< Device::event_synchronize
  stream_wait,         ///< Device::stream_wait
  capture_status,      ///< Device::capture_status
  synchronize,         ///< Device::synchronize
  memory_info,         ///< Device::memory_info
  ipc_export,          ///< Device::ipc_export
  ipc_import,          ///< Device::ipc_import
  ipc_close,           ///< Device::ipc_close
  export_handle,       ///< Device::export_handle
  import_handle,       ///< Device::import_handle
  enable_peer_access,  ///< Device::enable_peer_access
  malloc_async,        ///< Device::malloc_async
  free_async,          ///< Device::free_async
  copy,                ///< Device::copy
  malloc_managed,      ///< Device::malloc_managed
  kCount,              ///< the number of kinds
};
/// The number of kinds of calls.
inline constexpr std::size_t kDeviceCallCount = static_cast<std::size_t>(DeviceCall::kCount);
/// Returns the name of the kind: "malloc", "set_access", ...
const char* to_string(DeviceCall call);

/// A LatencyModel says how long the host is busy with each call.
struct LatencyModel {
  std::array<double, kDeviceCallCount> call_us{};          ///< microseconds per call
  std::array<double, kDeviceCallCount> call_us_per_mib{};  ///< further microseconds per MiB
  double set_access_us_per_mapping = 0;  ///< further microseconds for each mapping of the range
  /// Returns the microseconds per call of a kind.
  double operator[](DeviceCall call) const { return call_us[static_cast<std::size_t>(call)]; }
  /// Returns the further microseconds per MiB of a kind.
  double per_mib(DeviceCall call) const { return call_us_per_mib[static_cast<std::size_t>(call)]; }

  /// Returns the default: published or reported figures. device_timing.cpp names the sources.
  static LatencyModel published();
  /// Returns a model in which every call takes no time.
  static LatencyModel none();
};

/// The direction of a copy over the bus.
enum class CopyDirection : std::uint8_t {
  to_device,  ///< from the host to the device
  to_host,    ///< from the device to the host
};

/// A HostCopy is a copy between host and device, over the bus.
struct HostCopy {
  CopyDirection direction = CopyDirection::to_device;  ///< where the bytes go
  std::size_t bytes = 0;                               ///< their number
  bool pinned = false;                                 ///< set if the host's memory is pinned
};

/// A CopyModel says how long copies over the bus take that are queued on streams. The device
/// reaches pinned memory by itself. The host copies pageable memory through a pinned buffer of the
/// driver, and waits meanwhile.
struct CopyModel {
  double setup_us = 0;             ///< microseconds of each copy on its engine
  double pinned_us_per_mib = 0;    ///< microseconds per MiB of pinned memory
  double pageable_us_per_mib = 0;  ///< microseconds per MiB of pageable memory, through the buffer
  /// Bytes of the driver's buffer. A copy from pageable memory that fits does not wait for the
  /// stream.
  std::size_t staged_bytes = 0;

  /// Returns the default: published figures. device_timing.cpp names the sources.
  static CopyModel published();
  /// Returns a model in which every copy takes no time.
  static CopyModel none() { return {}; }

  /// Returns the nanoseconds that moving `bytes` takes, without the setup.
  std::int64_t bytes_ns(std::size_t bytes, bool pinned) const;
  /// Returns the nanoseconds that the copy occupies its engine.
  std::int64_t engine_ns(const HostCopy& copy) const;
};

/// A Fault makes the n-th call of a kind fail. Calls are counted from when the plan is set
/// (SimulatedDevice::set_faults). A failing call changes nothing.
struct Fault {
  std::optional<DeviceCall> call = std::nullopt;  ///< the kind; empty: any call
  std::uint64_t nth = 1;                          ///< number of the failing call; 1: the next one
  /// If true, malloc, malloc_managed, malloc_async, create, reserve and host_malloc report a lack
  /// of memory, and other calls throw cudaErrorMemoryAllocation. If false, the call throws a
  /// CudaError with `code`.
  bool out_of_memory = true;
  int code = 2;         ///< of the CudaError, if `out_of_memory` is false
  bool repeat = false;  ///< the n-th and every later call fails
};

/// A LoggedCall is an entry of the log of calls.
struct LoggedCall {
  DeviceCall call;             ///< the kind
  std::uint64_t argument = 0;  ///< address, handle or event
  std::uint64_t bytes = 0;     ///< size, if the call has one
  bool failed = false;         ///< the call failed
  std::int64_t clock_ns = 0;   ///< when the call began, nanoseconds
};

/// A MemoryAt describes the allocation or mapping that holds an address.
struct MemoryAt {
  AddressRange range;       ///< of the whole mapping; for malloc, of the bytes asked for
  MemoryHandle handle = 0;  ///< mapped there; 0: memory of malloc or ipc_import
  bool accessible = false;  ///< false if mapped without set_access
  std::uint64_t peers = 0;  ///< bit i: device i may use it, too
  /// Number of the physical byte at the address; the same wherever the byte is mapped.
  std::uint64_t physical = 0;
  std::uint64_t mapping = 0;  ///< number of the mapping; never used again
};

/// A HandleInfo describes a memory handle.
struct HandleInfo {
  std::size_t bytes = 0;       ///< size of the handle
  std::uint64_t physical = 0;  ///< number of its first physical byte
};

/// A MemoryAccount is kept for a device that several processes use: what one takes, the others
/// miss. Its functions are called with the device's lock held, and count in units of 2 MiB.
struct MemoryAccount {
  /// Takes `bytes` for this process. Returns false, and takes nothing, if the device has less.
  std::function<bool(std::size_t bytes)> take = nullptr;
  /// Gives `bytes` back that were taken.
  std::function<void(std::size_t bytes)> give_back = nullptr;
  /// Returns what no process has taken.
  std::function<std::size_t()> free_bytes = nullptr;
};

/// A SimulatedDevice models memory, address space, streams, events and graph capture of one CUDA
/// device, on a virtual clock.
///
/// It models
/// - capacity, in units of 2 MiB;
/// - managed memory: what the device has no room for when it is allocated lies on the host, and
///   other memory that needs room moves more of it there (Config::managed_host_bytes);
/// - addresses, which ascend and are not reused before the process has used up all of them;
/// - the driver's rules of virtual memory;
/// - streams with pending work, and events that are not done before the clock has passed the work
///   before them;
/// - copies over the bus (CopyModel);
/// - the rules of graph capture;
/// - the latency of each call (LatencyModel), failures on demand (Fault), a log of calls;
/// - on request, stream hazards (handed_out).
///
/// Memory holds what copy_from_host, copy and fill brought, from the moment of the call until the
/// memory is released, and zeros before. Addresses must not be dereferenced. A stream is a
/// non-blocking one, unless set_blocking says otherwise: nullptr, the legacy default stream, is one
/// more stream.
///
/// Processes: addresses are unique in the process; all devices share 47 bits of them. For
/// ipc_import each SimulatedDevice is a process of its own: it can open every handle but its own.
/// import_handle opens what any SimulatedDevice of the process exported.
///
/// Time: every call advances the clock by its latency and takes effect then. A call that waits
/// advances the clock to the end of the work that it waits for. A launch advances nothing.
///
/// Errors: a broken rule (unknown address, handle mapped in part, work on an unmapped page, ...)
/// throws CudaError with the code that the driver gives.
/// Thread safety: every method may be called from any thread; one mutex guards all.
class SimulatedDevice final : public Device {
 public:
  /// A Config says what device is simulated.
  struct Config {
    int index = 0;                                         ///< the CUDA ordinal
    std::size_t memory_bytes = std::size_t{200000} << 20;  ///< capacity
    LatencyModel latency = LatencyModel::published();      ///< the time that calls take
    CopyModel copies = CopyModel::published();             ///< the time that copies take
    bool virtual_memory = true;                            ///< DeviceProperties::virtual_memory
    std::size_t max_mappings = 262144;                     ///< DeviceProperties::max_mappings
    bool managed_memory = true;                            ///< if false, managed_bytes is 0
    /// The most managed memory that lies on the host at a time, a multiple of 2 MiB: a driver knows
    /// no such bound, and a host ends programs that use too much.
    std::size_t managed_host_bytes = std::size_t{512} << 30;
    bool completion_hints = true;  ///< if false, completion_hint returns nullopt
    bool mapping_waits = false;    ///< map, unmap and set_access wait for all work
    bool check_hazards = false;    ///< handed_out and its like report hazards
    bool log_calls = false;        ///< take_log returns the calls
    bool refuses_sizing = false;   ///< memory_info() has half of the free memory refused after it
    /// If false, the owner knows CUDA's other capture modes and reports forbidden calls by
    /// refuse_while_capturing.
    bool captures_refuse = true;
    /// Called under the device's lock when physical memory is released: the numbers that are gone.
    std::function<void(std::uint64_t first, std::size_t bytes)> memory_freed = nullptr;
    MemoryAccount account = {};  ///< of a device that processes share; without functions: none
    std::string name = "Simulated GPU";  ///< DeviceProperties::name
  };
  /// Makes a device as `config` says.
  explicit SimulatedDevice(const Config& config);
  /// Makes the default device: index 0, 200,000 MiB.
  SimulatedDevice();
  ~SimulatedDevice() override;

  // Device's methods.

  int index() const override;
  DeviceProperties properties() const override;
  MemoryInfo memory_info() override;
  std::optional<Address> malloc(std::size_t bytes) override;
  std::optional<Address> malloc_managed(std::size_t bytes) override;
  void free(Address address) override;
  std::optional<Address> malloc_async(std::size_t bytes, Stream stream) override;
  void free_async(Address address, Stream stream) override;
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
  ShareableHandle export_handle(MemoryHandle handle) override;
  MemoryHandle import_handle(const ShareableHandle& shared) override;
  void enable_peer_access(int peer) override;
  void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) override;
  void copy(CopyKind kind, Address to, Address from, std::size_t bytes, Stream stream) override;
  bool has_stream(Stream stream) override;
  std::uint64_t stream_id(Stream stream) override;
  /// Returns the name of a new stream: at once that of the stream that was destroyed last, if any,
  /// as a driver does. The new stream is not ordered after the work of the old one.
  Stream new_stream() override;
  /// Destroys the stream. Its work still runs, a capture that it began ends, any other capture it
  /// takes part in is spoilt, and its name is free for a new stream. Until a new stream has the
  /// name, calls with it throw CudaError 400 and are counted (dead_stream_calls).
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

  /// Frees as free does, without waiting for work: as a stream-ordered pool gives back unused
  /// memory.
  void free_without_waiting(Address address);
  /// Resets the device, as a program may call cudaDeviceReset behind its allocators' back. Waits
  /// for all work; then memory, addresses, handles, events, captures, pinned host memory and peer
  /// access are gone, and calls that name them fail as for unknown ones.
  void reset();

  // Memory of the driver, for contexts and for the code of libraries.

  /// Takes memory, in units of 2 MiB, that is neither free nor used_bytes() from now on, until
  /// reset. Returns false, and takes nothing, if that much is not free.
  bool take_for_driver(std::size_t bytes);
  /// Gives back bytes that take_for_driver took. Requires that it has taken as many.
  void give_back_for_driver(std::size_t bytes);
  /// Returns how much take_for_driver has taken, less the bytes given back.
  std::size_t driver_bytes() const;
  /// Returns the largest sum of used_bytes() and driver_bytes() so far.
  std::size_t peak_with_driver_bytes() const;
  /// Takes managed memory, in units of 2 MiB, until reset, as malloc_managed does. Returns false,
  /// and takes nothing, if neither the device nor the host has room.
  bool take_managed(std::size_t bytes);
  /// Gives back what take_managed took with the same `bytes`.
  void give_managed_back(std::size_t bytes);
  /// Returns how much managed memory there is, that of malloc_managed among it.
  ManagedMemory managed() const;

  // Physical memory, shared by its handle.

  /// Adds a reference to the handle: `release` must be called once more.
  void retain(MemoryHandle handle);
  /// Returns a handle for memory of another process, to be mapped and released like others. It does
  /// not count as used.
  MemoryHandle adopt(std::size_t bytes);
  /// Returns size and physical number of the handle.
  HandleInfo handle_info(MemoryHandle handle) const;

  // Work, as a program launches it. Any pointer value names a stream, except for a stream that was
  // destroyed and a new_stream() of another device: calls with these throw CudaError 400.

  /// Makes a new stream of this name, if it is that of a stream that was destroyed.
  void stream_create(Stream name);
  /// Makes the stream a blocking one, as those of cudaStreamCreate are. It and the legacy stream
  /// (nullptr) wait for each other: work that is queued on one, an event that is recorded there and
  /// a host that waits for it are behind all work that was queued on the other before. While a
  /// blocking stream captures, a call on the legacy stream throws CudaError 906 and spoils the
  /// capture; capture_status throws without spoiling it.
  void set_blocking(Stream stream);
  /// Queues work of `duration_ns` nanoseconds that uses the ranges. On a capturing stream it joins
  /// the graph: nothing is queued, and it does not count as a use.
  /// Returns when, on the clock in nanoseconds, all work queued on the stream will be done.
  /// Throws CudaError 700 if a byte of the ranges is not accessible memory.
  std::int64_t launch(Stream stream, std::int64_t duration_ns,
                      const std::vector<AddressRange>& ranges = {});
  /// Queues a copy between host memory and `ranges`. It needs the engine of its direction, of which
  /// there is one. It moves no bytes: copy_to_host and copy_from_host do. On a capturing stream
  /// nothing is queued.
  /// Blocks: not if the host's memory is pinned, nor on a capturing stream. A pageable copy to the
  /// host waits until it is done; one to the device that is larger than CopyModel::staged_bytes
  /// waits for the stream, and until the last of it is in the driver's buffer.
  /// Returns and throws as launch does.
  std::int64_t launch_copy(Stream stream, const HostCopy& copy,
                           const std::vector<AddressRange>& ranges = {});
  /// Waits for all work queued on the stream.
  void stream_synchronize(Stream stream);
  /// Returns true if all work queued on the stream is done.
  bool stream_query(Stream stream);
  /// Advances the clock by `ns` >= 0 nanoseconds: time passes on the host.
  void advance(std::int64_t ns);
  /// Advances the clock to `clock_ns`. Does nothing if that is past.
  void advance_to(std::int64_t clock_ns);
  /// Returns the clock in nanoseconds.
  std::int64_t clock_ns() const;

  // Times on the clock, in nanoseconds, for programs with several devices.

  /// Returns when the work queued on the stream ends.
  std::int64_t stream_ready_ns(Stream stream);
  /// Returns when the work that the event marks ends; 0 if it was never recorded.
  std::int64_t event_done_ns(Event event);
  /// Makes work queued on the stream from now on wait until `ns`.
  void stream_wait_until(Stream stream, std::int64_t ns);

  // Stream capture.

  /// Begins a capture on the stream in CUDA's global mode. Returns its id. Until end_capture, a
  /// synchronization or a free throws CudaError 900, and a query or synchronization of an event of
  /// the capture throws CudaError 907; both spoil the capture. Queries of other events are allowed:
  /// CudaDevice makes them in relaxed mode. An event recorded on a capturing stream belongs to the
  /// graph; another stream that waits for it joins the capture.
  std::uint64_t begin_capture(Stream stream);
  /// Ends the capture. Throws CudaError 901 if it was spoilt.
  void end_capture(Stream stream);
  /// Spoils the capture that the stream takes part in, if any.
  void spoil_capture(Stream stream);
  /// Returns true if the stream captures and the capture is spoilt.
  bool is_capture_spoilt(Stream stream) const;
  /// Throws CudaError 900 in the name of `call`, and spoils every capture, if any stream captures.
  void refuse_while_capturing(const char* call);

  // Hazards (HazardError).

  /// Reports that an allocator has returned the memory, for work on the stream. Does nothing for a
  /// null address, and without Config::check_hazards. Throws HazardError.
  void handed_out(Address address, std::size_t bytes, Stream stream);
  /// Reports that the memory is about to be deallocated. Does nothing for a null address, and
  /// without Config::check_hazards. Throws HazardError.
  void given_back(Address address);

  // Observation.

  /// Returns how many calls failed because their stream was destroyed. A driver's behaviour with
  /// such a handle is undefined.
  std::uint64_t dead_stream_calls() const;
  /// Returns how many calls of the kind were made.
  std::uint64_t count(DeviceCall call) const;
  /// Returns the sum of the latencies of all calls in microseconds, without waits.
  double driver_us() const;
  /// Returns the physical memory in use, in bytes; a multiple of 2 MiB.
  std::size_t used_bytes() const;
  /// Returns the managed memory that lies on the host, in bytes: used_bytes() does not count it.
  std::size_t managed_host_bytes() const;
  /// Returns the largest used_bytes() so far.
  std::size_t peak_used_bytes() const;
  /// Returns what memory_info() reports as free, without the call.
  std::size_t free_bytes() const;
  /// Returns the number of mappings.
  std::size_t live_mappings() const;
  /// Returns what holds the address, or nullopt.
  std::optional<MemoryAt> memory_at(Address address) const;
  /// Returns true if enable_peer_access was called for `peer`.
  bool may_access(int peer) const;
  /// Returns the log of calls, oldest first, and empties it.
  std::vector<LoggedCall> take_log();

  /// Plans the addresses of malloc: its n-th call of a size returns an address that lies among the
  /// others as that of the n-th range of this size does. Other calls get addresses above.
  /// Requires: nothing was allocated.
  void plan_addresses(const std::vector<AddressRange>& mallocs);
  /// Replaces the plan of faults; calls are counted from now on.
  void set_faults(const std::vector<Fault>& faults);
  /// Returns how many calls have failed by the plans so far.
  std::uint64_t faults_injected() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// A HazardError reports a stream hazard that a SimulatedDevice with Config::check_hazards found.
/// Its message names both parties.
///
/// The program reports what its allocator returned, by handed_out after each allocation, and what
/// it gives back, by given_back before each deallocation. HazardError is thrown
/// - by handed_out, for memory with a use (a launch) that is not ordered before the stream that
///   gets the memory, for memory that overlaps a live handout, and for memory that is not
///   accessible;
/// - by free and unmap, for memory that is handed out;
/// - by unmap, for a page whose last use through that mapping the host has not seen finish;
/// - by given_back, for memory that is not handed out.
///
/// Memory is the same through all its addresses. A use is ordered before a stream if it is earlier
/// on the same stream, before an event that the stream has waited for, or seen finished by the
/// host: by a query, a synchronization or a free, not by the mere passing of time. Uses within one
/// handout are not compared with each other.
class HazardError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

CACHALOT_END_API
