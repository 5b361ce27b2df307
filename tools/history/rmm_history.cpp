#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "tools/history/text_histories.h"
#include "tools/history/text_lines.h"

namespace cachalot::tools {
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
