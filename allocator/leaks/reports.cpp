// What LeakDetector and AllocationTrack say, as text and as JSON.

#include <algorithm>

#include "base/bytes.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "cachalot/allocation_track.h"
#include "cachalot/leak_detector.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kFramesInText = 12;

std::string held(std::size_t bytes, std::uint64_t blocks) {
  return formatted("{} in {}", format_bytes(bytes), format_count(blocks, "block"));
}

std::string lines(const CallStack& stack, std::string_view indentation) {
  if (stack.empty()) return formatted("{}(no call stack)\n", indentation);
  const std::vector<CallFrame> frames = stack.frames();
  std::string text;
  for (std::size_t i = 0; i < frames.size() && i < kFramesInText; ++i) {
    text += formatted("{}#{} {}\n", indentation, i, to_string(frames[i]));
  }
  if (frames.size() > kFramesInText) text += formatted("{}… {} more\n", indentation, frames.size() - kFramesInText);
  return text;
}

std::string headline(const AllocationSite& site) {
  return formatted("{}, the oldest {} ({:.1f} s) old", held(site.live_bytes, site.live_blocks),
                   format_count(site.oldest_iterations, "iteration"), site.oldest_seconds);
}

void write_frame(JsonWriter& json, const CallFrame& frame) {
  json.begin_object()
      .member("function", frame.function)
      .member("file", frame.file)
      .member("line", frame.line)
      .member("is_script", frame.is_script)
      .end_object();
}

void write_members(JsonWriter& json, const AllocationSite& site) {
  json.member("live_bytes", site.live_bytes)
      .member("live_blocks", site.live_blocks)
      .member("allocated_blocks", site.allocated_blocks)
      .member("oldest_iterations", site.oldest_iterations)
      .member("oldest_seconds", site.oldest_seconds);
  json.key("stack").list(site.stack.frames(), write_frame);
  json.key("some_addresses").list(site.some_addresses);
}

void write_site(JsonWriter& json, const AllocationSite& site) {
  json.begin_object();
  write_members(json, site);
  json.end_object();
}

void write_leak(JsonWriter& json, const Leak& leak) {
  json.begin_object();
  write_members(json, leak.site);
  json.member("bytes_per_iteration", leak.bytes_per_iteration)
      .member("confidence", leak.confidence)
      .member("iterations", leak.iterations)
      .end_object();
}

}  // namespace

std::string to_string(const AllocationSite& site) { return headline(site) + "\n" + lines(site.stack, "  "); }

std::string to_json(const AllocationSite& site) {
  JsonWriter json;
  write_site(json, site);
  return json.take();
}

std::string to_string(const Leak& leak) {
  return formatted("+{} an iteration (confidence {:.4f}): {}\n{}",
                   format_bytes(static_cast<std::size_t>(leak.bytes_per_iteration)),
                   std::min(leak.confidence, 0.9999),  // it is a test: never certain
                   headline(leak.site), lines(leak.site.stack, "  "));
}

std::string to_string(const LeakReport& report) {
  const bool is_one = report.leak_count == 1;
  std::string text = formatted("{} of {} grow{} after {}; {} live\n", format_count(report.leak_count, "site"),
                               report.site_count, is_one ? "s" : "", format_count(report.iterations, "iteration"),
                               held(report.live_bytes, report.live_blocks));
  for (const Leak& leak : report.leaks) text += to_string(leak);
  if (report.leak_count > report.leaks.size()) {
    text += formatted("and {} more\n", report.leak_count - report.leaks.size());
  }
  return text;
}

std::string to_json(const LeakReport& report) {
  JsonWriter json;
  json.begin_object()
      .member("iterations", report.iterations)
      .member("live_bytes", report.live_bytes)
      .member("live_blocks", report.live_blocks)
      .member("site_count", report.site_count)
      .member("leak_count", report.leak_count);
  json.key("leaks").list(report.leaks, write_leak);
  json.key("sites").list(report.sites, write_site);
  return json.end_object().take();
}

std::string to_string(const TrackReport& report) {
  std::string text =
      formatted("allocated {}, freed {} (of those {} from before), left {}, peak {}\n",
                held(report.allocated_bytes, report.allocated_blocks), held(report.freed_bytes, report.freed_blocks),
                held(report.freed_earlier_bytes, report.freed_earlier_blocks),
                held(report.left_bytes, report.left_blocks), format_bytes(report.peak_bytes));
  for (const AllocationSite& site : report.sites) text += to_string(site);
  if (report.site_count > report.sites.size()) {
    text += formatted("and {} more\n", format_count(report.site_count - report.sites.size(), "site"));
  }
  return text;
}

std::string to_json(const TrackReport& report) {
  JsonWriter json;
  json.begin_object()
      .member("allocated_blocks", report.allocated_blocks)
      .member("allocated_bytes", report.allocated_bytes)
      .member("freed_blocks", report.freed_blocks)
      .member("freed_bytes", report.freed_bytes)
      .member("freed_earlier_blocks", report.freed_earlier_blocks)
      .member("freed_earlier_bytes", report.freed_earlier_bytes)
      .member("left_blocks", report.left_blocks)
      .member("left_bytes", report.left_bytes)
      .member("peak_bytes", report.peak_bytes)
      .member("site_count", report.site_count);
  json.key("sites").list(report.sites, write_site);
  return json.end_object().take();
}

CACHALOT_END
