#include "simulator/state/streams.h"

#include <algorithm>

#include "device/cuda_codes.h"
#include "simulator/base/thread_state.h"
#include "simulator/state/simulated_process.h"

namespace cachalot::simulator {

Streams::Streams(const Config& config, Watch& watch, LaunchOrder& launches, Contexts& contexts, Devices& devices,
                 Captures& captures)
    : config_(config), watch_(watch), launches_(launches), contexts_(contexts), devices_(devices), captures_(captures) {
  for (int ordinal = 0; ordinal < config_.devices; ++ordinal) {
    StreamState& legacy = devices_.at(ordinal).legacy_stream;
    legacy.device = ordinal;
    legacy.id = next_id_++;
    legacy.order = launches_.new_stream(ordinal);
  }
}

StreamState& Streams::at(const char* call, cudaStream_t handle) {
  if (is_own_name(handle)) return streams_.at(call, handle);
  DeviceState& device = contexts_.current();
  const bool is_legacy = handle ? handle == cudaStreamLegacy : !this_thread().has_own_default_stream;
  if (!is_legacy) return per_thread(device.ordinal);
  const Context* const own = contexts_.own();
  return own ? *own->default_stream : device.legacy_stream;
}

StreamState& Streams::create(unsigned int flags, int priority) {
  const int device = contexts_.current().ordinal;
  StreamState& stream = streams_.make();
  prepare(stream, device, this_thread().context, flags);
  stream.priority = priority;
  watch_.made(Owned::stream, &stream, device);
  return stream;
}

void Streams::create_default(Context& context) {
  context.default_stream = &streams_.make();
  prepare(*context.default_stream, context.device, Contexts::handle(context), cudaStreamDefault);
}

void Streams::prepare(StreamState& stream, int device, CUcontext context, unsigned int flags) {
  stream.device = device;
  stream.context = context;
  stream.name = handle(stream);
  stream.flags = flags;
  stream.id = next_id_++;
  stream.order = launches_.new_stream(device);
  SimulatedDevice& simulated = devices_.on_clock(device);
  simulated.stream_create(stream.name);
  const bool is_blocking = stream.is_blocking() && config_.legacy_stream_waits;
  if (is_blocking && !context) simulated.set_blocking(stream.name);  // it knows the primary context alone
}

StreamState& Streams::per_thread(int device) {
  static std::uint64_t threads = 0;
  // An Ending is among a thread's last destructors: those of static objects may still call.
  struct Ending {
    std::uint64_t number = 0;
    ~Ending() { Process::thread_ends(number); }
  };
  thread_local Ending ending;
  ThreadState& thread = this_thread();
  if (thread.number == 0) thread.number = ending.number = ++threads;
  const PerThreadKey key{.device = device, .context = thread.context, .thread = thread.number};
  const auto [at, is_new] = per_thread_.try_emplace(key);
  if (is_new) prepare(at->second, device, thread.context, cudaStreamDefault);
  return at->second;
}

void Streams::destroy(StreamState& stream) {
  end(stream);
  watch_.gone(Owned::stream, &stream);
  streams_.destroy(stream);
  ++destroyed_;
}

void Streams::end(StreamState& stream) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  if (stream.is_blocking()) {
    contexts_.before_destroyed_of(stream).join(stream.order.before);
    if (Context* const own = contexts_.find(stream.context))
      own->destroyed_ready_ns = std::max(own->destroyed_ready_ns, device.stream_ready_ns(stream.name));
  }
  device.stream_destroy(stream.name);
  captures_.leave(stream);
}

// Ends the per-thread streams for whose key goes(key).
template <typename Goes>
void Streams::end_per_thread(Goes&& goes) {
  for (auto at = per_thread_.begin(); at != per_thread_.end();) {
    if (!goes(at->first)) {
      ++at;
      continue;
    }
    end(at->second);
    at = per_thread_.erase(at);
  }
}

void Streams::destroy_all(CUcontext context) {
  end_per_thread([&](const PerThreadKey& key) { return key.context == context; });
  const auto is_its = [&](const StreamState& stream) { return stream.context == context; };
  while (StreamState* const stream = streams_.find_if(is_its)) destroy(*stream);
}

void Streams::destroy_all(std::uint64_t thread) {
  end_per_thread([&](const PerThreadKey& key) { return key.thread == thread; });
}

// The simulated device is about to be reset, and its own streams with it.
void Streams::destroy_all(DeviceState& device) {
  const auto is_its = [&](const StreamState& stream) { return stream.device == device.ordinal; };
  streams_.destroy_if(is_its);
  ++destroyed_;
  std::erase_if(per_thread_, [&](const auto& entry) { return is_its(entry.second); });
  device.legacy_stream.queue = {};
  device.legacy_stream.gates.clear();
}

void ImplicitOrder::join(StreamState& stream) {
  if (!config_.legacy_stream_waits || !stream.is_blocking() || stream.capture) return;
  if (stream.context) [[unlikely]]
    join_time(stream);
  if (devices_.at(stream.device).host_functions > 0) join_gates(stream);
  if (launches_.is_kept()) join_order(stream);
}

void ImplicitOrder::join_gates(StreamState& stream) {
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  if (&stream != &legacy) return add_closed(stream.gates, legacy.gates);
  streams_.for_each_blocking(legacy, [&](StreamState& other) { add_closed(stream.gates, other.gates); });
}

void ImplicitOrder::join_order(StreamState& stream) {
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  if (&stream != &legacy) return stream.order.before.join(legacy.order.before);
  stream.order.before.join(contexts_.before_destroyed_of(stream));
  streams_.for_each_blocking(legacy, [&](StreamState& other) { stream.order.before.join(other.order.before); });
}

// For streams of a context beside the primary one.
void ImplicitOrder::join_time(StreamState& stream) {
  SimulatedDevice& device = devices_.on_clock(stream.device);
  StreamState& legacy = contexts_.legacy_stream_of(stream);
  const auto wait_until = [&](std::int64_t ns) { device.stream_wait_until(stream.name, ns); };
  if (&stream != &legacy) return wait_until(device.stream_ready_ns(legacy.name));
  refuse_capture("a call on the legacy stream", legacy, true);
  wait_until(contexts_.find(stream.context)->destroyed_ready_ns);
  streams_.for_each_blocking(legacy, [&](StreamState& other) { wait_until(device.stream_ready_ns(other.name)); });
}

void ImplicitOrder::refuse_capture(const char* call, const StreamState& legacy, bool spoils) {
  bool captures = false;
  streams_.for_each_blocking(legacy, [&](StreamState& other) CACHALOT_LOCKED {
    if (!other.capture) return;
    captures = true;
    if (spoils) devices_.on_clock(other.device).spoil_capture(other.name);
  });
  if (captures) fail(call, CudaCode::capture_implicit, "the legacy stream waits for a blocking stream that captures");
}

void ImplicitOrder::refuse_question(const char* call, const StreamState& stream) {
  if (stream.context && config_.legacy_stream_waits && &stream == &contexts_.legacy_stream_of(stream))
    refuse_capture(call, stream, false);
}

}  // namespace cachalot::simulator
