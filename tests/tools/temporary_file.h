// A file with a name of its own that is gone after the test.
#pragma once

#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace cachalot::tools {

class TemporaryFile {
 public:
  TemporaryFile() {
    static std::atomic<int> count = 0;
    const std::string name = "cachalot_test_" + std::to_string(getpid()) + "_" + std::to_string(count++);
    path_ = (std::filesystem::temp_directory_path() / name).string();
  }
  explicit TemporaryFile(std::string_view content) : TemporaryFile() { std::ofstream(path_) << content; }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// Text, or decompressed gzip.
inline std::string read_gzip(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string content;
  char buffer[1 << 16];
  for (int read; file != nullptr && (read = gzread(file, buffer, sizeof buffer)) > 0;) {
    content.append(buffer, static_cast<std::size_t>(read));
  }
  gzclose(file);
  return content;
}

inline void write_gzip(const std::string& path, std::string_view content) {
  const gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

}  // namespace cachalot::tools
