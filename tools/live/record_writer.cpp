#include "tools/live/record_writer.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cachalot/errors.h"
#include "cachalot/version.h"
#include "tools/json_text.h"
#include "tools/live/sample_json.h"
#include "tools/quoted.h"

namespace cachalot::tools::live {
namespace {

gzFile as_file(void* file) { return static_cast<gzFile>(file); }

}  // namespace

RecordWriter::RecordWriter(std::string path, double started, double interval_s) : path_(std::move(path)) {
  errno = 0;
  file_ = gzopen(path_.c_str(), path_.ends_with(".gz") ? "wbe6" : "wbeT");  // T: without compression
  if (file_ == nullptr) {
    throw InvalidArgument(fmt::format("cannot write the record {}: {}", Printable{path_}, std::strerror(errno)));
  }
  write_line(text_of({{"format", kRecordFormat},
                      {"version", kRecordVersion},
                      {"cachalot", CACHALOT_VERSION_STRING},
                      {"started", started},
                      {"interval_s", interval_s}}));
}

RecordWriter::~RecordWriter() { gzclose(as_file(file_)); }

void RecordWriter::write(const Sample& sample) { write_line(text_of(to_json(sample))); }

void RecordWriter::write_line(const std::string& line) {
  const std::string with_end = line + "\n";
  errno = 0;
  const bool is_written = gzwrite(as_file(file_), with_end.data(), static_cast<unsigned>(with_end.size())) > 0 &&
                          gzflush(as_file(file_), Z_SYNC_FLUSH) == Z_OK;
  if (!is_written) {
    throw InvalidArgument(fmt::format("cannot write the record {}: {}", Printable{path_}, std::strerror(errno)));
  }
}

}  // namespace cachalot::tools::live
