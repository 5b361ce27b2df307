// The devices, the addresses of their memory, and the time, which all of them share; and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/base/lock.h"
#include "simulator/base/registry.h"
#include "simulator/device/vector_clock.h"
#include "simulator/models/config.h"
#include "simulator/models/context_costs.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/models/shared_memory.h"
#include "simulator/state/content.h"
#include "simulator/state/stream_state.h"

namespace cachalot::simulator {

// cudaDeviceGetLimit and cudaDeviceSetLimit: numbers that are kept. For some of them the driver holds memory.
class Limits {
 public:
  cudaError_t get(cudaLimit limit, std::size_t& value) const {
    const auto at = values_.find(limit);
    if (at == values_.end()) return cudaErrorUnsupportedLimit;
    value = at->second;
    return cudaSuccess;
  }
  cudaError_t set(cudaLimit limit, std::size_t value) {
    const auto at = values_.find(limit);
    if (at == values_.end()) return cudaErrorUnsupportedLimit;
    at->second = value;
    return cudaSuccess;
  }
  MemoryLimits of_memory() const {
    return {values_.at(cudaLimitStackSize), values_.at(cudaLimitMallocHeapSize), values_.at(cudaLimitPrintfFifoSize)};
  }

 private:
  // The driver's defaults.
  std::map<cudaLimit, std::size_t> values_{{cudaLimitStackSize, MemoryLimits{}.stack_bytes},
                                           {cudaLimitPrintfFifoSize, MemoryLimits{}.printf_bytes},
                                           {cudaLimitMallocHeapSize, MemoryLimits{}.heap_bytes},
                                           {cudaLimitDevRuntimeSyncDepth, 2},
                                           {cudaLimitDevRuntimePendingLaunchCount, 2048},
                                           {cudaLimitMaxL2FetchGranularity, 64},
                                           {cudaLimitPersistingL2CacheSize, 0}};
};

struct MemoryPool;

struct DeviceState {
  int ordinal = 0;         // in this process
  int machine_number = 0;  // Config::machine_number
  std::unique_ptr<SimulatedDevice> simulated;
  bool active = false;         // its primary context exists
  std::uint64_t contexts = 0;  // the number of contexts made
  unsigned long long resets = 0;
  unsigned int flags = 0;
  StreamState legacy_stream;
  VectorClock before_destroyed;    // the work before the end of blocking streams that were destroyed
  std::size_t host_functions = 0;  // queued and not yet returned
  std::vector<bool> peers;         // access to them was enabled
  MemoryPool* default_pool = nullptr;
  MemoryPool* pool = nullptr;
  ContextCosts costs;    // of the context and of each library
  ContextCharge charge;  // those that the device was charged with
  const GpuModel* gpu = nullptr;
  Limits limits;
  std::size_t limit_bytes = 0;  // held for them
  GraphCount graphs;
  std::size_t graph_bytes = 0;  // held for them

  // Makes the primary context, unless it exists. Throws cudaErrorMemoryAllocation if there is no memory for it.
  void make_context() {
    if (!active) make_new_context();
  }
  // Makes the context, and charges the device for a library that gets a handle.
  void make_library(ContextLibrary library);
  // Requires that there is a context. The driver holds memory for some limits, if the context costs memory. Throws
  // cudaErrorMemoryAllocation if there is none for it; then the limit stays.
  cudaError_t set_limit(cudaLimit limit, std::size_t value);
  // An executable graph was made: the driver holds memory for its kernels, if the context costs memory. Throws
  // cudaErrorMemoryAllocation if there is none for it, and then changes nothing.
  void add_graph(std::size_t kernel_nodes);
  void remove_graph(std::size_t kernel_nodes);
  // After a reset of the device, which has given everything back: as before the first context.
  void forget_context();
  // Requires that there is no primary context.
  void make_new_context();
};

class Devices {
 public:
  // Throws InvalidArgument if the system refuses to reserve the addresses. `content` is notified of memory that is
  // freed.
  Devices(const Config& config, ContentStore& content);

  int count() const CACHALOT_LOCKED { return static_cast<int>(devices_.size()); }
  // Throws cudaErrorInvalidDevice.
  DeviceState& at(int ordinal) CACHALOT_LOCKED;

  // Returns the other processes of the run that have memory of the device, by its number on the machine.
  std::vector<DeviceUser> others_on(int physical_device) const {
    return shared_ ? shared_->others(physical_device) : std::vector<DeviceUser>();
  }

  // Returns the device after its clock has caught up with the host's time.
  SimulatedDevice& on_clock(DeviceState& device) CACHALOT_LOCKED;
  SimulatedDevice& on_clock(int ordinal) CACHALOT_LOCKED { return on_clock(at(ordinal)); }

  std::int64_t clock_ns() const CACHALOT_LOCKED { return on_clock_->simulated->clock_ns(); }
  void advance(std::int64_t ns) CACHALOT_LOCKED { on_clock_->simulated->advance(ns); }
  void advance_to(std::int64_t ns) CACHALOT_LOCKED { on_clock_->simulated->advance_to(ns); }

  // Returns whether the address is one of the devices', with or without memory.
  bool hold(const void* address) const {
    return reinterpret_cast<Address>(address) - reserved_.address < reserved_.bytes;
  }
  // Both return the device with memory at the address. If there is none, `owner` throws cudaErrorInvalidValue.
  DeviceState& owner(const char* call, Address address) CACHALOT_LOCKED;
  DeviceState* find_owner(Address address) CACHALOT_LOCKED;

 private:
  std::unique_ptr<DeviceState> make(const Config& config, int ordinal, ContentStore& content);

  const std::unique_ptr<SharedMemory> shared_;  // null: no other process uses the devices
  const AddressRange reserved_;                 // nothing else of the process gets these addresses
  std::vector<std::unique_ptr<DeviceState>> devices_ CACHALOT_UNDER_LOCK;
  DeviceState* on_clock_ CACHALOT_UNDER_LOCK = nullptr;  // the device used last: its clock is the host's time
};

struct Context {
  int device = 0;
  unsigned long long id = 0;
  StreamState* default_stream = nullptr;
  VectorClock before_destroyed;         // the work before the end of blocking streams that were destroyed
  std::int64_t destroyed_ready_ns = 0;  // the end of their work
};

// Contexts: the current one of each thread, and those that a program makes beside its devices' primary ones. The
// handle of a primary one is its device's state.
class Contexts {
 public:
  Contexts(const Config& config, Devices& devices) : config_(config), devices_(devices) {}

  // Returns the thread's device, and makes its primary context, as every call does that needs a device.
  DeviceState& current() CACHALOT_LOCKED;
  // Returns the thread's current context; null if that is a primary one, or there is none. Throws 709 if it was destroyed.
  Context* own() CACHALOT_LOCKED;
  // Throws cudaErrorDeviceUninitialized (the driver's CUDA_ERROR_INVALID_CONTEXT) if the thread has no current
  // context and the user's choice is this rule, or a stricter one.
  void require(const char* call, ContextRule rule) const;

  // Both find no primary context. `find` returns null then, and `at` throws cudaErrorInvalidResourceHandle.
  Context* find(CUcontext handle) CACHALOT_LOCKED { return contexts_.find(handle); }
  Context& at(const char* call, CUcontext handle) CACHALOT_LOCKED { return contexts_.at(call, handle); }
  static CUcontext handle(const Context& context) { return Registry<Context, CUcontext>::handle(context); }

  // Makes a context that has no default stream yet.
  Context& make(const DeviceState& device) CACHALOT_LOCKED;
  void destroy(Context& context) CACHALOT_LOCKED { contexts_.destroy(context); }
  void destroy_all(const DeviceState& device) CACHALOT_LOCKED;

  // Both return what belongs to the stream's context.
  StreamState& legacy_stream_of(const StreamState& stream) CACHALOT_LOCKED;
  VectorClock& before_destroyed_of(const StreamState& stream) CACHALOT_LOCKED;

 private:
  const Config& config_;
  Devices& devices_;
  Registry<Context, CUcontext> contexts_ CACHALOT_UNDER_LOCK;
  unsigned long long made_ CACHALOT_UNDER_LOCK = 0;
};

}  // namespace cachalot::simulator
