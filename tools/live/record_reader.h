// Reads a record of samples (record_writer.h) from its front to its end, and sums it up.
//
// The file is not believed: a line has at most kMostSampleBytes, a sample at most kMostProcesses processes, and memory is
// bounded by one sample, however long the record is. Unknown keys are ignored, so that later versions may add some.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/input_file.h"
#include "tools/live/sample.h"

namespace cachalot::tools::live {

// Returns whether a file with these first bytes (InputFile::begin) is a record.
bool is_record(std::string_view begin);

struct RecordHeader {
  std::uint64_t version = 0;
  std::string cachalot;  // version of the command that wrote it
  double started = 0;    // seconds of Unix time
  double interval_s = 0;
};

class RecordReader {
 public:
  // Reads the first line. Throws InvalidArgument, which names path, line and rule, as next() does.
  explicit RecordReader(InputFile file);

  const RecordHeader& header() const { return header_; }
  // Returns the next sample; nullopt at the end. A record whose writer was killed ends in the middle of a line or of its gzip:
  // that line is left out, and is_cut() is true.
  std::optional<Sample> next();
  bool is_cut() const { return is_cut_; }
  const std::string& path() const { return file_.path(); }

 private:
  std::optional<std::string> next_line();
  void read_on();
  nlohmann::ordered_json json_of(const std::string& line) const;
  [[noreturn]] void refuse(std::string_view reason) const;

  InputFile file_;
  RecordHeader header_;
  std::string ahead_;     // what was read last
  std::size_t used_ = 0;  // of it
  std::size_t line_ = 0;
  bool has_ended_ = false;
  bool is_cut_ = false;
};

}  // namespace cachalot::tools::live
