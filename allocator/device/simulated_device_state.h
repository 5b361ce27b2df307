// The state of a simulated device, and the steps that its calls share.
//
// `mutex` guards all of it. Each call of SimulatedDevice: lock, begin in the book, check, do, succeed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/locks.h"
#include "cachalot/simulated_device.h"
#include "device/call_book.h"
#include "device/hazard_checker.h"
#include "device/ipc_registry.h"
#include "device/simulated_memory.h"
#include "device/simulated_streams.h"

CACHALOT_BEGIN

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

  // Begins a call of the virtual-memory family.
  Outcome begin_virtual(DeviceCall call, std::uint64_t argument, std::uint64_t bytes = 0) CACHALOT_REQUIRES(mutex);

  void wait_for_all_work() CACHALOT_REQUIRES(mutex);

  // The stream that the call works on, behind those that it waits for implicitly.
  SimulatedStream& stream_in_order(const char* call, Stream name) CACHALOT_REQUIRES(mutex);

  // Mapping may wait for the device, but nothing promises it: the checker does not count on it.
  void wait_for_mapping() CACHALOT_REQUIRES(mutex);

  // What the host learns when it finds this event done.
  void saw(const SimulatedEvent& event) CACHALOT_REQUIRES(mutex);

  void forget_freed_memory() CACHALOT_REQUIRES(mutex);

  void free(Address address, bool waits) CACHALOT_REQUIRES(mutex);
  // Memory of free_async whose streams have come so far by now is free; or all, which the host then waits for.
  void settle_async_frees(bool wait) CACHALOT_REQUIRES(mutex);

  // Where the range is; empty if a byte of it is not accessible.
  const std::vector<MemoryPiece>& locate(Address address, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Begins a copy, which waits for nothing, of accessible memory.
  void begin_copy(DeviceCall call, Address address, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Queues what launch_copy queues.
  std::int64_t queue_copy(SimulatedStream& stream, const HostCopy& copy, const std::vector<AddressRange>& ranges)
      CACHALOT_REQUIRES(mutex);

  // Of accessible memory.
  void read_content(std::byte* to, Address from, std::size_t bytes) CACHALOT_REQUIRES(mutex);
  void write_content(Address to, const std::byte* from, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  // Does what a copy does, at once: nobody may look before the stream is there.
  void move_content(CopyKind kind, Address to, Address from, std::size_t bytes) CACHALOT_REQUIRES(mutex);

  void require_accessible(const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex);

  void note_uses(Stream stream, const std::vector<AddressRange>& ranges) CACHALOT_REQUIRES(mutex);

  void wait_for_stream(SimulatedStream& stream) CACHALOT_REQUIRES(mutex);

  // What the host does before a copy from pageable memory is queued: it puts a small one aside, or waits for the
  // stream.
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
