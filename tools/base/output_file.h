// A file that a command writes. It appears whole, or not at all: the text goes to a file beside it, which takes its place in
// finish(), and nothing is left behind by a writer that never finished. A pipe, a terminal and "-", which is standard
// output, are written in place. A file whose name ends with .gz is compressed.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace cachalot::tools {

class OutputFile {
 public:
  // `what` stands before the path in messages: "--steps". Throws InvalidArgument when the file cannot be written.
  OutputFile(std::string path, std::string what);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // All of these throw InvalidArgument when the file cannot be written; there is no file then.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(fmt::appender(buffer_), format, std::forward<Args>(args)...);
    write_if_full();
  }
  void write(std::string_view bytes) {
    buffer_.append(bytes);
    write_if_full();
  }
  void finish();

  const std::string& path() const { return path_; }

 private:
  static constexpr std::size_t kBufferBytes = 1 << 16;

  void write_if_full() {
    if (buffer_.size() >= kBufferBytes) write_buffer();
  }
  void write_buffer();
  void give_up();
  [[noreturn]] void fail();

  std::string path_;  // as given
  std::string what_;
  std::string final_path_;    // where links lead
  std::string written_path_;  // the same, or a temporary file beside it
  void* file_ = nullptr;      // a gzFile; zlib stays out of this header
  fmt::memory_buffer buffer_;
};

// Writes the text as a whole file, as gzip if the path ends in .gz; "-" is standard output. Throws as OutputFile does.
void write_output(const std::string& path, std::string_view what, std::string_view text);

// Throws InvalidArgument, which names the option, if `output` is one of the other files, which would be lost. "" names none.
void require_no_input(const std::string& output, std::string_view option, std::span<const std::string> inputs);

}  // namespace cachalot::tools
