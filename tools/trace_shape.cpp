#include "tools/trace_shape.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace cachalot::tools {
namespace {

// Gives slots to the events anew.
class Rewriter {
 public:
  explicit Rewriter(const Trace& trace) : trace_(trace), live_(trace.slots) { events_.reserve(trace.events.size()); }

  Trace rewrite() {
    for (const TraceEvent& event : trace_.events) {
      if (event.empties_cache()) {
        write_frees();
        events_.push_back(event);
      } else if (event.is_free()) {
        frees_.push_back(live_[event.slot]);
      } else {
        write_frees();
        const TraceEvent made = maker_.allocate(event.bytes, event.stream);
        live_[event.slot] = {allocations_++, made.slot};
        events_.push_back(made);
      }
    }
    write_frees();
    Trace result = trace_;
    result.events = std::move(events_);
    result.streams = maker_.streams();
    result.slots = maker_.slots();
    return result;
  }

 private:
  struct Allocation {
    std::size_t number = 0;
    std::uint32_t slot = 0;  // the new one
  };

  void write_frees() {
    std::ranges::sort(frees_, {}, &Allocation::number);
    for (const Allocation& allocation : frees_) events_.push_back(maker_.free(allocation.slot));
    frees_.clear();
  }

  const Trace& trace_;
  TraceMaker maker_;
  std::vector<TraceEvent> events_;
  std::vector<Allocation> live_;   // by the old slot
  std::vector<Allocation> frees_;  // of the row of frees that is read
  std::size_t allocations_ = 0;
};

bool are_alike(const TraceEvent& one, const TraceEvent& other) {
  return one.slot == other.slot && one.stream == other.stream;
}

constexpr std::uint64_t kMargin = 2;  // deviations

}  // namespace

Trace with_ordered_frees(const Trace& trace) { return trace.is_held() ? Rewriter(trace).rewrite() : trace; }

bool have_one_shape(const Trace& one, const Trace& other) {
  return one.is_held() && other.is_held() && std::ranges::equal(one.events, other.events, are_alike);
}

Trace on_line(const TraceAt& low, const TraceAt& high, std::int64_t value) {
  const double part = static_cast<double>(value - low.value) / static_cast<double>(high.value - low.value);
  Trace trace = low.trace;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const auto from = static_cast<double>(low.trace.events[i].bytes);
    const auto to = static_cast<double>(high.trace.events[i].bytes);
    trace.events[i].bytes = static_cast<std::uint64_t>(std::llround(std::max(0.0, from + (to - from) * part)));
  }
  return trace;
}

void note_deviations(Deviations& deviations, const Trace& computed, const Trace& real) {
  for (std::size_t i = 0; i < deviations.size(); ++i) {
    const auto [least, most] = std::minmax(computed.events[i].bytes, real.events[i].bytes);
    deviations[i] = std::max(deviations[i], most - least);
  }
}

Trace raised(Trace trace, const Deviations& deviations) {
  for (std::size_t i = 0; i < deviations.size(); ++i) trace.events[i].bytes += kMargin * deviations[i];
  return trace;
}

Trace lowered(Trace trace, const Deviations& deviations) {
  for (std::size_t i = 0; i < deviations.size(); ++i) {
    std::uint64_t& bytes = trace.events[i].bytes;
    bytes -= std::min(bytes, kMargin * deviations[i]);
  }
  return trace;
}

}  // namespace cachalot::tools
