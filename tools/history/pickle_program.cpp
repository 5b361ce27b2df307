#include "tools/history/readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/base/pickle_opcodes.h"
#include "tools/base/quoted.h"
#include "tools/base/text_layout.h"
#include "tools/history/parts.h"
#include "tools/history/snapshot_builder.h"

namespace cachalot::tools {
namespace {

// Says what is wrong with a pickle, and at which byte.
struct BrokenPickle : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

// The bytes of a pickle, as they arrive, and where in the file each opcode is.
class PickleInput {
 public:
  static constexpr std::size_t kLongestNumber = 1 << 16;  // as text

  explicit PickleInput(InputFile file) : file_(std::move(file)), buffer_(std::size_t{1} << 18) {}

  // Returns where the opcode is that was read last.
  std::size_t opcode_at() const { return opcode_at_; }

  // Each throws BrokenPickle if the file ends before.
  CACHALOT_FAST_PATH Opcode opcode() {
    opcode_at_ = position_ + begin_;
    if (is_at_end()) cut_off("there is no STOP");
    opcode_ = buffer_[begin_++];
    return static_cast<Opcode>(static_cast<unsigned char>(opcode_));
  }

  unsigned char byte() {
    if (is_at_end()) cut_off("its argument is not all there");
    return static_cast<unsigned char>(buffer_[begin_++]);
  }

  // Reads a number, the least significant byte first.
  template <typename Number>
  CACHALOT_FAST_PATH Number natural() {
    static_assert(std::endian::native == std::endian::little);
    Number value;
    std::memcpy(&value, view(sizeof(value)).data(), sizeof(value));
    return value;
  }
  // Returns the next bytes, at most as many as the buffer has, which are valid until the next call.
  CACHALOT_FAST_PATH std::string_view view(std::size_t count) {
    if (end_ - begin_ < count) [[unlikely]]
      gather(count);
    begin_ += count;
    return {buffer_.data() + begin_ - count, count};
  }

  void skip(std::uint64_t count) {
    while (count > 0) {
      if (is_at_end()) cut_off(fmt::format("{} bytes of its text are not there", count));
      const std::size_t some = static_cast<std::size_t>(std::min<std::uint64_t>(count, end_ - begin_));
      begin_ += some;
      count -= some;
    }
  }

  std::string line(std::size_t longest = kLongestNumber) {
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

  // Throws BrokenPickle if the file goes on, or was not all there.
  void require_end() {
    require(is_at_end(), "the pickle ends, but the file goes on");
    const std::string trouble = file_.trouble();
    require(trouble.empty(), "{}", trouble);
  }

  // Throws BrokenPickle that names the opcode unless `holds`.
  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    refuse(fmt::format(rule, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    throw BrokenPickle(fmt::format("byte {}: opcode {}: {}", opcode_at_, Quoted{{&opcode_, 1}}, why));
  }

  [[noreturn]] void cut_off(std::string_view how) const {
    const std::string trouble = file_.trouble();
    throw BrokenPickle(fmt::format("byte {}: {}", opcode_at_,
                                   trouble.empty() ? fmt::format("the file is cut off: {}", how) : trouble));
  }

  bool refill() {
    position_ += end_;
    begin_ = 0;
    end_ = file_.read(buffer_.data(), buffer_.size());
    return end_ != 0;
  }

  bool is_at_end() { return begin_ == end_ && !refill(); }

  // Moves what is unread to the front of the buffer and fills what is left of it.
  void gather(std::size_t count) {
    const std::size_t unread = end_ - begin_;
    std::memmove(buffer_.data(), buffer_.data() + begin_, unread);
    position_ += begin_;
    begin_ = 0;
    end_ = unread + file_.read(buffer_.data() + unread, buffer_.size() - unread);
    if (end_ < count) cut_off(fmt::format("of {} bytes there are {}", count, end_));
  }

  InputFile file_;
  std::vector<char> buffer_;
  std::size_t position_ = 0;  // in the file, of the buffer's front
  std::size_t begin_ = 0;     // of the unread bytes in the buffer
  std::size_t end_ = 0;
  std::size_t opcode_at_ = 0;
  char opcode_ = 0;
};

constexpr std::uint64_t kNewestProtocol = 5;
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

// --- numbers and texts that are written in several ways: each function throws BrokenPickle for others

// Returns false if the text is not one number as a whole.
template <typename Number, typename... How>
bool parse(std::string_view digits, Number& value, How... how) {
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, how...);
  return result.ec == std::errc{} && result.ptr == end;
}

std::uint32_t hexadecimal(const PickleInput& input, std::string_view digits, std::size_t count) {
  std::uint32_t value = 0;
  const bool is_whole = parse(digits, value, 16) && digits.size() == count;
  input.require(is_whole && value <= 0x10ffff, "{} is no character's number", Quoted{digits});
  return value;
}

// Reads an integer of `bytes` bytes, in two's complement, of at most 64 bits: sizes and addresses have 64, and an unsigned one
// of them has a ninth byte for its sign.
Part long_integer(PickleInput& input, std::uint64_t bytes) {
  input.require(bytes <= 9, "an integer of {} bytes: none here has more than 64 bits", bytes);
  if (bytes == 0) return Part::of_integer(0);
  std::uint64_t value = 0;
  const auto some = std::min<std::size_t>(static_cast<std::size_t>(bytes), sizeof(value));
  std::memcpy(&value, input.view(some).data(), some);
  if (bytes == 9) {
    input.require(input.byte() == 0, "an integer of more than 64 bits");
    return Part::of_natural(value);
  }
  const unsigned bits = 8 * static_cast<unsigned>(bytes);
  const bool is_negative = (value >> (bits - 1) & 1) != 0;
  if (is_negative && bits < 64) value |= ~std::uint64_t{0} << bits;
  return Part::of_integer(static_cast<std::int64_t>(value));
}

Part decimal(const PickleInput& input, std::string_view digits) {
  std::int64_t value = 0;
  if (parse(digits, value)) return Part::of_integer(value);
  std::uint64_t large = 0;
  input.require(parse(digits, large), "{} is not a whole number of 64 bits", Quoted{digits});
  return Part::of_natural(large);
}

Part integer_or_boolean(const PickleInput& input, std::string_view digits) {
  if (digits == "00" || digits == "01") return Part::of_boolean(digits == "01");
  return decimal(input, digits);
}

Part long_decimal(const PickleInput& input, std::string_view digits) {
  return decimal(input, digits.substr(0, digits.size() - (digits.ends_with('L') ? 1 : 0)));
}

Part real(const PickleInput& input, std::string_view digits) {
  double value = 0;
  input.require(parse(digits, value), "{} is not a number", Quoted{digits});
  return Part::of_real(value);
}

std::uint64_t memo_index(const PickleInput& input, std::string_view digits) {
  const std::optional<std::uint64_t> index = decimal(input, digits).natural();
  input.require(index.has_value(), "{} is no number of the memo", Quoted{digits});
  return *index;
}

// Decodes Python's raw-unicode-escape: Latin-1, and \uXXXX and \UXXXXXXXX for the rest.
std::string unescaped_unicode(const PickleInput& input, std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::size_t digits = !line.substr(i).starts_with("\\u") ? line.substr(i).starts_with("\\U") ? 8 : 0 : 4;
    if (digits == 0) {
      append_utf8(text, static_cast<unsigned char>(line[i]));
      continue;
    }
    append_utf8(text, hexadecimal(input, line.substr(i + 2, digits), digits));
    i += 1 + digits;
  }
  return text;
}

// Decodes Python 2's texts: in quotes, with the escapes that its repr writes.
std::string unescaped_string(const PickleInput& input, std::string_view line) {
  const bool is_quoted =
      line.size() >= 2 && line.front() == line.back() && (line.front() == '\'' || line.front() == '"');
  input.require(is_quoted, "{} is not in quotes", Quoted{line});
  line = line.substr(1, line.size() - 2);
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      text += line[i];
      continue;
    }
    input.require(++i < line.size(), "a text ends with a backslash");
    const std::size_t escape = std::string_view("ntr").find(line[i]);
    if (line[i] == 'x') {
      text += static_cast<char>(hexadecimal(input, line.substr(i + 1, 2), 2));
      i += 2;
    } else {
      text += escape == std::string_view::npos ? line[i] : "\n\t\r"[escape];
    }
  }
  return text;
}

// --- opcodes

// Returns the name of an opcode that is never carried out, because in Python it would run, or refer to, something
// outside of the file. nullptr for others.
const char* refused_name(Opcode opcode) {
  constexpr std::pair<Opcode, const char*> kRefused[] = {{Opcode::global, "GLOBAL"},
                                                         {Opcode::stack_global, "STACK_GLOBAL"},
                                                         {Opcode::reduce, "REDUCE"},
                                                         {Opcode::inst, "INST"},
                                                         {Opcode::obj, "OBJ"},
                                                         {Opcode::newobj, "NEWOBJ"},
                                                         {Opcode::newobj_ex, "NEWOBJ_EX"},
                                                         {Opcode::build, "BUILD"},
                                                         {Opcode::persid, "PERSID"},
                                                         {Opcode::binpersid, "BINPERSID"},
                                                         {Opcode::ext1, "EXT1"},
                                                         {Opcode::ext2, "EXT2"},
                                                         {Opcode::ext4, "EXT4"},
                                                         {Opcode::next_buffer, "NEXT_BUFFER"},
                                                         {Opcode::readonly_buffer, "READONLY_BUFFER"}};
  const auto found = std::ranges::find(kRefused, opcode, &std::pair<Opcode, const char*>::first);
  return found == std::end(kRefused) ? nullptr : found->second;
}

// The machine of a pickle that makes a history of it while it runs: of what it has read it holds what
// is not yet complete.
class PickleMachine {
 public:
  PickleMachine(PickleInput& input, SnapshotBuilder& builder) : input_(input), builder_(builder) {}

  // Carries out one opcode. Returns false for the last one.
  bool step() {
    const Opcode opcode = input_.opcode();
    memo(opcode);
    return opcode != Opcode::stop;
  }

  Part result() const { return parts_.back(); }

 private:
  // ---- opcodes, by subject, the most frequent first; each function passes other opcodes on to the next one

  void memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::memoize:
        return builder_.parts().memoize(parts_[top(1)]);
      case Opcode::put:
        return memoize(memo_index(input_, input_.line()));
      case Opcode::binput:
        return memoize(input_.natural<std::uint8_t>());
      case Opcode::long_binput:
        return memoize(input_.natural<std::uint32_t>());
      case Opcode::get:
        return recall(memo_index(input_, input_.line()));
      case Opcode::binget:
        return recall(input_.natural<std::uint8_t>());
      case Opcode::long_binget:
        return recall(input_.natural<std::uint32_t>());
      default:
        return text(opcode);
    }
  }

  void text(Opcode opcode) {
    switch (opcode) {
      case Opcode::short_binunicode:
      case Opcode::short_binstring:
        return push_text(input_.natural<std::uint8_t>());
      case Opcode::binunicode:
      case Opcode::binstring:
        return push_text(input_.natural<std::uint32_t>());
      case Opcode::binunicode8:
        return push_text(input_.natural<std::uint64_t>());
      case Opcode::short_binbytes:
        return push_bytes(input_.natural<std::uint8_t>());
      case Opcode::binbytes:
        return push_bytes(input_.natural<std::uint32_t>());
      case Opcode::binbytes8:
      case Opcode::bytearray8:
        return push_bytes(input_.natural<std::uint64_t>());
      case Opcode::unicode:
        return push(builder_.text(unescaped_unicode(input_, input_.line(kLongestLine))));
      case Opcode::string:
        return push(builder_.text(unescaped_string(input_, input_.line(kLongestLine))));
      default:
        return number(opcode);
    }
  }

  void number(Opcode opcode) {
    switch (opcode) {
      case Opcode::none:
        return push(Part());
      case Opcode::newtrue:
      case Opcode::newfalse:
        return push(Part::of_boolean(opcode == Opcode::newtrue));
      case Opcode::binint:
        return push(Part::of_integer(input_.natural<std::int32_t>()));
      case Opcode::binint1:
        return push(Part::of_integer(input_.natural<std::uint8_t>()));
      case Opcode::binint2:
        return push(Part::of_integer(input_.natural<std::uint16_t>()));
      case Opcode::long1:
        return push(long_integer(input_, input_.natural<std::uint8_t>()));
      case Opcode::long4:
        return push(long_integer(input_, input_.natural<std::uint32_t>()));
      case Opcode::binfloat:
        return push(Part::of_real(std::bit_cast<double>(__builtin_bswap64(input_.natural<std::uint64_t>()))));
      case Opcode::int_line:
        return push(integer_or_boolean(input_, input_.line()));
      case Opcode::long_line:
        return push(long_decimal(input_, input_.line()));
      case Opcode::float_line:
        return push(real(input_, input_.line()));
      default:
        return container(opcode);
    }
  }

  void container(Opcode opcode) {
    switch (opcode) {
      case Opcode::empty_list:
      case Opcode::empty_tuple:
      case Opcode::empty_set:
        return push(builder_.parts().open(Container::Kind::list));
      case Opcode::empty_dict:
        return push(builder_.parts().open(Container::Kind::dict));
      case Opcode::list:
      case Opcode::tuple:
      case Opcode::frozenset:
        return collect_from(to_mark());
      case Opcode::tuple1:
      case Opcode::tuple2:
      case Opcode::tuple3:
        return collect_from(top(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::tuple1) + 1));
      case Opcode::dict:
        return collect_dict_from(to_mark());
      case Opcode::append:
        return extend_from(top(1));
      case Opcode::appends:
      case Opcode::additems:
        return extend_from(to_mark());
      case Opcode::setitem:
        return set_items_from(top(2));
      case Opcode::setitems:
        return set_items_from(to_mark());
      default:
        return other(opcode);
    }
  }

  void other(Opcode opcode) {
    switch (opcode) {
      case Opcode::mark:
        return push_mark();
      case Opcode::pop:
        return pop();
      case Opcode::pop_mark:
        return parts_.resize(to_mark());
      case Opcode::dup:
        return push(parts_[top(1)]);
      case Opcode::proto: {
        const std::uint64_t protocol = input_.natural<std::uint8_t>();
        return input_.require(protocol <= kNewestProtocol, "protocol {}: 0 to {} can be read", protocol,
                              kNewestProtocol);
      }
      case Opcode::frame:  // for readers that fetch whole frames: nothing in it is needed here
        input_.natural<std::uint64_t>();
        return;
      default:
        return stop(opcode);
    }
  }

  void stop(Opcode opcode) {
    if (const char* name = refused_name(opcode)) {
      input_.require(false, "{} is refused: it names or calls something of Python's, and only plain data is read",
                     name);
    }
    input_.require(opcode == Opcode::stop, "there is no such opcode: this is no pickle, or a damaged one");
    input_.require(parts_.size() == 1 && marks_.empty(),
                   "the pickle ends with {} values and {} marks on its stack, not with one value", parts_.size(),
                   marks_.size());
    input_.require_end();
  }

  // ---- the stack and the memo

  void push(Part part) {
    if (parts_.size() == parts_.capacity()) builder_.budget().charge((parts_.size() + 1) * sizeof(Part));
    parts_.push_back(part);
  }

  // Bytes beyond the kept length are skipped.
  void push_text(std::uint64_t bytes) {
    const auto kept = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, SnapshotBuilder::kLongestText));
    const Part text = builder_.text(input_.view(kept));
    if (bytes > kept) input_.skip(bytes - kept);
    push(text);
  }

  void push_bytes(std::uint64_t bytes) {
    input_.skip(bytes);
    push(Part::of_id(Part::Kind::bytes, 0));
  }

  void push_mark() {
    if (marks_.size() == marks_.capacity()) builder_.budget().charge((marks_.size() + 1) * sizeof(std::size_t));
    marks_.push_back(parts_.size());
  }

  // Python takes a mark for a value here.
  void pop() {
    if (!marks_.empty() && marks_.back() == parts_.size())
      marks_.pop_back();
    else
      parts_.resize(top(1));
  }

  // Python counts from 0; numbers far beyond the memo's size would only take memory.
  void memoize(std::uint64_t index) {
    input_.require(index <= input_.opcode_at(), "the memo's number {} is beyond what the file has had so far", index);
    builder_.parts().memoize(index, parts_[top(1)]);
  }

  void recall(std::uint64_t index) {
    const std::optional<Part> part = builder_.parts().recall(index);
    input_.require(part.has_value(), "the memo has nothing under number {}", index);
    push(*part);
  }

  // Returns where the `count` parts on the top begin; all are above the last mark.
  std::size_t top(std::size_t count) const {
    const std::size_t above = parts_.size() - (marks_.empty() ? 0 : marks_.back());
    input_.require(above >= count, "it needs {} values, the stack has {}", count, above);
    return parts_.size() - count;
  }

  // Returns where the parts above the last mark begin, which goes.
  std::size_t to_mark() {
    input_.require(!marks_.empty(), "it needs a mark, there is none");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  void collect_from(std::size_t begin) {
    const Part list = builder_.parts().open(Container::Kind::list);
    append_from(begin, list);
    push(list);
  }

  void collect_dict_from(std::size_t begin) {
    const Part dict = builder_.parts().open(Container::Kind::dict);
    set_items(dict, begin);
    push(dict);
  }

  void extend_from(std::size_t begin) { append_from(begin, below(begin)); }

  void append_from(std::size_t begin, Part list) {
    for (std::size_t i = begin; i < parts_.size(); ++i) builder_.append(list, parts_[i]);
    parts_.resize(begin);
  }

  void set_items_from(std::size_t begin) { set_items(below(begin), begin); }

  void set_items(Part dict, std::size_t begin) {
    const std::size_t count = parts_.size() - begin;
    input_.require(count % 2 == 0, "keys and values come in pairs, these are {}", count);
    for (std::size_t i = begin; i < parts_.size(); i += 2) builder_.set(dict, parts_[i], parts_[i + 1]);
    parts_.resize(begin);
  }

  // Returns the part below those from `begin` on.
  Part below(std::size_t begin) const {
    input_.require(begin > (marks_.empty() ? 0 : marks_.back()), "there is nothing below the values");
    return parts_[begin - 1];
  }

  PickleInput& input_;
  SnapshotBuilder& builder_;
  std::vector<Part> parts_;
  std::vector<std::size_t> marks_;  // the positions of the marks: the numbers of parts below
};

}  // namespace

History read_pickle(InputFile file) {
  const std::string path = file.path();
  SnapshotBuilder builder(file.memory_limit());
  PickleInput input(std::move(file));
  PickleMachine machine(input, builder);
  try {
    while (machine.step()) {
    }
    return builder.finish(machine.result());
  } catch (const BrokenPickle& broken) {
    throw InvalidArgument(fmt::format("{}: {}", path, broken.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: byte {}: {}", path, input.opcode_at(), error.what()));
  }
}

}  // namespace cachalot::tools
