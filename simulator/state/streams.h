// The program's streams: those it makes, the legacy one of each context, and each thread's own; and CUDA's implicit order
// between them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <tuple>

#include "simulator/base/lock.h"
#include "simulator/base/registry.h"
#include "simulator/base/watch.h"
#include "simulator/models/config.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/captures.h"
#include "simulator/state/devices.h"
#include "simulator/state/launch_order.h"
#include "simulator/state/stream_state.h"

namespace cachalot::simulator {

class Streams {
 public:
  // Makes the devices' legacy streams.
  Streams(const Config& config, Watch& watch, LaunchOrder& launches, Contexts& contexts, Devices& devices,
          Captures& captures);

  // Throws cudaErrorInvalidResourceHandle.
  StreamState& at(const char* call, cudaStream_t handle) CACHALOT_LOCKED;
  // The handle names a stream by itself, not one of the context or of the thread.
  static bool is_own_name(cudaStream_t handle) {
    return handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread;
  }
  // Returns how many streams with such handles have been destroyed, and one more: a handle keeps its meaning while this stays. Needs
  // no lock: a caller whose stream another thread destroys meanwhile may get either answer.
  static std::uint64_t destroyed() { return destroyed_.load(std::memory_order_relaxed); }
  static cudaStream_t handle(const StreamState& stream) { return Registry<StreamState, cudaStream_t>::handle(stream); }

  StreamState& create(unsigned int flags, int priority) CACHALOT_LOCKED;
  // Gives the context its default stream.
  void create_default(Context& context) CACHALOT_LOCKED;
  void destroy(StreamState& stream) CACHALOT_LOCKED;

  // Streams go with their context, their thread and their device.
  void destroy_all(CUcontext context) CACHALOT_LOCKED;
  void destroy_all(std::uint64_t thread) CACHALOT_LOCKED;
  void destroy_all(DeviceState& device) CACHALOT_LOCKED;

  // Calls visit(stream) for each blocking stream of the legacy stream's context, except for itself.
  template <typename Visit>
  void for_each_blocking(const StreamState& legacy, Visit&& visit) CACHALOT_LOCKED {
    const auto visit_blocking = [&](StreamState& stream) {
      know_locked();
      if (stream.device != legacy.device || stream.context != legacy.context || &stream == &legacy) return;
      if (stream.is_blocking()) visit(stream);
    };
    streams_.for_each(visit_blocking);
    for (auto& [key, stream] : per_thread_) visit_blocking(stream);
  }

 private:
  // The key by which cudaStreamPerThread names another stream.
  struct PerThreadKey {
    int device = 0;
    CUcontext context = nullptr;
    std::uint64_t thread = 0;
    friend bool operator<(const PerThreadKey& a, const PerThreadKey& b) {
      return std::tie(a.device, a.context, a.thread) < std::tie(b.device, b.context, b.thread);
    }
  };

  StreamState& per_thread(int device) CACHALOT_LOCKED;
  void prepare(StreamState& stream, int device, CUcontext context, unsigned int flags) CACHALOT_LOCKED;
  void end(StreamState& stream) CACHALOT_LOCKED;
  template <typename Goes>
  void end_per_thread(Goes&& goes) CACHALOT_LOCKED;

  static inline constinit std::atomic<std::uint64_t> destroyed_{1};

  const Config& config_;
  Watch& watch_ CACHALOT_UNDER_LOCK;
  LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  Contexts& contexts_;
  Devices& devices_;
  Captures& captures_;
  Registry<StreamState, cudaStream_t> streams_ CACHALOT_UNDER_LOCK;
  std::map<PerThreadKey, StreamState> per_thread_ CACHALOT_UNDER_LOCK;
  unsigned long long next_id_ CACHALOT_UNDER_LOCK = 1;
};

// The order of the legacy stream and the blocking streams of its context, which wait for each other unasked. The
// simulated device keeps it for the time of the primary context; the rest is kept here.
class ImplicitOrder {
 public:
  ImplicitOrder(const Config& config, const LaunchOrder& launches, Devices& devices, Contexts& contexts,
                Streams& streams)
      : config_(config), launches_(launches), devices_(devices), contexts_(contexts), streams_(streams) {}

  // Puts what the stream waits for unasked before the call that follows.
  void join(StreamState& stream) CACHALOT_LOCKED;
  // Throws cudaErrorStreamCaptureImplicit, for a question about a stream, if that is the legacy stream of a context
  // beside the primary one, and a blocking stream of its context captures.
  void refuse_question(const char* call, const StreamState& stream) CACHALOT_LOCKED;

 private:
  // Throws cudaErrorStreamCaptureImplicit if a blocking stream of the legacy stream's context captures.
  void refuse_capture(const char* call, const StreamState& legacy, bool spoils) CACHALOT_LOCKED;
  void join_time(StreamState& stream) CACHALOT_LOCKED;
  void join_gates(StreamState& stream) CACHALOT_LOCKED;
  void join_order(StreamState& stream) CACHALOT_LOCKED;

  const Config& config_;
  const LaunchOrder& launches_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Contexts& contexts_;
  Streams& streams_;
};

}  // namespace cachalot::simulator
