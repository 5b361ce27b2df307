// A file without a name, with a path nevertheless.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/fuzz/bytes.h"

namespace cachalot::fuzz {

class File {
 public:
  explicit File(std::string_view content) : descriptor_(memfd_create("fuzz", 0)) {
    expect(descriptor_ >= 0, "memfd_create failed");
    expect(write(descriptor_, content.data(), content.size()) == static_cast<ssize_t>(content.size()), "write failed");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor() const { return descriptor_; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace cachalot::fuzz
