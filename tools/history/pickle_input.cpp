#include "tools/history/pickle_input.h"

#include <algorithm>
#include <cstring>

namespace cachalot::tools {

PickleInput::PickleInput(InputFile file) : file_(std::move(file)), buffer_(std::size_t{1} << 18) {}

unsigned char PickleInput::byte() {
  if (is_at_end()) cut_off("its argument is not all there");
  return static_cast<unsigned char>(buffer_[begin_++]);
}

void PickleInput::skip(std::uint64_t count) {
  while (count > 0) {
    if (is_at_end()) cut_off(fmt::format("{} bytes of its text are not there", count));
    const std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(count, end_ - begin_));
    begin_ += some;
    count -= some;
  }
}

// Moves what is unread to the front of the buffer and fills what is left of it.
void PickleInput::gather(std::size_t count) {
  const std::size_t unread = end_ - begin_;
  std::memmove(buffer_.data(), buffer_.data() + begin_, unread);
  position_ += begin_;
  begin_ = 0;
  end_ = unread + file_.read(buffer_.data() + unread, buffer_.size() - unread);
  if (end_ < count) cut_off(fmt::format("of {} bytes there are {}", count, end_));
}

std::string PickleInput::line(std::size_t longest) {
  std::string all;
  for (;;) {
    if (is_at_end()) cut_off("its line does not end");
    const char* const from = buffer_.data() + begin_;
    const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const std::size_t length = newline == nullptr ? end_ - begin_ : static_cast<std::size_t>(newline - from);
    require(length <= longest - all.size(), "its line has more than {} bytes", longest);
    all.append(from, length);
    begin_ += length + (newline == nullptr ? 0 : 1);
    if (newline != nullptr) return all;
  }
}

void PickleInput::require_end() {
  require(is_at_end(), "the pickle ends, but the file goes on");
  const std::string trouble = file_.trouble();
  require(trouble.empty(), "{}", trouble);
}

bool PickleInput::refill() {
  position_ += end_;
  begin_ = 0;
  end_ = file_.read(buffer_.data(), buffer_.size());
  return end_ != 0;
}

void PickleInput::refuse(std::string_view why) const {
  throw BrokenPickle(fmt::format("byte {}: opcode {}: {}", opcode_at_, Quoted{{&opcode_, 1}}, why));
}

void PickleInput::cut_off(std::string_view how) const {
  const std::string trouble = file_.trouble();
  throw BrokenPickle(
      fmt::format("byte {}: {}", opcode_at_, trouble.empty() ? fmt::format("the file is cut off: {}", how) : trouble));
}

}  // namespace cachalot::tools
