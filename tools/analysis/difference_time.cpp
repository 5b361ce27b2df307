#include "tools/analysis/difference_time.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <utility>

#include "tools/analysis/timeline.h"

namespace cachalot::tools {
namespace {

// The events at which an outermost stage begins, by its name.
std::map<std::string, std::vector<std::size_t>> stage_begins(const ComparedRun& run) {
  std::map<std::string, std::vector<std::size_t>> begins;
  if (run.device == nullptr) return begins;
  const Stages stages(*run.history, *run.device);
  TextId open = 0;
  for (std::size_t event = 0; event < run.device->events.size(); ++event) {
    const std::vector<TextId>& now = stages.open(stages.at(event));
    const TextId outermost = now.empty() ? 0 : now.front();
    if (outermost != open && outermost != 0) begins[without_numbers(run.history->texts[outermost])].push_back(event);
    open = outermost;
  }
  return begins;
}

struct Alignment {
  std::string by = "events";
  std::array<std::vector<std::size_t>, 2> begins;  // of the parts, by event
  std::vector<double> marks;                       // what the parts begin with, and the end of the last
};

std::size_t events_of(const ComparedRun& run) { return run.device == nullptr ? 0 : run.device->events.size(); }

using Begins = std::vector<std::size_t>;

// The stage that both have most often, if they have one twice.
Alignment by_stage(const ComparedRun& a, const ComparedRun& b) {
  const std::map<std::string, Begins> begins_a = stage_begins(a);
  const std::map<std::string, Begins> begins_b = stage_begins(b);
  Alignment best;
  std::size_t most = 1;
  for (const auto& [name, events] : begins_a) {
    const auto other = begins_b.find(name);
    if (other == begins_b.end()) continue;
    const std::size_t both = std::min(events.size(), other->second.size());
    if (both <= most) continue;
    most = both;
    best = {.by = name, .begins = {events, other->second}, .marks = {}};
    for (Begins& each : best.begins) each.resize(both);
  }
  return best;
}

// Puts stages together, where there are more than parts.
void divide(Alignment& alignment, std::size_t parts) {
  const std::array<Begins, 2> all = std::exchange(alignment.begins, {});
  const std::size_t stages = all[0].size();
  parts = std::min(parts, stages);
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t stage = stages * i / parts;
    for (std::size_t run = 0; run < all.size(); ++run) alignment.begins[run].push_back(all[run][stage]);
    alignment.marks.push_back(static_cast<double>(stage));
  }
  alignment.marks.push_back(static_cast<double>(stages));
}

Alignment by_share(const ComparedRun& a, const ComparedRun& b, std::size_t parts) {
  Alignment alignment;
  for (std::size_t i = 0; i < parts; ++i) {
    alignment.begins[0].push_back(events_of(a) * i / parts);
    alignment.begins[1].push_back(events_of(b) * i / parts);
    alignment.marks.push_back(static_cast<double>(i) / static_cast<double>(parts));
  }
  alignment.marks.push_back(1);
  return alignment;
}

// The most requested bytes from each begin to the next; in the first part from the state before it on.
std::vector<std::uint64_t> peaks_of(const ComparedRun& run, const std::vector<std::size_t>& begins) {
  std::vector<std::uint64_t> peaks(begins.size());
  if (run.device == nullptr) return peaks;
  const std::vector<std::uint64_t> blocks = block_bytes_of(*run.device, run.allocations);
  HeldCursor cursor(*run.device, run.allocations, blocks);
  std::size_t next = 0;  // the part that begins next
  const auto look = [&] {
    while (next < begins.size() && begins[next] <= cursor.event()) ++next;
    if (next > 0) peaks[next - 1] = std::max(peaks[next - 1], cursor.held().requested);
  };
  for (look(); !cursor.is_at_end(); look()) cursor.advance();
  return peaks;
}

}  // namespace

std::string without_numbers(std::string_view name) {
  std::string text;
  bool in_number = false;
  for (const char c : name) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) text += c;
    if (is_digit && !in_number) text += '*';
    in_number = is_digit;
  }
  return text;
}

void compare_in_time(const ComparedRun& a, const ComparedRun& b, std::size_t parts, DeviceDifference& difference) {
  Alignment alignment = by_stage(a, b);
  if (alignment.by == "events") {
    alignment = by_share(a, b, parts);
  } else {
    divide(alignment, parts);
  }
  const std::vector<std::uint64_t> peaks_a = peaks_of(a, alignment.begins[0]);
  const std::vector<std::uint64_t> peaks_b = peaks_of(b, alignment.begins[1]);
  difference.aligned_by = alignment.by;
  for (std::size_t i = 0; i < peaks_a.size(); ++i) {
    difference.parts.push_back(
        {.begin = alignment.marks[i], .end = alignment.marks[i + 1], .peak_bytes = {peaks_a[i], peaks_b[i]}});
  }
}

}  // namespace cachalot::tools
