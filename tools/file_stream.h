// An InputFile as a stream for parsers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <streambuf>

#include "tools/input_file.h"

namespace cachalot::tools {

// Ends where the memory for the file would: a parser holds what it cannot yet give us.
class FileStream : public std::streambuf {
 public:
  explicit FileStream(InputFile& file) : file_(file), left_(file.memory_limit() / 4) {}
  bool is_too_long() const { return left_ == 0; }
  // Returns how many bytes the parser has taken.
  std::size_t position() const { return before_ + static_cast<std::size_t>(gptr() - eback()); }

 protected:
  int_type underflow() override {
    const std::size_t bytes = file_.read(buffer_.data(), std::min(buffer_.size(), left_));
    left_ -= bytes;
    before_ = position();
    setg(buffer_.data(), buffer_.data(), buffer_.data() + bytes);
    return bytes == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  InputFile& file_;
  std::size_t left_;
  std::size_t before_ = 0;  // bytes of earlier buffers
  std::array<char, 1 << 16> buffer_;
};

}  // namespace cachalot::tools
