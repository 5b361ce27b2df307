// Lines of text files with events, and the history that is made of them.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/caching_allocator.h"
#include "tools/history/event_list.h"
#include "tools/history/history.h"
#include "tools/line_reader.h"
#include "tools/memory_budget.h"

namespace cachalot::tools {

// Returns the text without blanks and carriage returns around it.
inline std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

// Splits a line at each comma into `fields`.
inline void split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (;;) {
    const std::size_t end = line.find(',');
    fields.push_back(trimmed(line.substr(0, end)));
    if (end == std::string_view::npos) return;
    line.remove_prefix(end + 1);
  }
}

// Returns a number of 64 bits; nullopt: the text is none.
inline std::optional<std::uint64_t> number_in(std::string_view text, int base = 10) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const bool is_number = !text.empty() && error == std::errc{} && end == text.data() + text.size();
  return is_number ? std::optional(value) : std::nullopt;
}

// Returns a pointer or handle as C and C++ print it: 0x7f00, (nil), or a decimal number.
inline std::optional<std::uint64_t> pointer_in(std::string_view text) {
  if (text == "(nil)" || text == "nullptr") return 0;
  return text.starts_with("0x") ? number_in(text.substr(2), 16) : number_in(text);
}

// Makes a history of one device, event by event. What the file tells of counts against the file's memory limit.
class TextHistory {
 public:
  TextHistory(const InputFile& file, HistoryFormat format) : budget_(file.memory_limit()) {
    history_.path = file.path();
    history_.format = format;
  }

  MemoryBudget& budget() { return budget_; }
  std::size_t events() const { return events_.size(); }
  std::uint16_t stream(std::uint64_t handle) { return history_.streams.add(handle); }
  void add(const HistoryEvent& event) { events_.add(event, budget_); }
  // A free is requested and completed at once: these files do not know of other streams' use.
  void add_free(HistoryEvent event) {
    event.action = HistoryEvent::Action::free_requested;
    add(event);
    event.action = HistoryEvent::Action::free_completed;
    add(event);
  }
  History finish(int device = 0) {
    DeviceHistory made;
    made.device = device;
    made.events = events_.take();
    if (!made.events.empty()) history_.devices.push_back(std::move(made));
    return std::move(history_);
  }

 private:
  MemoryBudget budget_;
  History history_;
  EventList events_;
};

}  // namespace cachalot::tools
