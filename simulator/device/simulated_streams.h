// Streams and events of the simulated device, on its virtual clock, and stream capture.
//
// A stream is the time at which the work queued on it ends; an event is the time at which it will be done. While a
// stream captures nothing is queued: its work and its events belong to the graph.
// A blocking stream and the legacy stream (nullptr) wait for each other: work queued on one comes after all work queued
// on the other before.
// A stream's name is that of a new stream once it was destroyed, and calls in between are refused: as the driver gives
// handles again at once, and does not define what else it does with them.
// Capture is CUDA's global mode: calls that wait or ask for work are refused for everyone and spoil every capture. Not
// modelled: that a forked stream must be joined again before the end of the capture.
// Not thread-safe; the device's mutex guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/device/vector_clock.h"

CACHALOT_BEGIN

// A copy engine of the simulated device: copies of one direction over the bus, one at a time. Not thread-safe; the
// device's mutex guards it.
class CopyEngine {
 public:
  // Takes the engine for a copy that is asked for at `now_ns` and may not begin before `earliest_ns`; returns when it
  // ends. It begins as soon as the engine has nothing to do for so long: a copy that waits for its stream holds up none
  // that need not wait.
  std::int64_t take(std::int64_t now_ns, std::int64_t earliest_ns, std::int64_t duration_ns);

 private:
  std::map<std::int64_t, std::int64_t> busy_;  // when a copy begins, and when it ends; they do not overlap
};

struct SimulatedEvent {
  Event name = nullptr;  // null: the slot is free
  bool recorded = false;
  std::int64_t done_ns = 0;   // the work it marks ends here
  std::uint64_t capture = 0;  // recorded inside this capture: no ordinary event
  VectorClock after;          // the work before it, for the hazard checker
};

class SimulatedStream {
 public:
  SimulatedStream(Stream name, std::uint64_t id) : name_(name), id_(id) {}

  Stream name() const { return name_; }
  std::uint64_t id() const { return id_; }  // no other stream of the process ever has it
  bool is_dead() const { return id_ == 0; }
  void destroy() { id_ = capture_ = 0; }
  // Begins again as a new stream of this name. Events that the old one recorded still count when they complete.
  void begin_again(std::uint64_t id) {
    id_ = id;
    ready_ns_ = 0;
    is_blocking_ = false;
  }
  bool is_blocking() const { return is_blocking_; }
  void set_blocking() { is_blocking_ = true; }
  std::int64_t ready_ns() const { return ready_ns_; }
  std::uint64_t capture() const { return capture_; }
  void set_capture(std::uint64_t id) { capture_ = id; }

  void queue(std::int64_t now_ns, std::int64_t duration_ns);
  void wait_until(std::int64_t ns);
  void count_event(std::int64_t now_ns, std::int64_t done_ns);
  // Events recorded here that were done by `now_ns`.
  std::uint64_t completed_events(std::int64_t now_ns);

 private:
  struct Completions {
    std::int64_t done_ns;
    std::uint64_t events;
  };

  Stream name_;
  std::uint64_t id_;  // 0: destroyed
  bool is_blocking_ = false;
  std::int64_t ready_ns_ = 0;
  std::uint64_t capture_ = 0;        // 0: not capturing
  std::deque<Completions> pending_;  // ascending in time
  std::uint64_t completed_ = 0;
};

class SimulatedStreams {
 public:
  SimulatedStreams(bool captures_refuse, bool counts_completions);

  // The name of a new stream: of the stream that was destroyed last and whose name is free, otherwise a fresh one.
  Stream create_stream();
  // A new stream of this name, which no stream has that lives.
  void create_stream(Stream name);
  // Any value names a stream. Throws CUDA_ERROR_INVALID_HANDLE for the name of one that was destroyed, and for a name that
  // another device has made.
  SimulatedStream& stream(Stream name) {
    return last_used_ && last_used_->name() == name ? *last_used_ : look_up(name);
  }
  // False for a name that another device has made.
  bool has(Stream name) const;
  // Returns the stream as stream() does, also one that was destroyed.
  SimulatedStream& even_dead(Stream name);
  // The stream that the call queues work on, or waits for: it is behind the streams that it waits for implicitly, and
  // before_it(name) is called for each of them. Throws CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy stream while a
  // blocking stream captures.
  template <typename Before>
  SimulatedStream& stream_in_order(const char* call, Stream name, Before&& before_it) {
    SimulatedStream& stream = this->stream(name);
    if (!blocking_.empty()) [[unlikely]] {
      refuse_implicit_capture(call, stream, true);
      for (SimulatedStream* other : implicitly_before(stream)) {
        wait_until(stream, other->ready_ns());
        before_it(other->name());
      }
    }
    if (name == nullptr) wait_until(stream, destroyed_ready_ns_);
    return stream;
  }
  // Returns the streams whose work comes before the stream's next work by CUDA's implicit order.
  std::vector<SimulatedStream*> implicitly_before(const SimulatedStream& stream);
  // Throws the same, and spoils the capture if the call does.
  void refuse_implicit_capture(const char* call, const SimulatedStream& stream, bool spoils);
  void set_blocking(Stream name);
  void destroy_stream(Stream name);
  // Calls that were refused because their stream was destroyed.
  std::uint64_t dead_stream_calls() const { return dead_stream_calls_; }
  // The end of all work queued so far.
  std::int64_t all_ready_ns() const { return all_ready_ns_; }

  Event create_event();
  void destroy_event(Event name);
  // All events, streams and captures.
  void destroy_all();
  // Throws CUDA_ERROR_INVALID_HANDLE if there is no such event.
  SimulatedEvent& event(const char* call, Event name) {
    const std::size_t slot = slot_of(name);
    if (slot >= events_.size() || events_[slot].name != name || !name) [[unlikely]]
      refuse_event(call);
    return events_[slot];
  }

  // Each throws what CUDA gives when capture forbids it. The bool: the call was ordinary, and not part of a capture.
  bool record(SimulatedEvent& event, SimulatedStream& stream, std::int64_t now_ns);
  bool wait(SimulatedStream& stream, const SimulatedEvent& event);
  bool launch(SimulatedStream& stream, std::int64_t now_ns, std::int64_t duration_ns);
  bool copy(SimulatedStream& stream, CopyDirection direction, std::int64_t now_ns, std::int64_t duration_ns);
  void wait_until(SimulatedStream& stream, std::int64_t ns);
  // For calls that wait for work or ask for it.
  void refuse_while_capturing(const char* call) {
    if (!captures_.empty() && captures_refuse_) [[unlikely]]
      spoil_captures(call);
  }
  // Refuses the call in any capture mode, regardless of captures_refuse.
  void refuse_in_any_mode(const char* call) {
    if (!captures_.empty()) spoil_captures(call);
  }
  void spoil_capture_of(const SimulatedStream& stream) { spoil(stream.capture()); }
  bool is_spoilt(const SimulatedStream& stream) const {
    return stream.capture() != 0 && captures_.at(stream.capture()).spoilt;
  }
  void refuse_captured(const char* call, const SimulatedEvent& event) {
    if (event.capture != 0) [[unlikely]]
      spoil_capture_of(call, event);
  }

  std::uint64_t begin_capture(SimulatedStream& stream);
  void end_capture(SimulatedStream& stream);

 private:
  struct Capture {
    Stream origin = nullptr;
    bool spoilt = false;
    std::vector<SimulatedStream*> streams;
  };

  static std::size_t slot_of(Event name);
  SimulatedStream& add(Stream name);
  SimulatedStream& look_up(Stream name);
  [[noreturn]] static void refuse_event(const char* call);
  [[noreturn]] void spoil_captures(const char* call);
  [[noreturn]] void spoil_capture_of(const char* call, const SimulatedEvent& event);
  void require_sound(const char* call, const SimulatedStream& stream);
  void spoil(std::uint64_t capture);
  void join_capture(SimulatedStream& stream, std::uint64_t id);
  void leave_capture(SimulatedStream& stream);
  void forget_capture(std::uint64_t id);
  void note_ready(const SimulatedStream& stream);

  std::unordered_map<Stream, std::unique_ptr<SimulatedStream>> streams_;
  std::vector<Stream> free_names_;          // of streams that were destroyed
  std::vector<SimulatedStream*> blocking_;  // alive
  std::int64_t destroyed_ready_ns_ = 0;     // the end of the work of blocking streams that were destroyed
  std::uint64_t dead_stream_calls_ = 0;
  SimulatedStream* last_used_ = nullptr;
  std::int64_t all_ready_ns_ = 0;
  std::array<CopyEngine, 2> engines_;  // by CopyDirection

  const bool captures_refuse_;
  const bool counts_completions_;  // not read otherwise
  const std::uint64_t salt_;       // tells this device's events from others'
  std::vector<SimulatedEvent> events_;
  std::vector<std::uint32_t> generations_;  // by slot: how often it was used
  std::vector<std::size_t> free_slots_;

  std::map<std::uint64_t, Capture> captures_;  // underway, by id
};

CACHALOT_END
