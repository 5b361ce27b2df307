// The bytes of a pickle, as they arrive, and where in the file each opcode is.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/input_file.h"
#include "tools/pickle_opcodes.h"
#include "tools/quoted.h"

namespace cachalot::tools {

// Says what is wrong with a pickle, and at which byte.
struct BrokenPickle : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

class PickleInput {
 public:
  static constexpr std::size_t kLongestNumber = 1 << 16;  // as text
  static constexpr std::size_t kMostViewed = 1 << 15;

  explicit PickleInput(InputFile file);

  const std::string& path() const { return file_.path(); }
  // Returns where the opcode is that was read last.
  std::size_t opcode_at() const { return opcode_at_; }

  // Each throws BrokenPickle if the file ends before.
  CACHALOT_FAST_PATH Opcode opcode() {
    opcode_at_ = position_ + begin_;
    if (is_at_end()) cut_off("there is no STOP");
    opcode_ = buffer_[begin_++];
    return static_cast<Opcode>(static_cast<unsigned char>(opcode_));
  }
  unsigned char byte();
  // Reads a number of `count` bytes, at most 8, the least significant first.
  CACHALOT_FAST_PATH std::uint64_t natural(std::size_t count) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t value = 0;
    std::memcpy(&value, view(count).data(), count);
    return value;
  }
  // Returns the next bytes, at most kMostViewed, which are valid until the next call.
  CACHALOT_FAST_PATH std::string_view view(std::size_t count) {
    if (end_ - begin_ < count) [[unlikely]]
      gather(count);
    begin_ += count;
    return {buffer_.data() + begin_ - count, count};
  }
  void skip(std::uint64_t count);
  std::string line(std::size_t longest = kLongestNumber);
  // Throws BrokenPickle if the file goes on, or was not all there.
  void require_end();

  // Throws BrokenPickle that names the opcode unless `holds`.
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    refuse(fmt::format(rule, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const;
  [[noreturn]] void cut_off(std::string_view how) const;
  bool refill();
  bool is_at_end() { return begin_ == end_ && !refill(); }
  void gather(std::size_t count);

  InputFile file_;
  std::vector<char> buffer_;
  std::size_t position_ = 0;  // in the file, of the buffer's front
  std::size_t begin_ = 0;     // of what is unread in the buffer
  std::size_t end_ = 0;
  std::size_t opcode_at_ = 0;
  char opcode_ = 0;
};

}  // namespace cachalot::tools
