// The whole simulated CUDA of one process: the owners of its devices and of everything the program made on them.
//
// Made at the first call and never destroyed, so that calls from static destructors find it. A forked child has none:
// its calls get cudaErrorInitializationError, as with the real runtime.
//
// Locks, in the order in which a thread takes them:
//   1. `making`, in Process::get, while the process is made.
//   2. process_mutex (lock.h), in each call of the program, in the thread of host functions and around a fork. It guards
//      all owners. Waits for host functions let it go (launches.h).
//   3. The lock of a SimulatedDevice.
//   4. One of these at a time, for a look-up: that of exports (device/ipc_registry.cpp), of variables, of fat binaries,
//      of notes.
#pragma once

#include <atomic>
#include <cstdint>

#include "simulator/base/lock.h"
#include "simulator/base/report.h"
#include "simulator/base/watch.h"
#include "simulator/models/config.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/captures.h"
#include "simulator/state/content.h"
#include "simulator/state/copies.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/devices.h"
#include "simulator/state/graphs.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/launches.h"
#include "simulator/state/pools.h"
#include "simulator/state/program_allocations.h"
#include "simulator/state/program_events.h"
#include "simulator/state/streams.h"
#include "simulator/state/use_checks.h"
#include "simulator/state/virtual_memory.h"

namespace cachalot::simulator {

class Process {
 public:
  // Null, with the error that calls must return, in a forked child and when CACHALOT_SIM is bad.
  static Process* get(cudaError_t& error) {
    Process* process = instance.load(std::memory_order_acquire);
    return process ? process : make(error);
  }

  static bool exists() { return instance.load(std::memory_order_acquire) != nullptr; }

  const Config& config() const { return config_; }

  // The owners. The caller holds the lock, as all do that are handed a process: the bodies of calls (calls.h).
  Watch& watch() CACHALOT_KNOWN_LOCKED { return watch_; }
  HostMemory& host_memory() CACHALOT_KNOWN_LOCKED { return host_memory_; }
  Graphs& graphs() CACHALOT_KNOWN_LOCKED { return graphs_; }
  Devices& devices() CACHALOT_KNOWN_LOCKED { return devices_; }
  Contexts& contexts() CACHALOT_KNOWN_LOCKED { return contexts_; }
  Captures& captures() CACHALOT_KNOWN_LOCKED { return captures_; }
  Streams& streams() CACHALOT_KNOWN_LOCKED { return streams_; }
  ImplicitOrder& implicit_order() CACHALOT_KNOWN_LOCKED { return implicit_order_; }
  Events& events() CACHALOT_KNOWN_LOCKED { return events_; }
  UseChecks& uses() CACHALOT_KNOWN_LOCKED { return use_checks_; }
  Copies& copies() CACHALOT_KNOWN_LOCKED { return copies_; }
  StreamWrites& writes() CACHALOT_KNOWN_LOCKED { return writes_; }
  HostFunctions& host_functions() CACHALOT_KNOWN_LOCKED { return host_functions_; }
  Allocations& allocations() CACHALOT_KNOWN_LOCKED { return allocations_; }
  Pools& pools() CACHALOT_KNOWN_LOCKED { return pools_; }
  Launches& launches() CACHALOT_KNOWN_LOCKED { return launches_; }
  Waits& waits() CACHALOT_KNOWN_LOCKED { return waits_; }
  VirtualMemory& virtual_memory() CACHALOT_KNOWN_LOCKED { return virtual_memory_; }
  IpcMemory& ipc() CACHALOT_KNOWN_LOCKED { return ipc_; }

  // Everything of the device's primary context goes, at once: memory, pinned memory, streams, events, pools.
  void reset(DeviceState& device) CACHALOT_KNOWN_LOCKED;
  // A context beside the primary one, for cuCtxCreate. Its streams and events go with it; its memory is the device's.
  CUcontext create_context(DeviceState& device) CACHALOT_KNOWN_LOCKED;
  void destroy_context(const char* call, CUcontext handle) CACHALOT_KNOWN_LOCKED;

  // Ends a call: what streams had to do by now is done, and the log is written.
  cudaError_t settle() CACHALOT_LOCKED { return writes_.are_pending() || report_.logs() ? settle_now() : cudaSuccess; }

  // The thread's streams go with it.
  static void thread_ends(std::uint64_t number);
  // Writes the report: when the process ends, of which only the first call does something, or until then the one so far.
  static void write_report(bool is_final);

 private:
  explicit Process(const Config& config);
  static Process* make(cudaError_t& error);
  static void before_fork() CACHALOT_NO_THREAD_SAFETY_ANALYSIS;
  static void after_fork() CACHALOT_NO_THREAD_SAFETY_ANALYSIS;
  cudaError_t settle_now() CACHALOT_LOCKED;
  void write_log() CACHALOT_LOCKED;
  void note_context(const DeviceState& device) CACHALOT_LOCKED;
  std::vector<const SimulatedDevice*> noted_devices() CACHALOT_LOCKED;

  static std::atomic<Process*> instance;

  // Each knows only those above it.
  const Config config_;
  Report report_ CACHALOT_UNDER_LOCK;
  Watch watch_ CACHALOT_UNDER_LOCK;
  ContentStore content_ CACHALOT_UNDER_LOCK;
  HostMemory host_memory_ CACHALOT_UNDER_LOCK;
  LaunchOrder launch_order_ CACHALOT_UNDER_LOCK;
  Devices devices_;
  Graphs graphs_ CACHALOT_UNDER_LOCK;
  Contexts contexts_;
  Captures captures_;
  Streams streams_;
  ImplicitOrder implicit_order_;
  Events events_;
  UseChecks use_checks_;
  Copies copies_;
  StreamWrites writes_;
  HostFunctions host_functions_;
  Allocations allocations_;
  Pools pools_;
  Launches launches_;
  Waits waits_;
  VirtualMemory virtual_memory_;
  IpcMemory ipc_;
};

}  // namespace cachalot::simulator
