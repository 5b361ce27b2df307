#include "tools/base/output_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

// The file itself where `path` is a link, so that the link is not what gets replaced.
std::string resolved(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

// A pipe, a terminal, or a file in use under a descriptor's name (/dev/stdout): nothing can take its place.
bool must_be_written_in_place(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const bool is_descriptor = path == "-" || path.starts_with("/dev/") || path.starts_with("/proc/");
  return is_descriptor || (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status));
}

// Returns a descriptor of a new file. The name can be guessed: a link that another user planted there is removed, not its
// target.
int create_new(const std::string& path) {
  std::remove(path.c_str());
  errno = 0;
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
}

gzFile open_output(const std::string& path, bool in_place, bool is_compressed) {
  const char* const mode = is_compressed ? "wb" : "wbT";  // T: as it is
  if (in_place && path != "-") return gzopen(path.c_str(), mode);
  const int descriptor = in_place ? dup(STDOUT_FILENO) : create_new(path);
  return descriptor < 0 ? nullptr : gzdopen(descriptor, mode);
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string what) : path_(std::move(path)), what_(std::move(what)) {
  const bool in_place = must_be_written_in_place(path_);
  final_path_ = in_place ? path_ : resolved(path_);
  written_path_ = in_place ? path_ : fmt::format("{}.{}.part", final_path_, getpid());
  errno = 0;
  file_ = open_output(written_path_, in_place, path_.ends_with(".gz"));
  if (file_ == nullptr) fail();
}

OutputFile::~OutputFile() { give_up(); }

void OutputFile::write_buffer() {
  errno = 0;
  const auto size = static_cast<unsigned>(buffer_.size());
  const bool is_written = size == 0 || gzwrite(static_cast<gzFile>(file_), buffer_.data(), size) > 0;
  buffer_.clear();
  if (!is_written) fail();
}

void OutputFile::finish() {
  write_buffer();
  errno = 0;
  if (gzclose(static_cast<gzFile>(std::exchange(file_, nullptr))) != Z_OK) fail();
  if (written_path_ != final_path_ && std::rename(written_path_.c_str(), final_path_.c_str()) != 0) fail();
  written_path_ = final_path_;
}

void OutputFile::give_up() {
  if (file_ != nullptr) gzclose(static_cast<gzFile>(std::exchange(file_, nullptr)));
  if (written_path_ != final_path_) std::remove(written_path_.c_str());
  written_path_ = final_path_;
}

void OutputFile::fail() {
  const std::string reason = std::strerror(errno == 0 ? EIO : errno);
  give_up();
  throw InvalidArgument(fmt::format("{} {}: cannot write the file: {}", what_, path_, reason));
}

void write_output(const std::string& path, std::string_view what, std::string_view text) {
  OutputFile file(path, std::string(what));
  file.write(text);
  file.finish();
}

void require_no_input(const std::string& output, std::string_view option, std::span<const std::string> inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;  // a missing file is another one
    const bool is_same =
        (output == input && !output.empty() && output != "-") ||
        (std::filesystem::is_regular_file(output, error) && std::filesystem::equivalent(output, input, error));
    CACHALOT_REQUIRE(!is_same, "{} {}: another argument names this file, which would be lost", option, output);
  }
}

}  // namespace cachalot::tools
