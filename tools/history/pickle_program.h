// Carries out the opcodes of a pickle on the machine of a snapshot.
//
// A pickle is a program, and Python runs it: unpickling a file of a stranger's is running his code. This reader has no
// opcode that names, calls or builds anything of Python's: a pickle that has one is refused there, by the opcode's name
// and position. Protocols 0 to 5 are read.
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
#include "tools/history/parts.h"
#include "tools/history/snapshot_builder.h"
#include "tools/input_file.h"
#include "tools/pickle_opcodes.h"
#include "tools/quoted.h"

namespace cachalot::tools {

// The bytes of a pickle, as they arrive, and where in the file each opcode is.

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

// The machine of a pickle (pickle_program.h) that makes a history of it while it runs: of what it has read it holds what
// is not yet complete.
class SnapshotMachine {
 public:
  static constexpr std::size_t kLongestLine = std::size_t{1} << 20;

  SnapshotMachine(PickleInput& input, SnapshotBuilder& builder) : input_(input), builder_(builder) {}

  void push(Part part) {
    if (parts_.size() == parts_.capacity()) builder_.budget().charge((parts_.size() + 1) * sizeof(Part));
    parts_.push_back(part);
  }
  void push_text(std::uint64_t bytes);
  void push_text(std::string_view text) { push(builder_.text(text)); }
  void push_bytes(std::uint64_t bytes);
  void push_list() { push(builder_.parts().open(Container::Kind::list)); }
  void push_dict() { push(builder_.parts().open(Container::Kind::dict)); }
  void push_mark();
  void pop();
  void pop_to_mark() { parts_.resize(to_mark()); }
  void duplicate() { push(parts_[top(1)]); }

  void collect(std::size_t count) { collect_from(top(count)); }
  void collect_to_mark() { collect_from(to_mark()); }
  void collect_dict_to_mark();
  void append() { extend_from(top(1)); }
  void extend_to_mark() { extend_from(to_mark()); }
  void set_item() { set_items_from(top(2)); }
  void set_items_to_mark() { set_items_from(to_mark()); }

  void memoize() { builder_.parts().memoize(parts_[top(1)]); }
  void memoize(std::uint64_t index);
  void recall(std::uint64_t index);

  void stop() const;
  Part result() const { return parts_.back(); }

 private:
  std::size_t top(std::size_t count) const;
  std::size_t to_mark();
  void collect_from(std::size_t begin);
  void extend_from(std::size_t begin);
  void set_items_from(std::size_t begin);
  void set_items(Part dict, std::size_t begin);
  Part below(std::size_t begin) const;

  PickleInput& input_;
  SnapshotBuilder& builder_;
  std::vector<Part> parts_;
  std::vector<std::size_t> marks_;  // where they are: so many parts are below
};

// Runs the pickle until STOP, which ends the file. Throws BrokenPickle for what is no pickle of plain data, and what the
// machine throws.
void run_pickle(PickleInput& input, SnapshotMachine& machine);

}  // namespace cachalot::tools
