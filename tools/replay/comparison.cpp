#include "tools/replay/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

PolicyFigures timed_figures_of(const Trace& trace, Policy policy, std::size_t device_bytes) {
  PolicyFigures figures = *figures_of(trace, heap_of(settings_of(policy)), device_bytes);
  figures.ns_per_event = host_ns_per_event(trace, settings_of(policy), device_bytes);
  return figures;
}

// The figures of all traces together: bytes and failures summed, time per event of all events.
Comparison sum_of(const std::vector<Comparison>& comparisons) {
  Comparison sum;
  const auto add = [](PolicyFigures& to, const PolicyFigures& figures, std::size_t events) {
    to.peak_held_bytes += figures.peak_held_bytes;
    to.ooms += figures.ooms;
    to.ns_per_event += figures.ns_per_event * static_cast<double>(events);
  };
  for (const Comparison& one : comparisons) {
    sum.events += one.events;
    sum.peak_requested_bytes += one.peak_requested_bytes;
    add(sum.native, one.native, one.events);
    add(sum.expandable, one.expandable, one.events);
    add(sum.pages, one.pages, one.events);
  }
  for (PolicyFigures* figures : {&sum.native, &sum.expandable, &sum.pages}) {
    figures->ns_per_event /= static_cast<double>(std::max<std::size_t>(sum.events, 1));
  }
  return sum;
}

double ratio_of(std::size_t bytes, std::size_t to) {
  return to == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(to);
}

std::string held_text(const PolicyFigures& figures, std::size_t requested) {
  const double mib = static_cast<double>(figures.peak_held_bytes) / static_cast<double>(kMiB);
  return fmt::format("{:>10.0f} {:>7.3f}", mib, ratio_of(figures.peak_held_bytes, requested));
}

std::string row(const std::string& name, std::size_t name_width, const Comparison& one, const Style& style) {
  const std::size_t requested = one.peak_requested_bytes;
  return fmt::format("{:<{}} {:>10} {:>10.0f} {} {} {} {:>9.0f} {:>9.0f}\n", name, name_width, with_commas(one.events),
                     static_cast<double>(requested) / static_cast<double>(kMiB), held_text(one.native, requested),
                     held_text(one.expandable, requested), style.good(held_text(one.pages, requested)),
                     one.native.ns_per_event, one.pages.ns_per_event);
}

std::string headings(std::size_t name_width, const Style& style) {
  const std::string groups = fmt::format("{:<{}} {:>10} {:>10} {:>18} {:>18} {:>18} {:>19}", "", name_width, "",
                                         "requested", "PyTorch", "expandable segm.", "page heap", "host ns per event");
  const std::string columns =
      fmt::format("{:<{}} {:>10} {:>10} {:>10} {:>7} {:>10} {:>7} {:>10} {:>7} {:>9} {:>9}", "trace", name_width,
                  "events", "MiB", "held MiB", "ratio", "held MiB", "ratio", "held MiB", "ratio", "PyTorch's", "pages");
  return style.bold(groups) + "\n" + style.bold(columns) + "\n";
}

constexpr std::string_view kLegend =
    "requested: the most memory that the program uses at once. held: the most memory that the allocator takes from "
    "the GPU; ratio: held / requested. PyTorch: its default policy, which cachalot's heap:segments repeats decision "
    "for decision. expandable segm.: PyTorch's expandable_segments:True, computed by a model that reaches what "
    "PyTorch 2.11 holds on the shipped traces to the byte. page heap: cachalot's heap:pages. host ns per event: "
    "cachalot's time for one malloc or free with PyTorch's policy and with the page heap.";

std::string failures_text_of(const Comparison& one) {
  if (one.native.ooms + one.expandable.ooms + one.pages.ooms == 0) return "";
  return fmt::format(
      "{}: allocations that failed on this device: {} with PyTorch's policy, {} with expandable segments, "
      "{} with the page heap\n",
      trace_name(one.trace), one.native.ooms, one.expandable.ooms, one.pages.ooms);
}

// "17.0 % less memory than PyTorch's policy".
std::string difference(std::size_t bytes, std::size_t than, std::string_view what) {
  const double part = 100 * (1 - ratio_of(bytes, than));
  if (std::abs(part) < 0.05) return fmt::format("as much memory as {}", what);
  return fmt::format("{:.1f} % {} memory than {}", std::abs(part), part > 0 ? "less" : "more", what);
}

nlohmann::ordered_json json_of_policy(const PolicyFigures& figures, std::size_t requested) {
  return {{"peak_held_bytes", figures.peak_held_bytes},
          {"ratio", ratio_of(figures.peak_held_bytes, requested)},
          {"ooms", figures.ooms},
          {"ns_per_event", figures.ns_per_event > 0 ? nlohmann::ordered_json(figures.ns_per_event) : nullptr}};
}

}  // namespace

Comparison compare_policies(const Trace& trace, std::size_t device_bytes, const std::function<void(double)>& progress) {
  Comparison comparison;
  comparison.trace = trace.path;
  comparison.events = trace.event_count;
  comparison.peak_requested_bytes = peak_live_bytes(trace);
  double done = 0;
  for (const Policy policy : kPolicies) {
    PolicyFigures Comparison::*const figures[] = {&Comparison::native, &Comparison::expandable, &Comparison::pages};
    comparison.*figures[index_of(policy)] = timed_figures_of(trace, policy, device_bytes);
    progress(++done / static_cast<double>(kPolicyCount));
  }
  return comparison;
}

std::string to_text(const std::vector<Comparison>& comparisons, const Style& style) {
  std::size_t name_width = std::string_view("together").size();
  for (const Comparison& one : comparisons) name_width = std::max(name_width, trace_name(one.trace).size());
  std::string text = headings(name_width, style);
  for (const Comparison& one : comparisons) text += row(trace_name(one.trace), name_width, one, style);
  if (comparisons.size() > 1) text += row("together", name_width, sum_of(comparisons), style);
  text += "\n" + wrapped(kLegend, 0) + "\n";
  for (const Comparison& one : comparisons) text += failures_text_of(one);
  std::string sentence = wrapped(conclusion(comparisons), 0);
  sentence.pop_back();  // the newline is not bold
  return text + style.bold(sentence) + "\n";
}

std::string conclusion(const std::vector<Comparison>& comparisons) {
  const Comparison sum = sum_of(comparisons);
  const std::string where =
      comparisons.size() == 1 ? "On this trace" : fmt::format("On these {} traces together", comparisons.size());
  return fmt::format("{} the page heap holds {} and {}, at {:.0f} ns of host time per event instead of {:.0f} ns.",
                     where, difference(sum.pages.peak_held_bytes, sum.native.peak_held_bytes, "PyTorch's policy"),
                     difference(sum.pages.peak_held_bytes, sum.expandable.peak_held_bytes, "expandable segments"),
                     sum.pages.ns_per_event, sum.native.ns_per_event);
}

std::string to_json(const Comparison& comparison) {
  const std::size_t requested = comparison.peak_requested_bytes;
  nlohmann::ordered_json json;
  json["trace"] = comparison.trace;
  json["events"] = comparison.events;
  json["peak_requested_bytes"] = requested;
  json["pytorch"] = json_of_policy(comparison.native, requested);
  json["pytorch_expandable_segments"] = json_of_policy(comparison.expandable, requested);
  json["page_heap"] = json_of_policy(comparison.pages, requested);
  return text_of(json);
}

}  // namespace cachalot::tools
