#include "tools/replay/trace_reader.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cachalot/caching_allocator.h"
#include "tools/base/line_reader.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

// The ids that were used: as ranges, since most programs count, and no more of them than memory has room for.
class UsedIds {
 public:
  // Returns false if it was used before.
  bool insert(std::uint64_t id) {
    auto next = ranges_.upper_bound(id);
    const auto before = next == ranges_.begin() ? ranges_.end() : std::prev(next);
    if (before != ranges_.end() && id <= before->second) return false;
    const bool extends = before != ranges_.end() && before->second + 1 == id;
    const auto range = extends ? before : ranges_.emplace_hint(next, id, id);
    range->second = id;
    if (next != ranges_.end() && id + 1 == next->first) {
      range->second = next->second;
      ranges_.erase(next);
    }
    if (ranges_.size() > kMostRanges) ranges_.erase(ranges_.begin());
    return true;
  }

  bool contains(std::uint64_t id) const {
    const auto next = ranges_.upper_bound(id);
    return next != ranges_.begin() && id <= std::prev(next)->second;
  }

 private:
  static constexpr std::size_t kMostRanges = std::size_t{1} << 20;
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first and last of each; no two touch
};

class TraceReader {
 public:
  explicit TraceReader(InputFile file) : lines_(std::move(file)) {}

  // nullopt at the end.
  std::optional<TraceEvent> next() {
    const auto line = lines_.next();
    if (!line) return std::nullopt;
    return parse(*line);
  }

  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    lines_.require(holds, rule, std::forward<Args>(args)...);
  }
  const TraceMaker& made() const { return made_; }

 private:
  // The fields of a line; a fifth stands for all that is too much.
  struct Fields {
    std::array<std::string_view, 5> at;
    std::size_t count = 0;
  };

  static Fields split(std::string_view line) {
    Fields fields;
    while (fields.count < fields.at.size()) {
      const std::size_t comma = line.find(',');
      fields.at[fields.count++] = line.substr(0, comma);
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    return fields;
  }

  TraceEvent parse(std::string_view line) {
    const Fields fields = split(line);
    const bool is_allocation = fields.at[0] == "a" && fields.count == 4;
    const bool is_free = fields.at[0] == "f" && fields.count == 2;
    lines_.require(is_allocation || is_free, "{} is no event: expected a,<id>,<bytes>,<stream> or f,<id>",
                   Quoted{line});
    return is_allocation ? allocation(fields) : free(fields);
  }

  TraceEvent allocation(const Fields& fields) {
    const std::uint64_t id = number("id", fields.at[1]);
    const std::uint64_t bytes = number("size", fields.at[2]);
    const std::uint64_t stream = number("stream", fields.at[3]);
    lines_.require(bytes < kMaxRequestBytes, "size {} is not below 1 EiB ({})", bytes, kMaxRequestBytes);
    const bool is_new = used_.insert(id) && !slots_.contains(id);
    lines_.require(is_new, "id {} is allocated a second time: an id is never used again", id);
    lines_.require(made_.can_allocate(), "more than {} allocations are alive at once", Trace::kMostSlots);
    lines_.require(made_.can_use(stream), "a trace has at most {} streams", Trace::kMostStreams);
    const TraceEvent event = made_.allocate(bytes, stream);
    slots_.emplace(id, event.slot);
    return event;
  }

  TraceEvent free(const Fields& fields) {
    const std::uint64_t id = number("id", fields.at[1]);
    const auto entry = slots_.find(id);
    const bool is_live = entry != slots_.end();
    lines_.require(is_live || !used_.contains(id), "id {} is freed a second time", id);
    lines_.require(is_live, "id {} is freed but was never allocated", id);
    const std::uint32_t slot = entry->second;
    slots_.erase(entry);
    return made_.free(slot);
  }

  std::uint64_t number(const char* what, std::string_view text) const {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    lines_.require(!text.starts_with('-'), "{} {} is negative", what, Quoted{text});
    lines_.require(error != std::errc::result_out_of_range, "{} {} does not fit in 64 bits", what, Quoted{text});
    lines_.require(error == std::errc{} && end == text.data() + text.size(),
                   "{} {} is not a whole number of decimal digits", what, Quoted{text});
    return value;
  }

  LineReader lines_;
  TraceMaker made_;
  UsedIds used_;
  std::unordered_map<std::uint64_t, std::uint32_t, SeededHash> slots_;  // of every id that lives
};

constexpr std::size_t kMoreThanAnyDevice = std::size_t{1} << 62;
constexpr std::size_t kEventsPerPart = std::size_t{1} << 16;

void read_parts(const Trace& trace, const TakeEvents& take) {
  TraceReader reader(InputFile(trace.path, "trace"));
  const auto require_same = [&](bool same) { reader.require(same, "the trace has changed while it was replayed"); };
  std::vector<TraceEvent> part;
  part.reserve(kEventsPerPart);
  std::size_t first = 0;
  for (bool more = true; more;) {
    part.clear();
    while (part.size() < kEventsPerPart && more) {
      const std::optional<TraceEvent> event = reader.next();
      more = event.has_value();
      if (more) part.push_back(*event);
    }
    const bool fits = reader.made().slots() <= trace.slots && reader.made().streams().size() <= trace.streams.size();
    require_same(fits && first + part.size() <= trace.event_count);
    if (!part.empty() && !take(part, first)) return;
    first += part.size();
  }
  require_same(first == trace.event_count);
}

}  // namespace

// --- TraceMaker -------------------------------------------------------------------------------------------------------

TraceEvent TraceMaker::allocate(std::uint64_t bytes, std::uint64_t stream_number) {
  auto slot = static_cast<std::uint32_t>(slots_);
  if (free_slots_.empty()) {
    ++slots_;
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  return {bytes, slot, stream_index(stream_number)};
}

TraceEvent TraceMaker::free(std::uint32_t slot) {
  free_slots_.push_back(slot);
  return {0, slot, TraceEvent::kFree};
}

bool TraceMaker::can_use(std::uint64_t stream_number) const {
  return stream_numbers_.size() < Trace::kMostStreams || stream_indexes_.contains(stream_number);
}

std::uint32_t TraceMaker::stream_index(std::uint64_t number) {
  if (last_stream_ < stream_numbers_.size() && stream_numbers_[last_stream_] == number) return last_stream_;
  const auto [entry, is_new] = stream_indexes_.try_emplace(number, static_cast<std::uint32_t>(stream_numbers_.size()));
  if (is_new) stream_numbers_.push_back(number);
  return last_stream_ = entry->second;
}

std::vector<Stream> TraceMaker::streams() const {
  std::vector<Stream> streams;
  streams.reserve(stream_numbers_.size());
  for (const std::uint64_t number : stream_numbers_) {
    streams.push_back(number == 0 ? nullptr : reinterpret_cast<Stream>((streams.size() + 1) << 12));
  }
  return streams;
}

// --- traces -----------------------------------------------------------------------------------------------------------

Trace read_trace(InputFile file, std::size_t most_held_events) {
  Trace trace;
  trace.path = file.path();
  const bool can_be_read_again = file.size().has_value();
  TraceReader reader(std::move(file));
  while (const std::optional<TraceEvent> event = reader.next()) {
    if (trace.event_count == most_held_events) {
      reader.require(can_be_read_again,
                     "a trace of more than {} events is read several times: it must be a file, not a pipe",
                     most_held_events);
      trace.events = {};
    }
    if (trace.event_count < most_held_events) trace.events.push_back(*event);
    ++trace.event_count;
    if (!event->is_free()) ++trace.allocation_count;
  }
  reader.require(trace.event_count > 0, "the trace is empty: it must have at least one event");
  trace.slots = reader.made().slots();
  trace.streams = reader.made().streams();
  return trace;
}

Trace read_trace(const std::string& path) { return read_trace(InputFile(path, "trace")); }

void for_each_part(const Trace& trace, const TakeEvents& take) {
  if (!trace.is_held()) return read_parts(trace, take);
  take(trace.events, 0);
}

std::size_t peak_live_bytes(const Trace& trace) {
  std::vector<std::size_t> bytes(trace.slots);
  std::size_t live = 0;
  std::size_t peak = 0;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
    for (const TraceEvent& event : events) {
      if (event.empties_cache()) continue;
      live -= bytes[event.slot];
      bytes[event.slot] = event.bytes;
      live += event.bytes;  // no overflow: less than 2^62, and less than 2^60 more
      peak = std::max(peak, live);
      if (peak >= kMoreThanAnyDevice) return false;
    }
    return true;
  });
  return peak;
}

std::string trace_name(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename().string();
  return printable(file.substr(0, file.find('.')));
}

}  // namespace cachalot::tools
