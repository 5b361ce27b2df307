#include "tools/live/record_reader.h"

#include <fmt/format.h>

#include <utility>

#include "cachalot/errors.h"
#include "tools/live/record_writer.h"
#include "tools/live/sample_json.h"
#include "tools/quoted.h"

namespace cachalot::tools::live {

bool is_record(std::string_view begin) {
  return begin.starts_with('{') && begin.find("\"cachalot statistics\"") != std::string_view::npos;
}

RecordReader::RecordReader(InputFile file) : file_(std::move(file)) {
  const std::optional<std::string> line = next_line();
  if (!line) refuse("it has no first line");
  try {
    const nlohmann::ordered_json json = json_of(*line);
    if (json.value("format", "") != kRecordFormat) refuse(fmt::format("its format is not '{}'", kRecordFormat));
    header_.version = json.value("version", std::uint64_t{0});
    if (header_.version != kRecordVersion) {
      refuse(
          fmt::format("its format has version {}, and this command reads version {}", header_.version, kRecordVersion));
    }
    header_.cachalot = json.value("cachalot", "");
    header_.started = json.value("started", 0.0);
    header_.interval_s = json.value("interval_s", 0.0);
  } catch (const nlohmann::ordered_json::exception&) {
    refuse(fmt::format("{} does not have the types of a first line", Quoted{*line}));
  }
}

nlohmann::ordered_json RecordReader::json_of(const std::string& line) const {
  try {
    return parse_line(line);
  } catch (const InvalidArgument& error) {
    refuse(error.what());
  }
}

std::optional<Sample> RecordReader::next() {
  const std::optional<std::string> line = next_line();
  if (!line) return std::nullopt;
  try {
    return parse_sample(*line);
  } catch (const InvalidArgument& error) {
    refuse(error.what());
  }
}

// A line without its end is that of a writer that was killed.
std::optional<std::string> RecordReader::next_line() {
  ++line_;
  std::size_t searched = used_;
  while (true) {
    if (const auto end = ahead_.find('\n', searched); end != std::string::npos) {
      std::string line = ahead_.substr(used_, end - used_);
      used_ = end + 1;
      return line;
    }
    if (has_ended_) {
      is_cut_ = is_cut_ || used_ != ahead_.size();
      return std::nullopt;
    }
    ahead_.erase(0, std::exchange(used_, 0));
    searched = ahead_.size();
    if (searched > kMostSampleBytes) refuse(fmt::format("it has more than {} bytes", kMostSampleBytes));
    read_on();
  }
}

void RecordReader::read_on() {
  constexpr std::size_t kAtOnce = std::size_t{64} << 10;
  const std::size_t before = ahead_.size();
  ahead_.resize(before + kAtOnce);
  const std::size_t count = file_.read(ahead_.data() + before, kAtOnce);
  ahead_.resize(before + count);
  if (count == kAtOnce) return;
  has_ended_ = true;
  is_cut_ = !file_.trouble().empty();
}

void RecordReader::refuse(std::string_view reason) const {
  throw InvalidArgument(fmt::format("record {}, line {}: {}", Printable{file_.path()}, line_, reason));
}

}  // namespace cachalot::tools::live
