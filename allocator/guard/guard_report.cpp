// Reports as text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cachalot/guard.h"

namespace cachalot {

namespace {

std::uint64_t number_of(Stream stream) { return reinterpret_cast<std::uint64_t>(stream); }

std::string what_happened(const GuardReport& report) {
  const auto behind = report.offset - as_signed(report.requested_bytes);
  switch (report.kind) {
    case GuardReport::Kind::front_canary:
      return fmt::format("somebody wrote before it: byte {} is the first that was overwritten", report.offset);
    case GuardReport::Kind::back_canary:
      return fmt::format("somebody wrote behind it: byte {} is the first that was overwritten, {} behind its end",
                         report.offset, behind);
    case GuardReport::Kind::write_after_free:
      return fmt::format("somebody wrote to it after it was freed: byte {} is the first that was overwritten",
                         report.offset);
  }
  return "";
}

std::string describe(const GuardCall& call) {
  return fmt::format("as call {} by thread {} at {}.{:06} s", call.number, call.thread, call.clock_us / 1'000'000,
                     call.clock_us % 1'000'000);
}

nlohmann::ordered_json to_json(const GuardCall& call) {
  return {{"number", call.number}, {"thread", call.thread}, {"clock_us", call.clock_us}};
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
      {"freed", nullptr},
  };
  for (const Stream stream : report.recorded) json["recorded"].push_back(number_of(stream));
  if (report.freed) json["freed"] = to_json(*report.freed);
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
  }
  return "unknown";
}

std::string to_string(const GuardReport& report) {
  std::string text = fmt::format(
      "the block of {} bytes at {:#x} on device {}: {}. It was allocated {} for stream {:#x}", report.requested_bytes,
      report.address, report.device, what_happened(report), describe(report.allocated), number_of(report.stream));
  for (std::size_t i = 0; i < report.recorded.size(); ++i) {
    text += fmt::format("{} {:#x}", i == 0 ? ", used on" : ",", number_of(report.recorded[i]));
  }
  if (report.freed) text += fmt::format(", and freed {}", describe(*report.freed));
  return text + ".";
}

std::string to_json(std::span<const GuardReport> reports) {
  nlohmann::ordered_json json = nlohmann::json::array();
  for (const GuardReport& report : reports) json.push_back(to_json(report));
  return json.dump();
}

}  // namespace cachalot
