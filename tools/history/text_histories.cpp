#include "tools/history/readers.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/caching_allocator.h"
#include "tools/base/line_reader.h"
#include "tools/history/memory_budget.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {
namespace {

// Lines of text files with events, and the history that is made of them.

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

// Returns a number of 64 bits; nullopt: it is not a number.
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

// Makes a history of one device, event by event. Its data counts against the file's memory limit.
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

constexpr unsigned kSlotBits = 36;  // each slot of a trace has an address of its own, 64 GiB apart

bool is_line_of_rmm(std::string_view line) {
  std::vector<std::string_view> fields;
  split(line, fields);
  if (fields.size() != 6) return false;
  return fields[2] == "allocate" || fields[2] == "free" || fields[2] == "allocate failure";
}

}  // namespace

std::optional<HistoryFormat> text_format(std::string_view begin) {
  const std::string_view first = trimmed(begin.substr(0, begin.find('\n')));
  if (looks_like_trace(begin)) return HistoryFormat::cachalot_trace;
  if (first.starts_with("Thread,Time,Action,") || is_line_of_rmm(first)) return HistoryFormat::rmm_csv;
  return std::nullopt;
}

History read_trace_history(InputFile file) {
  TextHistory made(file, HistoryFormat::cachalot_trace);
  const Trace trace = read_trace(std::move(file));
  std::vector<HistoryEvent> live(trace.slots);
  made.budget().charge(live.size() * sizeof(HistoryEvent));
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
    for (const TraceEvent& event : events) {
      HistoryEvent& allocation = live[event.slot];
      if (!event.is_free()) {
        allocation = {.address = (Address{event.slot} + 1) << kSlotBits,
                      .bytes = event.bytes,
                      .stream = made.stream(reinterpret_cast<std::uintptr_t>(trace.streams[event.stream]))};
      }
      allocation.time_us = static_cast<std::int64_t>(made.events());
      event.is_free() ? made.add_free(allocation) : made.add(allocation);
    }
    return true;
  });
  return made.finish();
}

namespace {

constexpr std::int64_t kSecondMicros = 1'000'000;
constexpr std::int64_t kMostSeconds = std::int64_t{1} << 40;
constexpr std::int64_t kDayMicros = std::int64_t{24} * 3600 * kSecondMicros;

// The digits after the second as microseconds: RMM wrote three of them at first, then six.
std::optional<std::int64_t> fraction_in(std::string_view digits) {
  const std::optional<std::uint64_t> number = number_in(digits.substr(0, 6));
  if (!number) return std::nullopt;
  std::uint64_t micros = *number;
  for (std::size_t i = digits.size(); i < 6; ++i) micros *= 10;
  return static_cast<std::int64_t>(micros);
}

// HH:MM:SS.ffffff and HH:MM:SS:ffffff; seconds since 1970, with a fraction or without.
std::optional<std::int64_t> time_in(std::string_view text) {
  std::int64_t whole = 0;
  for (int colons = 0; colons < 3; ++colons) {
    const std::size_t end = std::min(text.find_first_of(":."), text.size());
    const std::optional<std::uint64_t> part = number_in(text.substr(0, end));
    if (!part || *part > static_cast<std::uint64_t>(kMostSeconds)) return std::nullopt;
    whole = 60 * whole + static_cast<std::int64_t>(*part);
    if (whole > kMostSeconds) return std::nullopt;
    const char separator = end < text.size() ? text[end] : '\0';
    text.remove_prefix(std::min(end + 1, text.size()));
    if (separator == '\0') return whole * kSecondMicros;
    if (separator == ':' && colons < 2) continue;
    const std::optional<std::int64_t> fraction = fraction_in(text);
    return fraction ? std::optional(whole * kSecondMicros + *fraction) : std::nullopt;
  }
  return std::nullopt;
}

// The number behind ".dev" in a name.
int device_in(std::string_view path) {
  const std::size_t at = path.rfind(".dev");
  if (at == std::string_view::npos) return 0;
  std::string_view digits = path.substr(at + 4);
  digits = digits.substr(0, digits.find_first_not_of("0123456789"));
  return static_cast<int>(number_in(digits).value_or(0) & 0xffff);
}

class RmmReader {
 public:
  explicit RmmReader(InputFile file)
      : device_(device_in(file.path())),
        made_(file, HistoryFormat::rmm_csv),
        lines_(std::move(file), LineReader::LastLine::may_be_cut) {}

  History read() {
    while (const auto line = lines_.next()) {
      const std::string_view text = trimmed(*line);
      if (text.empty() || text.starts_with("Thread,")) continue;
      split(text, fields_);
      lines_.require(fields_.size() == 6, "{} is no line of Thread,Time,Action,Pointer,Size,Stream", Quoted{text});
      add();
    }
    return made_.finish(device_);
  }

 private:
  void add() {
    const std::string_view action = fields_[2];
    const bool is_free = action == "free" || action == "deallocate";
    const bool is_failure = action == "allocate failure";
    lines_.require(is_free || is_failure || action == "allocate",
                   "action {} is none of allocate, free and allocate failure", Quoted{action});
    HistoryEvent event;
    event.bytes = value("size", number_in(fields_[4]), fields_[4]);
    lines_.require(event.bytes < kMaxRequestBytes, "size {} is not below 1 EiB", event.bytes);
    event.stream = made_.stream(value("stream", pointer_in(fields_[5]), fields_[5]));
    event.time_us = time(fields_[1]);
    if (is_failure) {
      event.action = HistoryEvent::Action::oom;
      return made_.add(event);
    }
    event.address = value("pointer", pointer_in(fields_[3]), fields_[3]);
    is_free ? made_.add_free(event) : made_.add(event);
  }

  std::uint64_t value(const char* what, std::optional<std::uint64_t> number, std::string_view text) const {
    lines_.require(number.has_value(), "{} {} is not a number", what, Quoted{text});
    return *number;
  }

  // The log has the time of day: it goes on after midnight.
  std::int64_t time(std::string_view text) {
    const std::optional<std::int64_t> time = time_in(text);
    lines_.require(time.has_value(), "time {} is none of HH:MM:SS.ffffff and seconds", Quoted{text});
    if (*time + days_ + kDayMicros / 2 < newest_) days_ += kDayMicros;
    newest_ = std::max(newest_, *time + days_);
    return *time + days_;
  }

  int device_;
  TextHistory made_;
  LineReader lines_;
  std::vector<std::string_view> fields_;
  std::int64_t days_ = 0;
  std::int64_t newest_ = 0;
};

}  // namespace

History read_rmm_history(InputFile file) { return RmmReader(std::move(file)).read(); }

}  // namespace cachalot::tools
