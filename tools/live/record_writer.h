// Writes samples to a record, a file that RecordReader reads: JSON lines, gzip if the name ends in .gz.
//
//   {"format": "cachalot statistics", "version": 1, "cachalot": "0.1.0", "started": 1764214000.5, "interval_s": 1.0}
//   {"time": 1764214001.5, "processes": [...], "gpus": null}        a sample, as `cachalot top --json` prints it
//
// Each sample is written through when it comes: a record whose writer was killed has all samples but perhaps the last.
#pragma once

#include <string>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

inline constexpr const char* kRecordFormat = "cachalot statistics";
inline constexpr int kRecordVersion = 1;

class RecordWriter {
 public:
  // Writes the first line, in place of what the file had. Throws InvalidArgument, which names path and reason.
  RecordWriter(std::string path, double started, double interval_s);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // Throws InvalidArgument if the file cannot be written.
  void write(const Sample& sample);

 private:
  void write_line(const std::string& line);

  const std::string path_;
  void* file_ = nullptr;  // a gzFile, which writes plain text as well; zlib stays out of this header
};

}  // namespace cachalot::tools::live
