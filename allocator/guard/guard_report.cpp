// Reports as text.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cachalot/guard.h"
#include "observe/json_text.h"

namespace cachalot {

namespace {

using Kind = GuardReport::Kind;

// Of a stack as text. JSON has all of it.
constexpr std::size_t kNativeFrames = 12;
constexpr std::size_t kBesideScript = 3;  // native ones, where an interpreter's say it better
constexpr std::size_t kNameLength = 100;  // templates' names may be thousands

std::uint64_t number_of(Stream stream) { return reinterpret_cast<std::uint64_t>(stream); }

std::string when(const GuardCall& call) {
  return fmt::format("by thread {} at {}.{:06} s", call.thread, call.clock_us / 1'000'000, call.clock_us % 1'000'000);
}

std::string what_was_written(const GuardReport& report) {
  const auto behind = report.offset - as_signed(report.requested_bytes);
  switch (report.kind) {
    case Kind::front_canary:
      return fmt::format("somebody wrote before it: byte {} is the first that was overwritten", report.offset);
    case Kind::back_canary:
      return fmt::format("somebody wrote behind it: byte {} is the first that was overwritten, {} behind its end",
                         report.offset, behind);
    default:
      return fmt::format("somebody wrote to it after it was freed: byte {} is the first that was overwritten",
                         report.offset);
  }
}

const char* name_of_mistake(Kind kind) {
  switch (kind) {
    case Kind::double_free:
      return "double free";
    case Kind::invalid_free:
      return "free of what is not allocated";
    case Kind::wrong_size:
      return "free with another size";
    case Kind::wrong_device:
      return "free on another device";
    case Kind::use_after_free:
      return "use after the free";
    case Kind::invalid_use:
      return "use of what is not allocated";
    default:
      return "use of a released pool";
  }
}

std::string what_was_found(const GuardReport& report) {
  if (report.mistake) {
    return fmt::format("{} {}: {}.", name_of_mistake(report.kind), when(*report.mistake), report.message);
  }
  return fmt::format("the block of {} bytes at {:#x} on device {}: {}.", report.requested_bytes, report.address,
                     report.device, what_was_written(report));
}

std::string history(const GuardReport& report) {
  if (report.kind == Kind::released_pool) return fmt::format(" The last of them did {}.", when(*report.freed));
  if (!report.allocated) return "";
  std::string text = fmt::format(" It was allocated as call {} {} for stream {:#x}", report.allocated->number,
                                 when(*report.allocated), number_of(report.stream));
  for (std::size_t i = 0; i < report.recorded.size(); ++i) {
    text += fmt::format("{} {:#x}", i == 0 ? ", used on" : ",", number_of(report.recorded[i]));
  }
  if (report.freed) text += fmt::format(", and freed as call {} {}", report.freed->number, when(*report.freed));
  return text + ".";
}

std::string stack_of(const char* what, const std::optional<GuardCall>& call) {
  if (!call || call->stack.empty()) return "";
  std::string text = fmt::format("\n  {}:", what);
  std::vector<CallFrame> frames = call->stack.frames();
  const std::size_t script_frames = call->stack.script_frames().size();
  const std::size_t shown = std::min(frames.size(), script_frames > 0 ? script_frames + kBesideScript : kNativeFrames);
  for (std::size_t i = 0; i < shown; ++i) {
    std::string& function = frames[i].function;
    if (function.size() > kNameLength) function.replace(kNameLength, std::string::npos, "…");
    text += fmt::format("\n    #{} {}", i, to_string(frames[i]));
  }
  if (shown < frames.size()) text += fmt::format("\n    and {} more", frames.size() - shown);
  return text;
}

std::string stacks(const GuardReport& report) {
  const char* const freed = report.kind == Kind::released_pool ? "released" : "freed";
  return stack_of("here", report.mistake) + stack_of(freed, report.freed) + stack_of("allocated", report.allocated);
}

nlohmann::ordered_json to_json(const std::optional<GuardCall>& call) {
  if (!call) return nullptr;
  nlohmann::ordered_json stack = nlohmann::json::array();
  for (const CallFrame& frame : call->stack.frames()) stack.push_back(to_string(frame));
  return {{"number", call->number}, {"thread", call->thread}, {"clock_us", call->clock_us}, {"stack", stack}};
}

nlohmann::ordered_json to_json(const GuardReport& report) {
  nlohmann::ordered_json json = {
      {"kind", to_string(report.kind)},
      {"device", report.device},
      {"address", report.address},
      {"requested_bytes", report.requested_bytes},
      {"offset", report.offset},
      {"stream", number_of(report.stream)},
      {"recorded", nlohmann::json::array()},
      {"allocated", to_json(report.allocated)},
      {"freed", to_json(report.freed)},
      {"mistake", to_json(report.mistake)},
      {"message", report.message},
  };
  for (const Stream stream : report.recorded) json["recorded"].push_back(number_of(stream));
  return json;
}

}  // namespace

const char* to_string(GuardReport::Kind kind) {
  switch (kind) {
    case GuardReport::Kind::front_canary:
      return "front_canary";
    case GuardReport::Kind::back_canary:
      return "back_canary";
    case GuardReport::Kind::write_after_free:
      return "write_after_free";
    case GuardReport::Kind::double_free:
      return "double_free";
    case GuardReport::Kind::invalid_free:
      return "invalid_free";
    case GuardReport::Kind::wrong_size:
      return "wrong_size";
    case GuardReport::Kind::wrong_device:
      return "wrong_device";
    case GuardReport::Kind::use_after_free:
      return "use_after_free";
    case GuardReport::Kind::invalid_use:
      return "invalid_use";
    case GuardReport::Kind::released_pool:
      return "released_pool";
  }
  return "unknown";
}

bool is_mistake(GuardReport::Kind kind) { return kind > GuardReport::Kind::write_after_free; }

std::string to_string(const GuardReport& report) { return what_was_found(report) + history(report) + stacks(report); }

std::string to_json(std::span<const GuardReport> reports) {
  nlohmann::ordered_json json = nlohmann::json::array();
  for (const GuardReport& report : reports) json.push_back(to_json(report));
  return text_of(json);
}

}  // namespace cachalot
