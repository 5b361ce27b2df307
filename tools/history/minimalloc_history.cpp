#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/history/minimalloc_header.h"
#include "tools/history/text_histories.h"
#include "tools/history/text_lines.h"

namespace cachalot::tools {
namespace {

constexpr Address kFirstAddress = Address{1} << 40;
constexpr std::uint64_t kAlignment = 512;  // as PyTorch's blocks

class MinimallocReader {
 public:
  explicit MinimallocReader(InputFile file) : made_(file, HistoryFormat::minimalloc), lines_(std::move(file)) {}

  History read() {
    const auto header = lines_.next();
    const auto columns = header ? minimalloc_columns(trimmed(*header)) : std::nullopt;
    lines_.require(columns.has_value(), "the first line names no columns id, lower, upper and size");
    while (const auto line = lines_.next()) {
      if (!trimmed(*line).empty()) add(trimmed(*line), *columns);
    }
    // What ends makes room for what begins at the same time.
    std::ranges::stable_sort(moments_, [](const Moment& a, const Moment& b) {
      return std::pair(a.event.time_us, !a.is_end) < std::pair(b.event.time_us, !b.is_end);
    });
    for (const Moment& moment : moments_) moment.is_end ? made_.add_free(moment.event) : made_.add(moment.event);
    return made_.finish();
  }

 private:
  struct Moment {
    HistoryEvent event;
    bool is_end = false;
  };

  void add(std::string_view line, const MinimallocColumns& columns) {
    split(line, ',', fields_);
    lines_.require(fields_.size() == columns.count, "{} has {} columns, the first line has {}", Quoted{line},
                   fields_.size(), columns.count);
    HistoryEvent event;
    event.time_us = time(columns.lower);
    event.bytes = number(columns.size);
    lines_.require(event.bytes < kMaxRequestBytes, "size {} is not below 1 EiB", event.bytes);
    event.address = next_;
    next_ += (event.bytes / kAlignment + 1) * kAlignment;
    lines_.require(next_ < Address{1} << 62, "the buffers have more bytes than 2^62 in all");
    const std::int64_t end = time(columns.upper) + (columns.upper_is_last ? 1 : 0);
    lines_.require(end > event.time_us, "the buffer ends at {}, not after it begins at {}", end, event.time_us);
    made_.budget().charge(4 * sizeof(Moment));
    moments_.push_back({event, false});
    event.time_us = end;
    moments_.push_back({event, true});
  }

  std::uint64_t number(std::size_t column) const {
    const std::optional<std::uint64_t> number = number_in(fields_[column]);
    lines_.require(number.has_value(), "{} is not a whole number from 0", Quoted{fields_[column]});
    return *number;
  }
  std::int64_t time(std::size_t column) const {
    const std::uint64_t time = number(column);
    lines_.require(time < std::uint64_t{1} << 62, "time {} is not below 2^62", time);
    return static_cast<std::int64_t>(time);
  }

  TextHistory made_;
  LineReader lines_;
  std::vector<std::string_view> fields_;
  std::vector<Moment> moments_;
  Address next_ = kFirstAddress;
};

}  // namespace

std::optional<MinimallocColumns> minimalloc_columns(std::string_view header) {
  std::vector<std::string_view> names;
  split(header, ',', names);
  MinimallocColumns columns{.count = names.size()};
  std::array<bool, 4> has = {};
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view name = names[i];
    if (name == "id" || name == "buffer" || name == "buffer_id") has[0] = true;
    if (name == "lower" || name == "start" || name == "begin") {
      columns.lower = i;
      has[1] = true;
    }
    if (name == "upper" || name == "end") {
      columns.upper = i;
      columns.upper_is_last = name == "end";
      has[2] = true;
    }
    if (name == "size") {
      columns.size = i;
      has[3] = true;
    }
  }
  return std::ranges::all_of(has, std::identity()) ? std::optional(columns) : std::nullopt;
}

History read_minimalloc_history(InputFile file) { return MinimallocReader(std::move(file)).read(); }

}  // namespace cachalot::tools
