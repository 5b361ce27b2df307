// A GPU nobody needs to own: memory, address space, streams, events and capture of one CUDA device, on a virtual clock.
//
// What is modelled: capacity in 2 MiB units; addresses that ascend and are not used twice, until the process has used up
// all there are; the driver's virtual-memory rules; streams with pending work; events that are not ready until the clock
// has passed the work before them; copies over the bus (CopyModel); graph-capture rules; the latency of each call
// (LatencyModel); failures on demand (FaultPlan); a log of calls; and, when switched on, a checker of stream hazards.
// Memory holds what copy_from_host and fill brought, at once, until it is released, else zeros; addresses must not be
// dereferenced.
// Streams do not wait for the legacy default stream; stream nullptr is just one more stream.
//
// Host time: every call advances the clock by its latency and takes effect then; calls that wait advance it to the end
// of the work they wait for. A launch advances nothing.
// A rule broken (unknown address, handle mapped in part, work on an unmapped page …) throws CudaError with the code
// the driver gives. Thread safety: any method from any thread; one mutex inside.
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

namespace cachalot {

// Kinds of calls, for latencies, counts, faults and the log.
enum class DeviceCall : std::uint8_t {
  malloc,
  free,
  reserve,
  unreserve,
  create,
  release,
  map,
  unmap,
  set_access,
  host_malloc,
  host_free,
  copy_to_host,
  copy_from_host,
  fill,
  event_create,
  event_destroy,
  event_record,
  event_query,
  event_synchronize,
  stream_wait,
  capture_status,
  synchronize,
  memory_info,
  ipc_export,
  ipc_import,
  ipc_close,
  export_handle,
  import_handle,
  enable_peer_access,
  kCount,
};
inline constexpr std::size_t kDeviceCallCount = static_cast<std::size_t>(DeviceCall::kCount);
const char* to_string(DeviceCall call);  // "malloc", "set_access", …

// Host microseconds a call takes, and what it takes more for each MiB.
struct LatencyModel {
  std::array<double, kDeviceCallCount> call_us{};
  std::array<double, kDeviceCallCount> call_us_per_mib{};
  double operator[](DeviceCall call) const { return call_us[static_cast<std::size_t>(call)]; }
  double per_mib(DeviceCall call) const { return call_us_per_mib[static_cast<std::size_t>(call)]; }

  static LatencyModel published();  // the default: published or reported figures; sources in latency_model.cpp
  static LatencyModel none();       // every call takes no time
};

enum class CopyDirection : std::uint8_t { to_device, to_host };

// A copy between host and device, over the bus.
struct HostCopy {
  CopyDirection direction = CopyDirection::to_device;
  std::size_t bytes = 0;
  bool pinned = false;  // the host's memory
};

// What copies over the bus cost that are queued on streams. Pinned memory the device reaches by itself. Pageable memory is
// copied through a pinned buffer of the driver's, by the host, who therefore waits.
struct CopyModel {
  double setup_us = 0;  // of each copy on its engine
  double pinned_us_per_mib = 0;
  double pageable_us_per_mib = 0;  // the way through the driver's buffer as a whole
  std::size_t staged_bytes =
      0;  // that buffer: what fits in is taken from pageable memory without a wait for the stream

  static CopyModel published();           // the default; sources in copy_model.cpp
  static CopyModel none() { return {}; }  // every copy takes no time

  std::int64_t bytes_ns(std::size_t bytes, bool pinned) const;  // moving the bytes, without the setup
  std::int64_t engine_ns(const HostCopy& copy) const;           // how long the copy has its engine to itself
};

// Makes the n-th call of a kind fail. Counts start when the plan is set. A failing call changes nothing.
struct Fault {
  std::optional<DeviceCall> call = std::nullopt;  // empty: any call
  std::uint64_t nth = 1;                          // 1: the next one
  bool out_of_memory = true;  // no memory from malloc, create, reserve, host_malloc; others throw …MemoryAllocation
  int code = 2;               // otherwise: the CudaError's code
  bool repeat = false;        // the n-th and every later one
};

struct LoggedCall {
  DeviceCall call;
  std::uint64_t argument = 0;  // address, handle or event
  std::uint64_t bytes = 0;     // where the call has a size
  bool failed = false;
  std::int64_t clock_ns = 0;  // when it began
};

// The allocation or mapping that holds an address.
struct MemoryAt {
  AddressRange range;          // all of it; for malloc, the bytes asked for
  MemoryHandle handle = 0;     // mapped there; 0: memory of malloc or of ipc_import
  bool accessible = false;     // false: mapped, but set_access was not called
  std::uint64_t peers = 0;     // bit i: device i may use it, too
  std::uint64_t physical = 0;  // number of the byte at the address asked about: the same byte, wherever it is mapped
  std::uint64_t mapping = 0;   // number of the mapping; never used again
};

struct HandleInfo {
  std::size_t bytes = 0;
  std::uint64_t physical = 0;  // number of the first byte
};

class SimulatedDevice final : public Device {
 public:
  struct Config {
    int index = 0;
    std::size_t memory_bytes = std::size_t{200000} << 20;
    LatencyModel latency = LatencyModel::published();
    CopyModel copies = CopyModel::published();
    bool virtual_memory = true;
    bool completion_hints = true;  // false: completion_hint is nullopt, as on a GPU without 64-bit stream writes
    bool check_hazards = false;
    bool log_calls = false;
    // false: the owner knows CUDA's other capture modes and says by refuse_while_capturing what is not allowed.
    bool captures_refuse = true;
    // Called, under the device's lock, when memory is given back for good: the physical numbers that are no more.
    std::function<void(std::uint64_t first, std::size_t bytes)> memory_freed = nullptr;
    std::string name = "Simulated GPU";
  };
  explicit SimulatedDevice(const Config& config);
  SimulatedDevice();
  ~SimulatedDevice() override;

  // Device. Every live device has address ranges of its own, so that addresses are unique in the process; 47 bits of
  // them are shared by all. For ipc_import each SimulatedDevice is a process of its own: a handle can be opened by
  // every device but the one that made it. import_handle opens what any SimulatedDevice of the process exported.
  int index() const override;
  DeviceProperties properties() const override;
  MemoryInfo memory_info() override;
  std::optional<Address> malloc(std::size_t bytes) override;
  void free(Address address) override;
  void free_without_waiting(Address address);  // as a stream-ordered pool gives back what no work uses any more
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
  std::int64_t clock_us() override;

  // cudaDeviceReset, as a program may call it behind its allocators' back: waits for all work; then memory, addresses,
  // handles, events, captures, pinned host memory and peers' access are gone, and calls that name them fail as for any that
  // never were.
  void reset();

  // Physical memory shared by its handle. retain: `release` must be called once more. adopt: memory of another process,
  // to be mapped and released as our own, but not on our account.
  void retain(MemoryHandle handle);
  MemoryHandle adopt(std::size_t bytes);
  HandleInfo handle_info(MemoryHandle handle) const;

  // Work, as a program would launch it. Streams need no creation: any pointer value names one; stream() hands out
  // fresh ones. launch queues work of `duration_ns` that uses the ranges; CudaError 700 if a byte of them is not
  // accessible memory. On a capturing stream it joins the graph: nothing is queued and it is no use of its memory.
  // Returns when all work queued on the stream will be done. stream_destroy forgets the stream: its work still runs, a
  // capture that it began ends, any other capture it takes part in is spoilt, and the name is free for a fresh stream.
  Stream stream();
  std::int64_t launch(Stream stream, std::int64_t duration_ns, const std::vector<AddressRange>& ranges = {});
  // A copy between host memory and `ranges`, as work of the stream: it needs the engine of its direction, of which there
  // is one, and moves no bytes (copy_to_host and copy_from_host do). The host goes on at once if its memory is pinned;
  // else it waits: to_host until the copy is done; to_device, for what is larger than CopyModel::staged_bytes, for the
  // stream and until the last of it is in the driver's buffer. On a capturing stream nothing is queued and nobody waits.
  std::int64_t launch_copy(Stream stream, const HostCopy& copy, const std::vector<AddressRange>& ranges = {});
  void stream_destroy(Stream stream);
  void stream_synchronize(Stream stream);
  bool stream_query(Stream stream);  // true when all work queued on it is done
  // Time passes on the host.
  void advance(std::int64_t ns);
  void advance_to(std::int64_t clock_ns);  // nothing happens if it is past
  std::int64_t clock_ns() const;

  // Times on the clock, for programs with several devices: when the work ends that is queued on the stream, when the
  // work that the event marks ends (0: never recorded), and a wait for such a time on another device.
  std::int64_t stream_ready_ns(Stream stream);
  std::int64_t event_done_ns(Event event);
  void stream_wait_until(Stream stream, std::int64_t ns);

  // Stream capture in CUDA's global mode: until end_capture nobody may query an event, synchronize anything or free;
  // who does gets CudaError 900 (907 for an event of the capture), and end_capture then throws 901: the capture is
  // spoilt. An event recorded on a capturing stream belongs to the graph; another stream that waits for it joins the
  // capture. begin_capture returns the capture's id.
  std::uint64_t begin_capture(Stream stream);
  void end_capture(Stream stream);
  bool is_capture_spoilt(Stream stream) const;  // false when the stream does not capture
  // If a stream captures: throws CudaError 900 in the name of `call` and spoils every capture.
  void refuse_while_capturing(const char* call);

  // Hazards. The allocator's owner says what it was handed, after the allocation, and what it gives back, before the
  // deallocation. The checker reports, by throwing HazardError:
  //   from handed_out, memory with a use (a launch) that is not ordered before the stream that gets it, memory that
  //     overlaps a live handout, and memory that is not accessible;
  //   from free and unmap, memory that is handed out;
  //   from unmap, a page whose last use through that mapping the host has not seen finish;
  //   from given_back, memory that is not handed out.
  // Memory is the same through all its addresses. Ordered before means: earlier on the same stream, before an event
  // that the stream has waited for, or seen finished by the host (by a query, a synchronization or a free, not by the
  // mere passing of time). Uses within one handout are not held against each other. The message names both parties.
  // No-ops for a null address, and unless Config::check_hazards.
  void handed_out(Address address, std::size_t bytes, Stream stream);
  void given_back(Address address);

  // Observation.
  std::uint64_t count(DeviceCall call) const;
  double driver_us() const;        // sum of the latencies of all calls, without waiting
  std::size_t used_bytes() const;  // physical memory in use, in 2 MiB units
  std::size_t peak_used_bytes() const;
  std::size_t live_mappings() const;
  std::optional<MemoryAt> memory_at(Address address) const;
  bool may_access(int peer) const;     // enable_peer_access was called for it
  std::vector<LoggedCall> take_log();  // and empties it

  void set_faults(std::vector<Fault> faults);  // replaces the plan
  std::uint64_t faults_injected() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A stream hazard found by the simulated device's checker.
class HazardError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

}  // namespace cachalot
