#include "tools/replay/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

using Heap = Policy::Heap;

PolicyFigures timed_figures_of(const Trace& trace, Heap heap, std::size_t device_bytes) {
  PolicyFigures figures = *figures_of(trace, {.heap = heap}, device_bytes);
  figures.ns_per_event = host_ns_per_event(trace, {.heap = heap}, device_bytes);
  return figures;
}

// The figures of all traces together: bytes and failures summed, time per event of all events.
Comparison sum_of(const std::vector<Comparison>& comparisons) {
  Comparison sum;
  for (const Comparison& one : comparisons) {
    sum.events += one.events;
    sum.peak_requested_bytes += one.peak_requested_bytes;
    for (std::size_t i = 0; i < kHeapCount; ++i) {
      sum.figures[i].peak_held_bytes += one.figures[i].peak_held_bytes;
      sum.figures[i].ooms += one.figures[i].ooms;
      sum.figures[i].ns_per_event += one.figures[i].ns_per_event * static_cast<double>(one.events);
    }
  }
  for (PolicyFigures& figures : sum.figures)
    figures.ns_per_event /= static_cast<double>(std::max<std::size_t>(sum.events, 1));
  return sum;
}

double ratio_of(std::size_t bytes, std::size_t to) {
  return to == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(to);
}

Cell mib_cell(std::size_t bytes, Mood mood = Mood::plain) {
  return {bytes, fmt::format("{:.0f}", static_cast<double>(bytes) / static_cast<double>(kMiB)), mood};
}

void add_row(Table& table, std::string name, const Comparison& one) {
  const std::size_t requested = one.peak_requested_bytes;
  std::vector<Cell> row = {std::move(name), one.events, mib_cell(requested)};
  for (const Heap heap : kHeaps) {
    const Mood mood = heap == Heap::pages ? Mood::good : Mood::plain;
    const double ratio = ratio_of(one.of(heap).peak_held_bytes, requested);
    row.push_back(mib_cell(one.of(heap).peak_held_bytes, mood));
    row.emplace_back(ratio, fmt::format("{:.3f}", ratio), mood);
  }
  for (const Heap heap : {Heap::segments, Heap::pages})
    row.emplace_back(one.of(heap).ns_per_event, fmt::format("{:.0f}", one.of(heap).ns_per_event));
  table.rows.push_back(std::move(row));
}

Table comparison_table(const std::vector<Comparison>& comparisons) {
  std::size_t name_width = std::string_view("together").size();
  for (const Comparison& one : comparisons) name_width = std::max(name_width, trace_name(one.trace).size());
  Table table{.title = "Memory that the policies hold",
              .columns = {{.title = "trace", .width = name_width, .is_left = true},
                          {.title = "events", .unit = Unit::count, .width = 10},
                          {.title = "MiB", .unit = Unit::bytes, .width = 10, .page_title = "requested"}},
              .heading = fmt::format("{:<{}} {:>10} {:>10} {:>18} {:>18} {:>18} {:>19}", "", name_width, "",
                                     "requested", "PyTorch", "expandable segm.", "page heap", "host ns per event"),
              .indent = 0,
              .views = kForPeople};
  for (const Heap heap : kHeaps) {
    const std::string_view name = name_of(heap);
    table.columns.push_back(
        {.title = "held MiB", .unit = Unit::bytes, .width = 10, .page_title = fmt::format("{}: held", name)});
    table.columns.push_back(
        {.title = "ratio", .unit = Unit::number, .width = 7, .page_title = fmt::format("{}: ratio", name)});
  }
  table.columns.push_back(
      {.title = "PyTorch's", .unit = Unit::number, .width = 9, .page_title = "PyTorch: ns per event"});
  table.columns.push_back(
      {.title = "pages", .unit = Unit::number, .width = 9, .page_title = "page heap: ns per event"});
  for (const Comparison& one : comparisons) add_row(table, trace_name(one.trace), one);
  if (comparisons.size() > 1) add_row(table, "together", sum_of(comparisons));
  return table;
}

constexpr std::string_view kLegend =
    "requested: the most memory that the program uses at once. held: the most memory that the allocator takes from "
    "the GPU; ratio: held / requested. PyTorch: its default policy, which cachalot's heap:segments repeats decision "
    "for decision. expandable segm.: PyTorch's expandable_segments:True, computed by a model that reaches what "
    "PyTorch 2.11 holds on the shipped traces to the byte. page heap: cachalot's heap:pages. host ns per event: "
    "cachalot's time for one malloc or free with PyTorch's policy and with the page heap.";

std::string failures_text_of(const Comparison& one) {
  if (std::ranges::all_of(one.figures, [](const PolicyFigures& figures) { return figures.ooms == 0; })) return "";
  return fmt::format(
      "{}: allocations that failed on this device: {} with PyTorch's policy, {} with expandable segments, "
      "{} with the page heap",
      trace_name(one.trace), one.of(Heap::segments).ooms, one.of(Heap::expandable_segments).ooms,
      one.of(Heap::pages).ooms);
}

// "17.0 % less memory than PyTorch's policy".
std::string difference(std::size_t bytes, std::size_t than, std::string_view what) {
  const double part = 100 * (1 - ratio_of(bytes, than));
  if (std::abs(part) < 0.05) return fmt::format("as much memory as {}", what);
  return fmt::format("{:.1f} % {} memory than {}", std::abs(part), part > 0 ? "less" : "more", what);
}

Section policy_section(const char* key, const PolicyFigures& figures, std::size_t requested) {
  Section section = object_of(key);
  section.add_value("peak_held_bytes", figures.peak_held_bytes);
  section.add_value("ratio", ratio_of(figures.peak_held_bytes, requested)).add_value("ooms", figures.ooms);
  return section.add_value("ns_per_event", figures.ns_per_event > 0 ? Json(figures.ns_per_event) : nullptr);
}

}  // namespace

Comparison compare_policies(const Trace& trace, std::size_t device_bytes, const std::function<void(double)>& progress) {
  Comparison comparison;
  comparison.trace = trace.path;
  comparison.events = trace.event_count;
  comparison.peak_requested_bytes = peak_live_bytes(trace);
  comparison.failed_requests = trace.failed_requests;
  double done = 0;
  for (const Heap heap : kHeaps) {
    comparison.figures[index_of(heap)] = timed_figures_of(trace, heap, device_bytes);
    progress(++done / static_cast<double>(kHeapCount));
  }
  return comparison;
}

std::string conclusion(const std::vector<Comparison>& comparisons) {
  const Comparison sum = sum_of(comparisons);
  const PolicyFigures& pages = sum.of(Heap::pages);
  const auto difference_to = [&](Heap heap, std::string_view what) {
    return difference(pages.peak_held_bytes, sum.of(heap).peak_held_bytes, what);
  };
  const std::string where =
      comparisons.size() == 1 ? "On this trace" : fmt::format("On these {} traces together", comparisons.size());
  return fmt::format("{} the page heap holds {} and {}, at {:.0f} ns of host time per event instead of {:.0f} ns.",
                     where, difference_to(Heap::segments, "PyTorch's policy"),
                     difference_to(Heap::expandable_segments, "expandable segments"), pages.ns_per_event,
                     sum.of(Heap::segments).ns_per_event);
}

Section report_of(const Comparison& comparison) {
  const std::size_t requested = comparison.peak_requested_bytes;
  Section section;
  section.add_value("trace", comparison.trace).add_value("events", comparison.events);
  section.add_value("peak_requested_bytes", requested).add_value("failed_requests", comparison.failed_requests);
  section.add(policy_section("pytorch", comparison.of(Heap::segments), requested));
  section.add(policy_section("pytorch_expandable_segments", comparison.of(Heap::expandable_segments), requested));
  return section.add(policy_section("page_heap", comparison.of(Heap::pages), requested));
}

Section report_of(const std::vector<Comparison>& comparisons) {
  Section section;
  section.add(comparison_table(comparisons)).add_gap();
  section.add(Note{.text = std::string(kLegend)}).add_gap();
  for (const Comparison& one : comparisons) {
    if (std::string failures = failures_text_of(one); !failures.empty())
      section.add(Note{.text = std::move(failures), .is_wrapped = false});
  }
  return section.add(Note{.text = conclusion(comparisons), .is_bold = true});
}

}  // namespace cachalot::tools
