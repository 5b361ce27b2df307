// The lines of a file, through one buffer: no line may be longer than that.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cachalot/errors.h"
#include "tools/base/input_file.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {

class LineReader {
 public:
  enum class LastLine : bool { must_end, may_be_cut };  // with a newline; a program that died did not write it

  explicit LineReader(InputFile file, LastLine last = LastLine::must_end) : file_(std::move(file)), last_(last) {}

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
    throw InvalidArgument(
        fmt::format("{}:{}: {}", file_.path(), line_, fmt::format(rule, std::forward<Args>(args)...)));
  }

 private:
  // Returns nullptr when there is none in the buffer.
  const char* find_newline() const {
    return static_cast<const char*>(std::memchr(buffer_.data() + begin_, '\n', end_ - begin_));
  }

  // There is no further line: because the file is at its end, or because something is wrong with it.
  std::nullopt_t end() const {
    require(end_ < buffer_.size(), "{} is longer than any line of a trace can be", unread());
    const std::string trouble = file_.trouble();
    require(trouble.empty(), "{}", trouble);
    require(begin_ == end_ || last_ == LastLine::may_be_cut,
            "the file is cut off: its last line, {}, does not end with a newline", unread());
    return std::nullopt;
  }

  Quoted unread() const { return {{buffer_.data() + begin_, end_ - begin_}}; }

  // Moves the unread text to the front of the buffer and fills what is left of it.
  void refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    end_ += file_.read(buffer_.data() + end_, buffer_.size() - end_);
  }

  InputFile file_;
  LastLine last_;
  std::size_t line_ = 0;
  std::array<char, 1 << 16> buffer_;
  std::size_t begin_ = 0;  // of the unread text in buffer_
  std::size_t end_ = 0;
};

}  // namespace cachalot::tools
