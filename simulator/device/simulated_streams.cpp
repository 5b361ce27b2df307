#include "simulator/device/simulated_streams.h"

#include <algorithm>
#include <atomic>

#include "device/cuda_codes.h"

CACHALOT_BEGIN

std::int64_t CopyEngine::take(std::int64_t now_ns, std::int64_t earliest_ns, std::int64_t duration_ns) {
  std::erase_if(busy_, [&](const auto& copy) { return copy.second <= now_ns; });
  std::int64_t begin_ns = std::max(now_ns, earliest_ns);
  if (duration_ns == 0) return begin_ns;
  for (const auto& [busy_from_ns, busy_until_ns] : busy_) {
    if (begin_ns + duration_ns <= busy_from_ns) break;
    begin_ns = std::max(begin_ns, busy_until_ns);
  }
  busy_.emplace(begin_ns, begin_ns + duration_ns);
  return begin_ns + duration_ns;
}

namespace {

// An event's name: salt of the device, generation of the slot, slot + 1. A stale or foreign name is recognized.
constexpr int kSlotBits = 28;
constexpr int kGenerationBits = 20;
constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << kGenerationBits) - 1;
constexpr std::uint64_t kSaltMask = 0xffff;

Event event_name(std::uint64_t salt, std::uint64_t generation, std::size_t slot) {
  const std::uint64_t bits =
      salt << (kSlotBits + kGenerationBits) | (generation & kGenerationMask) << kSlotBits | (slot + 1);
  return reinterpret_cast<Event>(bits);
}

std::uint64_t next_device_salt() {
  static std::atomic<std::uint64_t> devices{0};
  return ++devices & kSaltMask;
}

std::uint64_t next_capture_id() {
  static std::atomic<std::uint64_t> captures{0};
  return ++captures;
}

std::uint64_t next_stream_id() {
  static std::atomic<std::uint64_t> streams{0};
  return ++streams;
}

// Names that devices have made.
constexpr std::uintptr_t kFirstName = std::uintptr_t{0x57} << 40;  // apart from small integers and from host pointers
std::atomic<std::uintptr_t> next_name{kFirstName};

Stream fresh_stream_name() { return reinterpret_cast<Stream>(next_name.fetch_add(64)); }

bool is_made_by_a_device(Stream name) {
  const auto number = reinterpret_cast<std::uintptr_t>(name);
  return number >= kFirstName && number < next_name.load();
}

}  // namespace

void SimulatedStream::queue(std::int64_t now_ns, std::int64_t duration_ns) {
  ready_ns_ = std::max(ready_ns_, now_ns) + duration_ns;
}

void SimulatedStream::wait_until(std::int64_t ns) { ready_ns_ = std::max(ready_ns_, ns); }

void SimulatedStream::count_event(std::int64_t now_ns, std::int64_t done_ns) {
  completed_events(now_ns);
  if (done_ns <= now_ns) {
    ++completed_;
  } else if (!pending_.empty() && pending_.back().done_ns == done_ns) {
    ++pending_.back().events;
  } else {  // last, except for events of an earlier stream of this name
    const auto later = [&](const Completions& pending) { return pending.done_ns > done_ns; };
    pending_.insert(std::find_if(pending_.begin(), pending_.end(), later), {done_ns, 1});
  }
}

std::uint64_t SimulatedStream::completed_events(std::int64_t now_ns) {
  while (!pending_.empty() && pending_.front().done_ns <= now_ns) {
    completed_ += pending_.front().events;
    pending_.pop_front();
  }
  return completed_;
}

SimulatedStreams::SimulatedStreams(bool captures_refuse, bool counts_completions)
    : captures_refuse_(captures_refuse), counts_completions_(counts_completions), salt_(next_device_salt()) {}

Stream SimulatedStreams::create_stream() {
  if (free_names_.empty()) return add(fresh_stream_name()).name();
  const Stream name = free_names_.back();
  create_stream(name);
  return name;
}

void SimulatedStreams::create_stream(Stream name) {
  SimulatedStream& stream = even_dead(name);
  if (!stream.is_dead()) return;
  std::erase(free_names_, name);
  stream.begin_again(next_stream_id());
}

SimulatedStream& SimulatedStreams::add(Stream name) {
  return *streams_.emplace(name, std::make_unique<SimulatedStream>(name, next_stream_id())).first->second;
}

SimulatedStream& SimulatedStreams::even_dead(Stream name) {
  const auto at = streams_.find(name);
  if (at != streams_.end()) return *at->second;
  if (is_made_by_a_device(name)) {
    fail("a call with a stream", CudaCode::invalid_resource_handle,
         "the stream is one of another device, or from before a reset");
  }
  return add(name);
}

bool SimulatedStreams::has(Stream name) const { return streams_.contains(name) || !is_made_by_a_device(name); }

SimulatedStream& SimulatedStreams::look_up(Stream name) {
  SimulatedStream& stream = even_dead(name);
  if (stream.is_dead()) {
    ++dead_stream_calls_;
    fail("a call with a stream", CudaCode::invalid_resource_handle, "the stream was destroyed");
  }
  last_used_ = &stream;
  return stream;
}

void SimulatedStreams::set_blocking(Stream name) {
  SimulatedStream& stream = this->stream(name);
  if (stream.is_blocking() || name == nullptr) return;
  stream.set_blocking();
  blocking_.push_back(&stream);
}

std::vector<SimulatedStream*> SimulatedStreams::implicitly_before(const SimulatedStream& stream) {
  if (stream.name() == nullptr) return blocking_;
  if (!stream.is_blocking() || stream.capture() != 0) return {};
  return {&this->stream(nullptr)};
}

void SimulatedStreams::refuse_implicit_capture(const char* call, const SimulatedStream& stream, bool spoils) {
  if (stream.name() != nullptr || captures_.empty()) return;
  bool captures = false;
  for (const SimulatedStream* blocking : blocking_) {
    if (blocking->capture() == 0) continue;
    captures = true;
    if (spoils) spoil(blocking->capture());
  }
  if (captures) fail(call, CudaCode::capture_implicit, "the legacy stream waits for a blocking stream that captures");
}

void SimulatedStreams::destroy_stream(Stream name) {
  SimulatedStream& stream = look_up(name);
  leave_capture(stream);
  if (std::erase(blocking_, &stream) != 0) destroyed_ready_ns_ = std::max(destroyed_ready_ns_, stream.ready_ns());
  stream.destroy();
  free_names_.push_back(name);
  last_used_ = nullptr;
}

std::size_t SimulatedStreams::slot_of(Event name) {
  return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(name) & kSlotMask) - 1);
}

Event SimulatedStreams::create_event() {
  if (free_slots_.empty()) {
    free_slots_.push_back(events_.size());
    events_.emplace_back();
    generations_.push_back(0);
  }
  const std::size_t slot = free_slots_.back();
  free_slots_.pop_back();
  events_[slot].name = event_name(salt_, ++generations_[slot], slot);
  return events_[slot].name;
}

void SimulatedStreams::destroy_event(Event name) {
  event("cuEventDestroy", name) = {};
  free_slots_.push_back(slot_of(name));
}

void SimulatedStreams::destroy_all() {
  for (std::size_t slot = 0; slot < events_.size(); ++slot) {
    if (const Event name = events_[slot].name) destroy_event(name);
  }
  captures_.clear();
  last_used_ = nullptr;
  streams_.clear();
  free_names_.clear();
  blocking_.clear();
  destroyed_ready_ns_ = 0;
}

void SimulatedStreams::refuse_event(const char* call) {
  fail(call, CudaCode::invalid_resource_handle, "not an event of this device, or destroyed already");
}

bool SimulatedStreams::record(SimulatedEvent& event, SimulatedStream& stream, std::int64_t now_ns) {
  require_sound("cuEventRecord", stream);
  event.recorded = true;
  event.capture = stream.capture();
  event.done_ns = std::max(stream.ready_ns(), now_ns);
  if (event.capture != 0) return false;
  if (counts_completions_) stream.count_event(now_ns, event.done_ns);
  return true;
}

bool SimulatedStreams::wait(SimulatedStream& stream, const SimulatedEvent& event) {
  constexpr auto kCall = "cuStreamWaitEvent";
  require_sound(kCall, stream);
  if (!event.recorded) return false;
  if (event.capture != 0) {
    join_capture(stream, event.capture);
    return false;
  }
  if (stream.capture() != 0) {
    spoil(stream.capture());
    fail(kCall, CudaCode::capture_isolation, "the event was recorded outside the capture");
  }
  wait_until(stream, event.done_ns);
  return true;
}

bool SimulatedStreams::launch(SimulatedStream& stream, std::int64_t now_ns, std::int64_t duration_ns) {
  require_sound("cuLaunchKernel", stream);
  if (stream.capture() != 0) return false;
  stream.queue(now_ns, duration_ns);
  note_ready(stream);
  return true;
}

bool SimulatedStreams::copy(SimulatedStream& stream, CopyDirection direction, std::int64_t now_ns,
                            std::int64_t duration_ns) {
  require_sound("cuMemcpyAsync", stream);
  if (stream.capture() != 0) return false;
  wait_until(stream, engines_[static_cast<std::size_t>(direction)].take(now_ns, stream.ready_ns(), duration_ns));
  return true;
}

void SimulatedStreams::wait_until(SimulatedStream& stream, std::int64_t ns) {
  stream.wait_until(ns);
  note_ready(stream);
}

void SimulatedStreams::note_ready(const SimulatedStream& stream) {
  all_ready_ns_ = std::max(all_ready_ns_, stream.ready_ns());
}

// Capture.

void SimulatedStreams::require_sound(const char* call, const SimulatedStream& stream) {
  if (stream.capture() == 0) return;
  if (is_spoilt(stream)) fail(call, CudaCode::capture_invalidated);
}

void SimulatedStreams::spoil(std::uint64_t capture) {
  const auto at = captures_.find(capture);
  if (at != captures_.end()) at->second.spoilt = true;
}

void SimulatedStreams::spoil_captures(const char* call) {
  for (auto& [id, capture] : captures_) capture.spoilt = true;
  fail(call, CudaCode::capture_unsupported, "not allowed while a stream captures");
}

void SimulatedStreams::spoil_capture_of(const char* call, const SimulatedEvent& event) {
  spoil(event.capture);
  fail(call, CudaCode::captured_event);
}

void SimulatedStreams::join_capture(SimulatedStream& stream, std::uint64_t id) {
  constexpr auto kCall = "cuStreamWaitEvent";
  if (stream.capture() == id) return;
  const auto at = captures_.find(id);
  if (at == captures_.end()) fail(kCall, CudaCode::captured_event, "its capture has ended");
  if (stream.capture() != 0) {
    spoil(id);
    spoil(stream.capture());
    fail(kCall, CudaCode::capture_merge);
  }
  if (at->second.spoilt) fail(kCall, CudaCode::capture_invalidated);
  stream.set_capture(id);
  at->second.streams.push_back(&stream);
}

void SimulatedStreams::leave_capture(SimulatedStream& stream) {
  const auto at = captures_.find(stream.capture());
  if (at == captures_.end()) return;
  if (at->second.origin == stream.name()) return forget_capture(at->first);
  at->second.spoilt = true;
  std::erase(at->second.streams, &stream);
}

void SimulatedStreams::forget_capture(std::uint64_t id) {
  const auto at = captures_.find(id);
  for (SimulatedStream* captured : at->second.streams) captured->set_capture(0);
  captures_.erase(at);
}

std::uint64_t SimulatedStreams::begin_capture(SimulatedStream& stream) {
  constexpr auto kCall = "cuStreamBeginCapture";
  if (!stream.name()) fail(kCall, CudaCode::capture_unsupported, "the legacy default stream cannot capture");
  if (stream.capture() != 0) fail(kCall, CudaCode::illegal_state, "the stream captures already");
  const std::uint64_t id = next_capture_id();
  captures_.emplace(id, Capture{.origin = stream.name(), .spoilt = false, .streams = {&stream}});
  stream.set_capture(id);
  return id;
}

void SimulatedStreams::end_capture(SimulatedStream& stream) {
  constexpr auto kCall = "cuStreamEndCapture";
  if (stream.capture() == 0) fail(kCall, CudaCode::illegal_state, "the stream does not capture");
  const auto at = captures_.find(stream.capture());
  if (at->second.origin != stream.name()) fail(kCall, CudaCode::capture_unmatched);
  const bool spoilt = at->second.spoilt;
  forget_capture(at->first);
  if (spoilt)
    fail(kCall, CudaCode::capture_invalidated, "a call during the capture was not allowed; the capture has ended");
}

CACHALOT_END
