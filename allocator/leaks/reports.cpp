// What LeakDetector and AllocationTrack say, as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cachalot/allocation_track.h"
#include "cachalot/leak_detector.h"
#include "observe/json_text.h"

namespace cachalot {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kFramesInText = 12;

std::string held(std::size_t bytes, std::uint64_t blocks) {
  return fmt::format("{} in {}", format_bytes(bytes), format_count(blocks, "block"));
}

std::string lines(const CallStack& stack, std::string_view indentation) {
  if (stack.empty()) return fmt::format("{}(no call stack)\n", indentation);
  const std::vector<CallFrame> frames = stack.frames();
  std::string text;
  for (std::size_t i = 0; i < frames.size() && i < kFramesInText; ++i) {
    text += fmt::format("{}#{} {}\n", indentation, i, to_string(frames[i]));
  }
  if (frames.size() > kFramesInText) text += fmt::format("{}… {} more\n", indentation, frames.size() - kFramesInText);
  return text;
}

std::string headline(const AllocationSite& site) {
  return fmt::format("{}, the oldest {} ({:.1f} s) old", held(site.live_bytes, site.live_blocks),
                     format_count(site.oldest_iterations, "iteration"), site.oldest_seconds);
}

Json frames_of(const CallStack& stack) {
  Json json = Json::array();
  for (const CallFrame& frame : stack.frames()) {
    json.push_back(
        {{"function", frame.function}, {"file", frame.file}, {"line", frame.line}, {"is_script", frame.is_script}});
  }
  return json;
}

Json json_of(const AllocationSite& site) {
  return {{"live_bytes", site.live_bytes},
          {"live_blocks", site.live_blocks},
          {"allocated_blocks", site.allocated_blocks},
          {"oldest_iterations", site.oldest_iterations},
          {"oldest_seconds", site.oldest_seconds},
          {"stack", frames_of(site.stack)},
          {"some_addresses", site.some_addresses}};
}

Json json_of(const Leak& leak) {
  Json json = json_of(leak.site);
  json["bytes_per_iteration"] = leak.bytes_per_iteration;
  json["confidence"] = leak.confidence;
  json["iterations"] = leak.iterations;
  return json;
}

template <typename Value>
Json list_of(const std::vector<Value>& values) {
  Json json = Json::array();
  for (const Value& value : values) json.push_back(json_of(value));
  return json;
}

}  // namespace

std::string to_string(const AllocationSite& site) { return headline(site) + "\n" + lines(site.stack, "  "); }

std::string to_json(const AllocationSite& site) { return text_of(json_of(site)); }

std::string to_string(const Leak& leak) {
  return fmt::format("+{} an iteration (confidence {:.4f}): {}\n{}",
                     format_bytes(static_cast<std::size_t>(leak.bytes_per_iteration)),
                     std::min(leak.confidence, 0.9999),  // it is a test: never certain
                     headline(leak.site), lines(leak.site.stack, "  "));
}

std::string to_string(const LeakReport& report) {
  const bool is_one = report.leak_count == 1;
  std::string text = fmt::format("{} of {} grow{} after {}; {} live\n", format_count(report.leak_count, "site"),
                                 report.site_count, is_one ? "s" : "", format_count(report.iterations, "iteration"),
                                 held(report.live_bytes, report.live_blocks));
  for (const Leak& leak : report.leaks) text += to_string(leak);
  if (report.leak_count > report.leaks.size()) {
    text += fmt::format("and {} more\n", report.leak_count - report.leaks.size());
  }
  return text;
}

std::string to_json(const LeakReport& report) {
  return text_of({{"iterations", report.iterations},
                  {"live_bytes", report.live_bytes},
                  {"live_blocks", report.live_blocks},
                  {"site_count", report.site_count},
                  {"leak_count", report.leak_count},
                  {"leaks", list_of(report.leaks)},
                  {"sites", list_of(report.sites)}});
}

std::string to_string(const TrackReport& report) {
  std::string text =
      fmt::format("allocated {}, freed {} (of those {} from before), left {}, peak {}\n",
                  held(report.allocated_bytes, report.allocated_blocks), held(report.freed_bytes, report.freed_blocks),
                  held(report.freed_earlier_bytes, report.freed_earlier_blocks),
                  held(report.left_bytes, report.left_blocks), format_bytes(report.peak_bytes));
  for (const AllocationSite& site : report.sites) text += to_string(site);
  if (report.site_count > report.sites.size()) {
    text += fmt::format("and {} more\n", format_count(report.site_count - report.sites.size(), "site"));
  }
  return text;
}

std::string to_json(const TrackReport& report) {
  return text_of({{"allocated_blocks", report.allocated_blocks},
                  {"allocated_bytes", report.allocated_bytes},
                  {"freed_blocks", report.freed_blocks},
                  {"freed_bytes", report.freed_bytes},
                  {"freed_earlier_blocks", report.freed_earlier_blocks},
                  {"freed_earlier_bytes", report.freed_earlier_bytes},
                  {"left_blocks", report.left_blocks},
                  {"left_bytes", report.left_bytes},
                  {"peak_bytes", report.peak_bytes},
                  {"site_count", report.site_count},
                  {"sites", list_of(report.sites)}});
}

}  // namespace cachalot
