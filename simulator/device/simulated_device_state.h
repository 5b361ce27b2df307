// The state of a simulated device, and the steps that its calls share.
//
// `mutex` guards all of it. Each call of SimulatedDevice: lock, begin in the book, check, do, succeed.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "base/locks.h"
#include "cachalot/simulated_device.h"
#include "simulator/device/hazard_checker.h"
#include "simulator/device/ipc_registry.h"
#include "simulator/device/simulated_memory.h"
#include "simulator/device/simulated_streams.h"

CACHALOT_BEGIN

// The common part of every call to the simulated device, before its own work: it is counted, takes its latency on the
// virtual clock, is logged, and may fail because the fault plan says so. Not thread-safe; the device's mutex guards it.

// The function of the CUDA driver behind a call: "cuMemAlloc", "cuMemMap", …
const char* cuda_name(DeviceCall call);

class CallBook {
 public:
  CallBook(const LatencyModel& latency, bool log_calls);

  enum class Outcome : std::uint8_t { proceed, out_of_memory };

  // Begins a call. Afterwards the clock stands at the call's end: a call takes effect there. Throws CudaError for an
  // injected fault; out_of_memory only for malloc, malloc_managed, malloc_async, create, reserve and host_malloc.
  Outcome begin(DeviceCall call, std::uint64_t argument = 0, std::uint64_t bytes = 0) {
    const auto kind = static_cast<std::size_t>(call);
    const std::int64_t latency_ns = call_ns_[kind] + (ns_per_byte_[kind] > 0 ? size_ns(kind, bytes) : 0);
    ++counts_[kind];
    driver_ns_ += latency_ns;
    if (log_calls_) [[unlikely]]
      log_.push_back({call, argument, bytes, true, clock_ns_});
    clock_ns_ += latency_ns;
    return faults_.empty() ? Outcome::proceed : injected(call);
  }

  // The call begun last takes longer, by what it was found to do.
  void takes(double us) {
    const std::int64_t more_ns = std::llround(us * 1000);
    driver_ns_ += more_ns;
    clock_ns_ += more_ns;
  }
  // The call begun last has worked. Without it the log says that it failed.
  void succeeded() {
    if (log_calls_) [[unlikely]]
      log_.back().failed = false;
  }
  // Ends a call whose argument is known only at the end (the address malloc returns).
  void succeeded(std::uint64_t argument) {
    succeeded();
    if (log_calls_) [[unlikely]]
      log_.back().argument = argument;
  }

  std::int64_t clock_ns() const { return clock_ns_; }
  void advance(std::int64_t ns) { clock_ns_ += ns; }
  void wait_until(std::int64_t ns) {
    if (ns > clock_ns_) clock_ns_ = ns;
  }

  std::uint64_t count(DeviceCall call) const { return counts_[static_cast<std::size_t>(call)]; }
  double driver_us() const { return static_cast<double>(driver_ns_) / 1000; }
  std::vector<LoggedCall> take_log();
  void set_faults(std::span<const Fault> faults);
  std::uint64_t faults_injected() const { return faults_injected_; }

 private:
  struct PlannedFault {
    Fault fault;
    std::uint64_t seen = 0;  // calls it could have failed so far
    bool strikes(DeviceCall call);
  };

  std::int64_t size_ns(std::size_t kind, std::uint64_t bytes) const;
  Outcome injected(DeviceCall call);

  std::array<std::int64_t, kDeviceCallCount> call_ns_{};
  std::array<double, kDeviceCallCount> ns_per_byte_{};
  bool log_calls_;
  std::int64_t clock_ns_ = 0;
  std::int64_t driver_ns_ = 0;
  std::array<std::uint64_t, kDeviceCallCount> counts_{};
  std::vector<LoggedCall> log_;
  std::vector<PlannedFault> faults_;
  std::uint64_t faults_injected_ = 0;
};

class SimulatedDevice::Impl {
 public:
  using Outcome = CallBook::Outcome;
  // An imported export may be open several times; CUDA gives the same address each time.
  struct Import {
    ExportedMemory memory;
    std::size_t openings = 0;
  };

  explicit Impl(const Config& settings);
  ~Impl() { withdraw_exports(exporter); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Calls a function of the book, the memory or the streams with the mutex held.
  template <typename Part, typename Function, typename... Arguments>
  auto locked(Function Part::*function, const Arguments&... arguments) {
    const Lock lock(mutex);
    return (std::get<Part&>(std::tie(book, memory, streams)).*function)(arguments...);
  }

  // Begins a call of the virtual-memory family.
  Outcome begin_virtual(DeviceCall call, std::uint64_t argument, std::uint64_t bytes = 0) CACHALOT_REQUIRES(mutex);

  void wait_for_all_work() CACHALOT_REQUIRES(mutex);

  // The stream that the call works on, behind those that it waits for implicitly.
  SimulatedStream& stream_in_order(const char* call, Stream name) CACHALOT_REQUIRES(mutex);

  // Mapping may wait for the device, but nothing promises it: the checker does not count on it.
  void wait_for_mapping() CACHALOT_REQUIRES(mutex);

  // Notes what follows for the host from finding this event done.
  void saw(const SimulatedEvent& event) CACHALOT_REQUIRES(mutex);

  void forget_freed_memory() CACHALOT_REQUIRES(mutex);

  void free(Address address, bool waits) CACHALOT_REQUIRES(mutex);
  // Memory of free_async whose streams have come so far by now is free; or all, which the host then waits for.
  void settle_async_frees(bool wait) CACHALOT_REQUIRES(mutex);

  // Returns the places of the range; empty if a byte of it is not accessible.
  const std::vector<MemoryPiece>& locate(Address address, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Begins a copy, which waits for nothing, of accessible memory.
  void begin_copy(DeviceCall call, Address address, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Queues what launch_copy queues.
  std::int64_t queue_copy(SimulatedStream& stream, const HostCopy& copy, const std::vector<AddressRange>& ranges)
      CACHALOT_REQUIRES(mutex);

  // Both require accessible memory.
  void read_content(std::byte* to, Address from, std::size_t bytes) CACHALOT_REQUIRES(mutex);
  void write_content(Address to, const std::byte* from, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Copies at once: the content may not be read before the stream has reached this point.
  void move_content(CopyKind kind, Address to, Address from, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  void require_accessible(const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex);

  void note_uses(Stream stream, const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex);

  void wait_for_stream(SimulatedStream& stream) CACHALOT_REQUIRES(mutex);

  // The host's part before a copy from pageable memory is queued: it buffers a small one, or waits for the stream.
  void stage(SimulatedStream& stream, const HostCopy& copy) CACHALOT_REQUIRES(mutex);

  // And after: the bytes to the host must all be there; of those to the device the last may still be in the buffer.
  void wait_for_pageable(SimulatedStream& stream, const HostCopy& copy) CACHALOT_REQUIRES(mutex);

  std::map<Address, Import>::iterator find_import(const ExportedMemory& exported) CACHALOT_REQUIRES(mutex);

  // Memory that is free once the clock says so.
  struct AsyncFree {
    Address address;
    std::int64_t ready_ns;
  };

  const Config config;
  const std::uint64_t exporter = next_exporter();
  mutable Mutex mutex;
  CallBook book CACHALOT_GUARDED_BY(mutex);
  SimulatedMemory memory CACHALOT_GUARDED_BY(mutex);
  SimulatedContent content CACHALOT_GUARDED_BY(mutex);
  SimulatedHostMemory host_memory CACHALOT_GUARDED_BY(mutex);
  SimulatedStreams streams CACHALOT_GUARDED_BY(mutex);
  std::unique_ptr<HazardChecker> checker CACHALOT_GUARDED_BY(mutex);
  std::map<Address, Import> imports CACHALOT_GUARDED_BY(mutex);
  bool has_exported CACHALOT_GUARDED_BY(mutex) = false;
  std::set<int> peers CACHALOT_GUARDED_BY(mutex);
  std::vector<AsyncFree> async_frees CACHALOT_GUARDED_BY(mutex);
  std::vector<MemoryPiece> pieces CACHALOT_GUARDED_BY(mutex);  // kept, so that locate allocates nothing
};

CACHALOT_END
