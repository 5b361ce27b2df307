// The whole simulated CUDA of one process: its devices and everything the program made on them.
//
// Made at the first call and never destroyed, so that calls from static destructors find it. A forked child has none:
// its calls get cudaErrorInitializationError, as with the real runtime.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "cachalot/simulated_device.h"
#include "device/ipc_registry.h"
#include "simulator/config.h"
#include "simulator/content.h"
#include "simulator/contexts.h"
#include "simulator/graphs.h"
#include "simulator/handle_rules.h"
#include "simulator/host_memory.h"
#include "simulator/limits.h"
#include "simulator/pools.h"
#include "simulator/registry.h"
#include "simulator/report.h"
#include "simulator/streams.h"
#include "simulator/thread_state.h"
#include "simulator/variables.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

struct DeviceState {
  int ordinal = 0;
  std::unique_ptr<SimulatedDevice> simulated;
  bool active = false;         // its primary context exists
  std::uint64_t contexts = 0;  // how often that was made
  unsigned long long resets = 0;
  unsigned int flags = 0;
  StreamState legacy_stream;
  VectorClock before_destroyed;    // what comes before the end of blocking streams that were destroyed
  std::size_t host_functions = 0;  // queued and not yet returned
  std::vector<bool> peers;         // access to them was enabled
  MemoryPool* default_pool = nullptr;
  MemoryPool* pool = nullptr;
};

class Process {
 public:
  // Null, with the error that calls must return, in a forked child and when a CACHALOT_SIM_ variable is bad.
  static Process* get(cudaError_t& error) {
    Process* process = instance.load(std::memory_order_acquire);
    return process ? process : make(error);
  }

  Mutex mutex;
  const Config config;

  // Devices. `device` throws cudaErrorInvalidDevice. `current` makes the primary context, as every call that needs a
  // device does.
  int device_count() const { return static_cast<int>(devices_.size()); }
  DeviceState& device(int ordinal);
  DeviceState& current();
  // Everything of the device's primary context goes, at once: memory, pinned memory, streams, events, pools.
  void reset(DeviceState& device);
  // Makes the device's primary context, unless it exists.
  static void make_context(DeviceState& device);
  // A context beside the primary one, for cuCtxCreate. Its streams and events go with it; its memory is the device's.
  CUcontext create_context(DeviceState& device);
  void destroy_context(const char* call, CUcontext handle);
  // The thread's current one; null: it is the primary one, or there is none. Throws 709 if it was destroyed.
  Context* own_context();
  // Throws cudaErrorDeviceUninitialized (the driver's CUDA_ERROR_INVALID_CONTEXT) if the thread has no current context and
  // the user's choice is this rule, or a stricter one.
  void require_context(const char* call, ContextRule rule) const;
  SimulatedDevice& simulated(int ordinal) { return on_clock(device(ordinal)); }
  // The device whose memory this is an address of; throws cudaErrorInvalidValue when there is none.
  DeviceState& owner(const char* call, Address address);
  DeviceState* find_owner(Address address);

  // Streams and events.
  StreamState& stream(const char* call, cudaStream_t handle);
  StreamState& create_stream(unsigned int flags, int priority);
  // Throws cudaErrorInvalidResourceHandle where the stream is not of the current device, as kernels must be.
  void require_current_device(const char* call, const StreamState& stream) const;
  // The thread's streams go with it.
  static void thread_ends(std::uint64_t number);
  void destroy_stream(StreamState& stream);
  EventState& event(const char* call, cudaEvent_t handle) { return events_.at(call, handle); }
  EventState& create_event(unsigned int flags);
  void destroy_event(EventState& event);
  void record(EventState& event, StreamState& stream);
  void wait(StreamState& stream, EventState& event);
  bool query(EventState& event);
  bool query(StreamState& stream);
  void synchronize(EventState& event);
  void synchronize(StreamState& stream);
  void synchronize(DeviceState& device);
  // Elapsed between two events' work, in milliseconds.
  float elapsed_ms(const EventState& start, const EventState& end);

  // Work. On a capturing stream it becomes a node of this type. `launch` takes the time of CACHALOT_SIM_LAUNCH_NS, and
  // waits while the stream's queue is full.
  void launch(StreamState& stream, cudaGraphNodeType type);
  // Work of a copy: where copies take the bus, one between host and device does, and the host waits for pageable memory.
  void launch_copy(StreamState& stream, const void* to, const void* from, std::size_t bytes);
  void launch_for(StreamState& stream, cudaGraphNodeType type, std::int64_t duration_ns);
  void advance(std::int64_t ns);
  std::int64_t clock_ns() const;
  void launch_kernel(StreamState& stream, const cudaKernelNodeParams& kernel);
  void launch_host_function(StreamState& stream, cudaHostFn_t function, void* data);
  void launch_graph(StreamState& stream, GraphExec& exec);
  void write_value(StreamState& stream, void* to, std::uint64_t value, std::size_t bytes);
  // The memory is about to go: nothing is written to it any more.
  void forget_writes(const void* start, std::size_t bytes);

  // Of a copy or fill of `call`, before and after it is queued: `to` is written, and `from` read, if it is not null.
  void check_use(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes);
  void add_use(const char* call, StreamState& stream, const void* to, const void* from, std::size_t bytes);
  // The memory is about to be freed in the order of the stream.
  void check_free(const char* call, StreamState& stream, const AddressRange& range);
  // The memory is about to be unmapped.
  void check_unmap(const AddressRange& range);

  // Captures.
  void begin_capture(StreamState& stream, cudaStreamCaptureMode mode, Graph* into, const Nodes& dependencies);
  Graph& end_capture(StreamState& stream);
  cudaStreamCaptureStatus capture_status(const StreamState& stream);
  GraphNode& capture_node(StreamState& stream, cudaGraphNodeType type);
  // For a call that is unsafe while a stream captures: throws 900, and spoils the captures, where the thread's mode
  // forbids it.
  void require_safe(const char* call);
  // For a call that no mode allows on a stream that captures: the same for that capture.
  void refuse_captured(const char* call, const StreamState& stream);
  bool captures_anything() const { return !captures_.empty(); }

  // Memory.
  // Null: out of memory. A pool that asks gives back what it keeps, if need be.
  void* malloc(DeviceState& device, std::size_t bytes, MemoryPool* pool = nullptr);
  void free(const char* call, Address address);
  // Of a copy or fill in several parts each part says how large the whole is: that decides whether it is done.
  void copy(void* to, const void* from, std::size_t bytes, std::size_t whole_bytes);
  void copy(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes, bytes); }
  void fill(void* to, std::uint64_t pattern, std::size_t pattern_bytes, std::size_t bytes, std::size_t whole_bytes);

  // Stream-ordered memory. Null: out of memory.
  void* malloc_from(MemoryPool& pool, StreamState& stream, std::size_t bytes);
  cudaError_t free_to_pool(Address address);
  void trim_pool(MemoryPool& pool, std::size_t to_bytes);
  void destroy_pool(MemoryPool& pool);

  // From now on the variable's address is known as device memory.
  void know_variable(const Variable& variable);

  // Virtual memory. A handle of the program names device and handle of the device.
  CUmemGenericAllocationHandle create_memory(DeviceState& device, std::size_t bytes);  // 0: out of memory
  void release_memory(CUmemGenericAllocationHandle handle);
  void map_memory(Address address, std::size_t bytes, CUmemGenericAllocationHandle handle);
  CUmemGenericAllocationHandle handle_at(Address address);  // with one more reference
  CUmemGenericAllocationHandle mapped_at(Address address);  // without; 0: no memory of cuMemCreate
  // A file descriptor that another process, or this one, can import.
  int export_handle(CUmemGenericAllocationHandle handle);
  CUmemGenericAllocationHandle import_handle(int descriptor);
  static int device_of(CUmemGenericAllocationHandle handle);
  Address reserve(std::size_t bytes, std::size_t alignment);  // on the current device; 0: no such range
  void unreserve(Address address, std::size_t bytes);

  // Sharing between processes.
  cudaIpcMemHandle_t export_memory(Address address);
  Address import_memory(const cudaIpcMemHandle_t& handle);
  void close_import(Address address);

  Contexts contexts;
  HandleRules handle_rules;
  HostMemory host_memory;
  ContentStore content;
  Limits limits;
  Graphs graphs;
  Pools pools;
  Report report;
  Watch watch;

  static void write_report();

  // At the end of each call: what streams had to do by now is done, and the log is written.
  void settle() {
    if (!writes_.empty()) [[unlikely]]
      do_due_writes();
    if (report.logs()) [[unlikely]]
      write_log();
  }

 private:
  explicit Process(const Config& settings);
  static Process* make(cudaError_t& error);
  static void before_fork() CACHALOT_NO_THREAD_SAFETY_ANALYSIS;
  static void after_fork() CACHALOT_NO_THREAD_SAFETY_ANALYSIS;
  static std::atomic<Process*> instance;

  struct HostFunction {
    int device = 0;
    std::int64_t due_ns = 0;
    cudaHostFn_t function = nullptr;
    void* data = nullptr;
    std::shared_ptr<Gate> gate;
  };

  // What cudaStreamPerThread names another stream for.
  struct PerThreadKey {
    int device = 0;
    CUcontext context = nullptr;
    std::uint64_t thread = 0;
    friend bool operator<(const PerThreadKey& a, const PerThreadKey& b) {
      return std::tie(a.device, a.context, a.thread) < std::tie(b.device, b.context, b.thread);
    }
  };

  // A range of addresses, in a larger one where it had to be aligned.
  struct Reservation {
    int device = 0;
    std::size_t bytes = 0;
    AddressRange whole;
  };

  void make_devices();
  SimulatedDevice& on_clock(DeviceState& device);
  void wait_for(const Gates& gates);
  void wait_for_room(StreamState& stream, std::int64_t end_ns);
  void require_writable(const void* to, std::size_t bytes);
  StreamState& per_thread_stream(int device);
  void prepare_stream(StreamState& stream, int device, CUcontext context, unsigned int flags);
  void end_stream(StreamState& stream);
  void end_per_thread_streams(const std::function<bool(const PerThreadKey&)>& goes);
  // The legacy stream of the stream's context.
  StreamState& legacy_stream_of(const StreamState& stream);
  VectorClock& before_destroyed_of(const StreamState& stream);
  // For a call on this legacy stream: throws cudaErrorStreamCaptureImplicit while a blocking stream of its context captures.
  void refuse_implicit_capture(const char* call, const StreamState& legacy, bool spoils);
  void join_implicitly(StreamState& stream);
  void join_time(StreamState& stream);
  void join_gates(StreamState& stream);
  void join_order(StreamState& stream);
  template <typename Visit>
  void for_each_blocking(const StreamState& legacy, Visit&& visit);
  template <typename Use>
  void for_each_use(const StreamState& stream, const void* to, const void* from, std::size_t bytes, Use&& use);
  void forget_capture(Capture& capture);
  void destroy_captures(const DeviceState& device);
  void destroy_pools(DeviceState& device);
  void pools_trim();
  void do_due_writes();
  void write_log();
  void run_host_functions() CACHALOT_NO_THREAD_SAFETY_ANALYSIS;
  void note_failed_poll(SimulatedDevice& device);

  void copy_now(void* to, const void* from, std::size_t bytes);
  template <typename Access>
  void for_each_piece(const void* start, std::size_t bytes, Access&& access);

  std::vector<std::unique_ptr<DeviceState>> devices_;
  DeviceState* on_clock_ = nullptr;  // the device used last: its clock is the host's time
  Registry<StreamState, cudaStream_t> streams_;
  Registry<EventState, cudaEvent_t> events_;
  MemoryUses uses_;  // while `watch` is on
  unsigned long long next_stream_id_ = 1;
  unsigned long long contexts_made_ = 0;
  std::map<PerThreadKey, StreamState> per_thread_streams_;
  std::map<std::uint64_t, Capture> captures_;
  std::map<Address, Reservation> reservations_;
  std::map<Address, ExportedMemory> imports_;         // of other processes
  std::multimap<std::int64_t, PendingWrite> writes_;  // by the time they are due
  std::deque<HostFunction> host_functions_;
  bool has_worker_ = false;
  std::condition_variable_any host_function_queued_;
  std::condition_variable_any gate_opened_;
};

}  // namespace cachalot::simulator
