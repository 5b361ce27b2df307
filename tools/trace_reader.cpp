#include "tools/trace_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "cachalot/caching_allocator.h"

namespace cachalot::tools {
namespace {

// Text of the file, to be shown in an error message: on one line, printable, not too long.
struct Quoted {
  std::string_view text;
};

}  // namespace
}  // namespace cachalot::tools

template <>
struct fmt::formatter<cachalot::tools::Quoted> {
  static constexpr std::size_t kShown = 60;

  constexpr auto parse(format_parse_context& context) { return context.begin(); }

  template <typename Context>
  auto format(const cachalot::tools::Quoted& quoted, Context& context) const {
    auto out = fmt::format_to(context.out(), "'");
    for (const char c : quoted.text.substr(0, kShown)) {
      const auto byte = static_cast<unsigned char>(c);
      out = byte >= 0x20 && byte < 0x7f ? fmt::format_to(out, "{}", c) : fmt::format_to(out, "\\x{:02x}", byte);
    }
    return fmt::format_to(out, "{}'", quoted.text.size() > kShown ? "..." : "");
  }
};

namespace cachalot::tools {
namespace {

// The lines of a file that may be gzip, through one buffer.
class LineReader {
 public:
  explicit LineReader(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    CACHALOT_REQUIRE(file_ != nullptr, "{}: cannot open the trace: {}", path, std::strerror(errno));
    gzbuffer(file_, 1 << 17);
  }
  ~LineReader() { gzclose(file_); }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its newline, valid until the next call; nullopt at the end of the file.
  std::optional<std::string_view> next() {
    ++line_;
    const char* newline = find_newline();
    if (newline == nullptr) {
      refill();
      newline = find_newline();
    }
    if (newline == nullptr) return end();
    const std::string_view line = {buffer_.data() + begin_,
                                   static_cast<std::size_t>(newline - (buffer_.data() + begin_))};
    begin_ += line.size() + 1;
    return line;
  }

  // A rule about the line next() returned last.
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    throw InvalidArgument(fmt::format("{}:{}: {}", path_, line_, fmt::format(rule, std::forward<Args>(args)...)));
  }

 private:
  // nullptr when there is none in what is buffered.
  const char* find_newline() const {
    return static_cast<const char*>(std::memchr(buffer_.data() + begin_, '\n', end_ - begin_));
  }

  // There is no further line: because the file is at its end, or because something is wrong with it.
  std::nullopt_t end() const {
    require(end_ < buffer_.size(), "{} is longer than any line of a trace can be", unread());
    check_end();
    require(begin_ == end_, "the file is cut off: its last line, {}, does not end with a newline", unread());
    return std::nullopt;
  }

  Quoted unread() const { return {{buffer_.data() + begin_, end_ - begin_}}; }

  // Moves the unread text to the front of the buffer and fills what is left of it.
  void refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    int read = 1;
    while (end_ < buffer_.size() && read > 0) {
      read = gzread(file_, buffer_.data() + end_, static_cast<unsigned>(buffer_.size() - end_));
      if (read > 0) end_ += static_cast<std::size_t>(read);
    }
  }

  // Why there is no more text. Of a file cut off, zlib hands out what it could still decode first.
  void check_end() const {
    int code = Z_OK;
    const char* message = gzerror(file_, &code);
    if (code == Z_ERRNO) message = std::strerror(errno);
    require(code != Z_BUF_ERROR, "the gzip file is cut off");
    require(code == Z_OK || code == Z_STREAM_END, "cannot read the trace: {}", message);
  }

  std::string path_;
  gzFile file_;
  std::size_t line_ = 0;
  std::array<char, 1 << 16> buffer_;
  std::size_t begin_ = 0;  // of the unread text in buffer_
  std::size_t end_ = 0;
};

class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : lines_(path) { trace_.path = path; }

  Trace read() {
    while (const auto line = lines_.next()) {
      lines_.require(trace_.events.size() < kMostEvents, "a trace has at most {} events", kMostEvents);
      trace_.events.push_back(parse(*line));
    }
    lines_.require(!trace_.events.empty(), "the trace is empty: it must have at least one event");
    trace_.streams = streams();
    return std::move(trace_);
  }

 private:
  static constexpr std::size_t kMostEvents = std::numeric_limits<std::uint32_t>::max() - 1;
  static constexpr std::uint32_t kFreed = std::numeric_limits<std::uint32_t>::max();

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
    const auto [entry, is_new] = slots_.try_emplace(id, kFreed);
    lines_.require(is_new, "id {} is allocated a second time: an id is never used again", id);
    entry->second = take_slot();
    return {bytes, entry->second, stream_index(stream)};
  }

  TraceEvent free(const Fields& fields) {
    const std::uint64_t id = number("id", fields.at[1]);
    const auto entry = slots_.find(id);
    lines_.require(entry != slots_.end(), "id {} is freed but was never allocated", id);
    lines_.require(entry->second != kFreed, "id {} is freed a second time", id);
    const std::uint32_t slot = std::exchange(entry->second, kFreed);
    free_slots_.push_back(slot);
    return {0, slot, TraceEvent::kFree};
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

  std::uint32_t take_slot() {
    if (free_slots_.empty()) return static_cast<std::uint32_t>(trace_.slots++);
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  std::uint32_t stream_index(std::uint64_t number) {
    if (last_stream_ < stream_numbers_.size() && stream_numbers_[last_stream_] == number) return last_stream_;
    const auto [entry, is_new] =
        stream_indexes_.try_emplace(number, static_cast<std::uint32_t>(stream_numbers_.size()));
    if (is_new) stream_numbers_.push_back(number);
    return last_stream_ = entry->second;
  }

  // Handles that look like a driver's: aligned, so that none is one of CUDA's special values (1 and 2).
  std::vector<Stream> streams() const {
    std::vector<Stream> streams;
    for (const std::uint64_t number : stream_numbers_) {
      streams.push_back(number == 0 ? nullptr : reinterpret_cast<Stream>((streams.size() + 1) << 12));
    }
    return streams;
  }

  LineReader lines_;
  Trace trace_;
  std::unordered_map<std::uint64_t, std::uint32_t> slots_;  // of every id seen; kFreed once it is freed
  std::vector<std::uint32_t> free_slots_;                   // the last one freed is the next one used
  std::vector<std::uint64_t> stream_numbers_;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_indexes_;
  std::uint32_t last_stream_ = 0;
};

}  // namespace

Trace read_trace(const std::string& path) { return TraceReader(path).read(); }

std::size_t peak_live_bytes(const Trace& trace) {
  std::vector<std::size_t> bytes(trace.slots);
  std::size_t live = 0;
  std::size_t peak = 0;
  for (const TraceEvent& event : trace.events) {
    live -= bytes[event.slot];
    bytes[event.slot] = event.bytes;
    live += event.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace cachalot::tools
