#include "tools/analysis/oom_message.h"

#include <array>
#include <charconv>
#include <string>

#include "base/check.h"

namespace cachalot::tools {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Reads "79.15 GiB" at the beginning of the text.
std::optional<std::uint64_t> size_at(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > 1e15) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  constexpr std::array<std::string_view, 5> kUnits = {" bytes", " KiB", " MiB", " GiB", " TiB"};
  double unit = 1;
  for (const std::string_view name : kUnits) {
    if (text.starts_with(name)) return static_cast<std::uint64_t>(std::min(number * unit, 1e18));
    unit *= 1024;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> size_behind(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == std::string_view::npos ? std::nullopt : size_at(text.substr(at + words.size()));
}

// Reads the size that stands before the words: "409.60 MiB allowed".
std::optional<std::uint64_t> size_before(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t begin = text.rfind(' ', at == 0 ? 0 : at - 1);  // between number and unit
  if (begin == std::string_view::npos || begin == 0) return std::nullopt;
  begin = text.rfind(' ', begin - 1);
  return size_at(text.substr(begin == std::string_view::npos ? 0 : begin + 1));
}

template <typename Number>
std::optional<Number> number_behind(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string_view::npos) return std::nullopt;
  Number number = 0;
  const char* const begin = text.data() + at + words.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

std::vector<DeviceFacts::Process> processes_in(std::string_view text) {
  constexpr std::string_view kWord = "Process ";
  constexpr std::size_t kMost = 1000;
  std::vector<DeviceFacts::Process> processes;
  for (std::size_t at = text.find(kWord); at != std::string_view::npos; at = text.find(kWord, at + 1)) {
    const std::string_view rest = text.substr(at);
    const auto id = number_behind<std::uint64_t>(rest, kWord);
    const auto bytes = size_behind(rest.substr(0, 80), " has ");
    if (id && bytes && processes.size() < kMost) processes.push_back({.id = *id, .bytes = *bytes, .name = ""});
  }
  return processes;
}

}  // namespace

OomMessage read_oom_message(std::string_view text, std::string_view path) {
  constexpr std::string_view kBegin = "Tried to allocate ";
  OomMessage message;
  if (const std::size_t at = text.rfind(kBegin); at != std::string_view::npos) {
    const std::string_view sentence = text.substr(at);
    message.requested_bytes = size_behind(sentence, kBegin);
    message.device = number_behind<int>(sentence, "GPU ").value_or(0);
    message.total_bytes = size_behind(sentence, "has a total capacity of ");
    message.free_bytes = size_behind(sentence, "of which ");
    message.process_bytes = size_behind(sentence, "Including non-PyTorch memory, this process has ");
    message.allowed_bytes = size_before(sentence, " allowed;");
    message.allocated_bytes = size_behind(sentence, "Of the allocated memory ");
    message.private_bytes = size_before(sentence, " allocated in private pools");
    message.unallocated_bytes = size_before(sentence, " is reserved by PyTorch but unallocated");
    message.other_processes = processes_in(sentence);
    if (message.requested_bytes) return message;
  }
  const bool is_out_of_memory = has(text, "out of memory") || has(text, "OutOfMemory") || has(text, "MemoryAllocation");
  message.is_of_nccl = has(text, "NCCL") && (is_out_of_memory || has(text, "Failed to CUDA"));
  message.is_of_pinned_memory =
      !message.is_of_nccl && is_out_of_memory &&
      (has(text, "pin_memory") || has(text, "cudaHostAlloc") || has(text, "cudaHostRegister") || has(text, "pinned"));
  CACHALOT_REQUIRE(message.is_of_nccl || message.is_of_pinned_memory,
                   "{}: no message of PyTorch that memory ran out: \"Tried to allocate ...\"", path);
  return message;
}

void add_facts(const OomMessage& message, History& history) {
  DeviceFacts& facts = facts_of(history, message.device);
  const auto take = [](std::optional<std::uint64_t>& fact, const std::optional<std::uint64_t>& value) {
    if (!fact) fact = value;
  };
  take(facts.total_bytes, message.total_bytes);
  take(facts.free_bytes, message.free_bytes);
  take(facts.process_bytes, message.process_bytes);
  take(facts.limit_bytes, message.allowed_bytes);
  if (facts.other_processes.empty()) facts.other_processes = message.other_processes;
}

}  // namespace cachalot::tools
