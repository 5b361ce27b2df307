#include "tools/analysis/message_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

std::string processes_text(const std::vector<DeviceFacts::Process>& processes) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, processes.size()); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", processes[i].id, format_bytes(processes[i].bytes));
  return text + (processes.size() > kMost ? fmt::format(" and {} more", processes.size() - kMost) : "");
}

// Returns lines for the memory that is held outside of PyTorch, by all that a message tells.
std::string outside_text(const OomMessage& message) {
  std::string text;
  if (message.process_bytes) {
    const std::uint64_t in_torch = std::min(*message.process_bytes, message.reserved_bytes.value_or(0));
    text += labelled_line(
        "this process",
        fmt::format("{}{}, {} of it outside of PyTorch", format_bytes(*message.process_bytes),
                    message.own_process ? fmt::format(" (process {} of the host)", message.own_process->id) : "",
                    format_bytes(*message.process_bytes - in_torch)));
  }
  if (!message.other_processes.empty()) {
    const bool has_own = own_bytes(message).has_value();
    text += labelled_line(
        has_own ? "other processes" : "processes",
        fmt::format("{} ({})", format_bytes(other_bytes(message)), processes_text(message.other_processes)));
  }
  if (message.beside_bytes) text += labelled_line("other allocations", format_bytes(*message.beside_bytes));
  if (const auto unnamed = unnamed_bytes(message)) {
    text += labelled_line("held outside", fmt::format("{}: neither free nor of {}", format_bytes(*unnamed),
                                                      message.process_bytes || !message.other_processes.empty()
                                                          ? "the processes above"
                                                          : "this program's PyTorch"));
  }
  const auto own = own_bytes(message);
  if (message.is_of_torch && own && message.total_bytes && !message.free_bytes) {
    text += labelled_line(
        "held outside",
        fmt::format("at most {}: the message does not say how much of it is free",
                    format_bytes(*message.total_bytes - std::min(*message.total_bytes, *own + other_bytes(message)))));
  }
  return text;
}

template <typename Number>
nlohmann::ordered_json or_none(const std::optional<Number>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string message_text(const OomMessage& message) {
  std::string text = labelled_line(
      "message", fmt::format("{}{}{}", message.framework, message.source.empty() ? "" : ", " + message.source,
                             message.is_cut ? ", cut off: its other figures are missing" : ""));
  if (message.requested_bytes)
    text += labelled_line("asked for",
                          fmt::format("{} on device {}", format_bytes(*message.requested_bytes), message.device));
  if (message.total_bytes || message.free_bytes) {
    const std::string total = message.total_bytes ? format_bytes(*message.total_bytes) : "";
    const std::string free = message.free_bytes ? format_bytes(*message.free_bytes) + " free" : "";
    text += labelled_line("device", total + (total.empty() || free.empty() ? "" : ", ") + free);
  }
  if (message.allowed_bytes) text += labelled_line("allowed", format_bytes(*message.allowed_bytes));
  if (message.private_bytes) text += labelled_line("cached in private pools", format_bytes(*message.private_bytes));
  return text + outside_text(message);
}

nlohmann::ordered_json json_of_message(const OomMessage& message) {
  nlohmann::ordered_json json = {{"framework", message.framework},
                                 {"source", message.source},
                                 {"cut", message.is_cut},
                                 {"requested_bytes", or_none(message.requested_bytes)},
                                 {"total_bytes", or_none(message.total_bytes)},
                                 {"free_bytes", or_none(message.free_bytes)},
                                 {"allowed_bytes", or_none(message.allowed_bytes)},
                                 {"allocated_bytes", or_none(message.allocated_bytes)},
                                 {"reserved_bytes", or_none(message.reserved_bytes)},
                                 {"unallocated_bytes", or_none(message.unallocated_bytes)},
                                 {"private_pools_bytes", or_none(message.private_bytes)},
                                 {"largest_free_bytes", or_none(message.largest_free_bytes)},
                                 {"other_allocations_bytes", or_none(message.beside_bytes)},
                                 {"process_bytes", or_none(message.process_bytes)},
                                 {"outside_bytes", or_none(unnamed_bytes(message))}};
  json["own_process"] = message.own_process ? nlohmann::ordered_json(message.own_process->id) : nullptr;
  json["other_processes"] = nlohmann::ordered_json::array();
  for (const DeviceFacts::Process& process : message.other_processes)
    json["other_processes"].push_back({{"process", process.id}, {"bytes", process.bytes}});
  return json;
}

}  // namespace cachalot::tools
