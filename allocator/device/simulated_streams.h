// Streams and events of the simulated device, on its virtual clock, and stream capture.
//
// A stream is the time at which the work queued on it ends; an event is the time at which it will be done. While a
// stream captures nothing is queued: its work and its events belong to the graph.
// A stream's name is that of a new stream once it was destroyed, and calls in between are refused: as the driver gives
// handles again at once, and does not define what else it does with them.
// Capture is CUDA's global mode: calls that wait or ask for work are refused for everyone and spoil every capture.
// Not modelled: that a forked stream must be joined again before the end of the capture.
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
#include "device/copy_engine.h"
#include "device/vector_clock.h"

namespace cachalot {

struct SimulatedEvent {
  Event name = nullptr;  // null: the slot is free
  bool recorded = false;
  std::int64_t done_ns = 0;   // the work it marks ends here
  std::uint64_t capture = 0;  // recorded inside this capture: no ordinary event
  VectorClock after;          // what it marks, for the hazard checker
};

class SimulatedStream {
 public:
  SimulatedStream(Stream name, std::uint64_t id) : name_(name), id_(id) {}

  Stream name() const { return name_; }
  std::uint64_t id() const { return id_; }  // no other stream of the process ever has it
  bool is_dead() const { return id_ == 0; }
  void destroy() { id_ = 0; }
  // As a new stream of this name. Events that the old one recorded still count when they complete.
  void begin_again(std::uint64_t id) {
    id_ = id;
    ready_ns_ = 0;
  }
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
  // Any value names a stream. Throws CUDA_ERROR_INVALID_HANDLE for the name of one that was destroyed.
  SimulatedStream& stream(Stream name) {
    return last_used_ && last_used_->name() == name ? *last_used_ : look_up(name);
  }
  // The same for one that was destroyed, too.
  SimulatedStream& even_dead(Stream name);
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
  // The same whatever the owner said about captures.
  void refuse_in_any_mode(const char* call) {
    if (!captures_.empty()) spoil_captures(call);
  }
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
  std::vector<Stream> free_names_;  // of streams that were destroyed
  std::uint64_t dead_stream_calls_ = 0;
  SimulatedStream* last_used_ = nullptr;
  std::int64_t all_ready_ns_ = 0;
  std::array<CopyEngine, 2> engines_;  // by CopyDirection

  const bool captures_refuse_;
  const bool counts_completions_;  // nobody asks otherwise
  const std::uint64_t salt_;       // tells this device's events from others'
  std::vector<SimulatedEvent> events_;
  std::vector<std::uint32_t> generations_;  // by slot: how often it was used
  std::vector<std::size_t> free_slots_;

  std::map<std::uint64_t, Capture> captures_;  // underway, by id
};

// A stream name that no other call of this function returned in this process.
Stream fresh_stream_name();

}  // namespace cachalot
