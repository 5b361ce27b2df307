#include "tools/pickle_reader.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/quoted.h"

namespace cachalot::tools {
namespace {

// Python's pickletools.py documents them. Those that are not here do not exist.
enum class Opcode : unsigned char {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  float_line = 'F',
  int_line = 'I',
  binint = 'J',
  binint1 = 'K',
  long_line = 'L',
  binint2 = 'M',
  none = 'N',
  persid = 'P',
  binpersid = 'Q',
  reduce = 'R',
  string = 'S',
  binstring = 'T',
  short_binstring = 'U',
  unicode = 'V',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  dict = 'd',
  appends = 'e',
  get = 'g',
  binget = 'h',
  inst = 'i',
  long_binget = 'j',
  list = 'l',
  obj = 'o',
  put = 'p',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  setitems = 'u',
  binbytes = 'B',
  short_binbytes = 'C',
  binfloat = 'G',
  empty_tuple = ')',
  empty_list = ']',
  empty_dict = '}',
  proto = 0x80,
  newobj = 0x81,
  ext1 = 0x82,
  ext2 = 0x83,
  ext4 = 0x84,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  newobj_ex = 0x92,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
  next_buffer = 0x97,
  readonly_buffer = 0x98,
};

// The name of an opcode that is never carried out: what it would do in Python is to run, or to refer to, something outside
// of the file. nullptr for others.
const char* refused_name(Opcode opcode) {
  switch (opcode) {
    case Opcode::global:
      return "GLOBAL";
    case Opcode::stack_global:
      return "STACK_GLOBAL";
    case Opcode::reduce:
      return "REDUCE";
    case Opcode::inst:
      return "INST";
    case Opcode::obj:
      return "OBJ";
    case Opcode::newobj:
      return "NEWOBJ";
    case Opcode::newobj_ex:
      return "NEWOBJ_EX";
    case Opcode::build:
      return "BUILD";
    case Opcode::persid:
      return "PERSID";
    case Opcode::binpersid:
      return "BINPERSID";
    case Opcode::ext1:
      return "EXT1";
    case Opcode::ext2:
      return "EXT2";
    case Opcode::ext4:
      return "EXT4";
    case Opcode::next_buffer:
      return "NEXT_BUFFER";
    case Opcode::readonly_buffer:
      return "READONLY_BUFFER";
    default:
      return nullptr;
  }
}

constexpr std::uint64_t kNewestProtocol = 5;
constexpr std::size_t kLongestLine = 1 << 16;  // of a number, as text

void append_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | (code >> 18 & 7));
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

class PickleReader {
 public:
  explicit PickleReader(InputFile file)
      : file_(std::move(file)), document_(std::make_unique<PlainDocument>(file_.memory_limit())) {
    buffer_.resize(std::size_t{1} << 16);
  }

  std::unique_ptr<PlainDocument> read() {
    try {
      while (step()) {
      }
    } catch (const Broken& broken) {
      throw InvalidArgument(fmt::format("{}: {}", file_.path(), broken.what()));
    } catch (const InvalidArgument& error) {  // the document's limit
      throw InvalidArgument(fmt::format("{}: byte {}: {}", file_.path(), opcode_at_, error.what()));
    }
    return std::move(document_);
  }

 private:
  struct Broken : InvalidArgument {
    using InvalidArgument::InvalidArgument;
  };

  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (holds) [[likely]]
      return;
    throw Broken(fmt::format("byte {}: opcode {}: {}", opcode_at_, Quoted{{&opcode_, 1}},
                             fmt::format(rule, std::forward<Args>(args)...)));
  }

  // One opcode; false: it was the last.
  bool step() {
    opcode_at_ = position_ + begin_;
    if (begin_ == end_ && !refill()) cut_off("there is no STOP");
    opcode_ = buffer_[begin_++];
    const auto opcode = static_cast<Opcode>(static_cast<unsigned char>(opcode_));
    if (opcode == Opcode::stop) {
      finish();
      return false;
    }
    if (const char* name = refused_name(opcode)) {
      require(false, "{} is refused: it names or calls something of Python's, and only plain data is read", name);
    }
    require(number(opcode) || text(opcode) || container(opcode) || memo(opcode) || other(opcode),
            "there is no such opcode: this is no pickle, or a damaged one");
    return true;
  }

  void finish() {
    require(stack_.size() == 1 && marks_.empty(),
            "the pickle ends with {} values and {} marks on its stack, not with one value", stack_.size(),
            marks_.size());
    document_->set_root(stack_.back());
    const bool goes_on = begin_ != end_ || refill();
    require(!goes_on, "the pickle ends, but the file goes on");
    const std::string trouble = file_.trouble();
    require(trouble.empty(), "{}", trouble);
  }

  // ---- opcodes, by what they are about; false: it is none of these

  bool number(Opcode opcode) {
    switch (opcode) {
      case Opcode::none:
        push({});
        return true;
      case Opcode::newtrue:
      case Opcode::newfalse:
        push(Value::of_boolean(opcode == Opcode::newtrue));
        return true;
      case Opcode::binint:
        push(Value::of_integer(static_cast<std::int32_t>(natural(4))));
        return true;
      case Opcode::binint1:
        push(Value::of_integer(static_cast<std::int64_t>(natural(1))));
        return true;
      case Opcode::binint2:
        push(Value::of_integer(static_cast<std::int64_t>(natural(2))));
        return true;
      case Opcode::long1:
        push(long_integer(natural(1)));
        return true;
      case Opcode::long4:
        push(long_integer(natural(4)));
        return true;
      case Opcode::binfloat:
        push(Value::of_real(std::bit_cast<double>(__builtin_bswap64(natural(8)))));
        return true;
      case Opcode::int_line:
        push(int_of(line()));
        return true;
      case Opcode::long_line: {
        const std::string digits = line();
        push(decimal(std::string_view{digits}.substr(0, digits.size() - (digits.ends_with('L') ? 1 : 0))));
        return true;
      }
      case Opcode::float_line: {
        const std::string digits = line();
        double value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        require(error == std::errc{} && end == digits.data() + digits.size(), "{} is not a number", Quoted{digits});
        push(Value::of_real(value));
        return true;
      }
      default:
        return false;
    }
  }

  bool text(Opcode opcode) {
    switch (opcode) {
      case Opcode::short_binunicode:
      case Opcode::short_binstring:
        push(document_->add_text(bytes(natural(1))));
        return true;
      case Opcode::binunicode:
      case Opcode::binstring:
        push(document_->add_text(bytes(natural(4))));
        return true;
      case Opcode::binunicode8:
        push(document_->add_text(bytes(natural(8))));
        return true;
      case Opcode::short_binbytes:
        push(document_->add_bytes(bytes(natural(1))));
        return true;
      case Opcode::binbytes:
        push(document_->add_bytes(bytes(natural(4))));
        return true;
      case Opcode::binbytes8:
      case Opcode::bytearray8:
        push(document_->add_bytes(bytes(natural(8))));
        return true;
      case Opcode::unicode:
        push(document_->add_text(unescaped_unicode(line(kNoLimit))));
        return true;
      case Opcode::string:
        push(document_->add_text(unescaped_string(line(kNoLimit))));
        return true;
      default:
        return false;
    }
  }

  bool container(Opcode opcode) {
    switch (opcode) {
      case Opcode::empty_list:
        push(document_->add_list());
        return true;
      case Opcode::empty_tuple:
        push(document_->add_list({}, Value::Kind::tuple));
        return true;
      case Opcode::empty_set:
        push(document_->add_list({}, Value::Kind::set));
        return true;
      case Opcode::empty_dict:
        push(document_->add_dict());
        return true;
      case Opcode::list:
        collect(to_mark(), Value::Kind::list);
        return true;
      case Opcode::tuple:
        collect(to_mark(), Value::Kind::tuple);
        return true;
      case Opcode::frozenset:
        collect(to_mark(), Value::Kind::set);
        return true;
      case Opcode::tuple1:
      case Opcode::tuple2:
      case Opcode::tuple3:
        collect(top(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::tuple1) + 1),
                Value::Kind::tuple);
        return true;
      case Opcode::dict: {
        const std::size_t begin = to_mark();
        const Value dict = document_->add_dict();
        set_items(dict, begin);
        push(dict);
        return true;
      }
      case Opcode::append:
        extend(top(1), Value::Kind::list);
        return true;
      case Opcode::appends:
        extend(to_mark(), Value::Kind::list);
        return true;
      case Opcode::additems:
        extend(to_mark(), Value::Kind::set);
        return true;
      case Opcode::setitem:
        set_items_below(top(2));
        return true;
      case Opcode::setitems:
        set_items_below(to_mark());
        return true;
      default:
        return false;
    }
  }

  bool memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::memoize:
        put(memo_.size());
        return true;
      case Opcode::put:
        put(index_of(line()));
        return true;
      case Opcode::binput:
        put(natural(1));
        return true;
      case Opcode::long_binput:
        put(natural(4));
        return true;
      case Opcode::get:
        get(index_of(line()));
        return true;
      case Opcode::binget:
        get(natural(1));
        return true;
      case Opcode::long_binget:
        get(natural(4));
        return true;
      default:
        return false;
    }
  }

  bool other(Opcode opcode) {
    switch (opcode) {
      case Opcode::mark:
        document_->charge(2 * sizeof(std::size_t));
        marks_.push_back(stack_.size());
        return true;
      case Opcode::pop:  // Python takes a mark for a value here
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          stack_.resize(top(1));
        }
        return true;
      case Opcode::pop_mark:
        stack_.resize(to_mark());
        return true;
      case Opcode::dup:
        push(stack_[top(1)]);
        return true;
      case Opcode::proto: {
        const std::uint64_t protocol = natural(1);
        require(protocol <= kNewestProtocol, "protocol {}: 0 to {} can be read", protocol, kNewestProtocol);
        return true;
      }
      case Opcode::frame:  // for readers that fetch whole frames: nothing in it is needed here
        natural(8);
        return true;
      default:
        return false;
    }
  }

  // ---- the stack

  void push(Value value) {
    if (stack_.size() == stack_.capacity())
      document_->charge(2 * sizeof(Value) * std::max<std::size_t>(stack_.size(), 1));
    stack_.push_back(value);
  }

  // Where the `count` values on the top begin; all are above the last mark.
  std::size_t top(std::size_t count) const {
    const std::size_t above = stack_.size() - (marks_.empty() ? 0 : marks_.back());
    require(above >= count, "it needs {} values, the stack has {}", count, above);
    return stack_.size() - count;
  }

  // Where the values above the last mark begin, which goes.
  std::size_t to_mark() {
    require(!marks_.empty(), "it needs a mark, there is none");
    return take_mark();
  }
  std::size_t take_mark() {
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  void collect(std::size_t begin, Value::Kind kind) {
    const Value value = document_->add_list(std::span<const Value>(stack_).subspan(begin), kind);
    stack_.resize(begin);
    push(value);
  }

  // What is below the values from `begin` on.
  Value below(std::size_t begin) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    require(begin > floor, "there is nothing below the values");
    return stack_[begin - 1];
  }

  void extend(std::size_t begin, Value::Kind kind) {
    const Value list = below(begin);
    require(list.kind() == kind, "its values go into {}, which is none of the right kind", list.kind_name());
    for (std::size_t i = begin; i < stack_.size(); ++i) document_->append(list, stack_[i]);
    stack_.resize(begin);
  }

  void set_items(Value dict, std::size_t begin) {
    require((stack_.size() - begin) % 2 == 0, "keys and values come in pairs, these are {}", stack_.size() - begin);
    for (std::size_t i = begin; i < stack_.size(); i += 2) document_->set(dict, stack_[i], stack_[i + 1]);
    stack_.resize(begin);
  }
  void set_items_below(std::size_t begin) {
    const Value dict = below(begin);
    require(dict.entries() != nullptr, "its values go into {}, which is no dict", dict.kind_name());
    set_items(dict, begin);
  }

  // ---- the memo

  // Python counts from 0; numbers far beyond what was memoized yet would only take memory.
  void put(std::uint64_t index) {
    require(index <= opcode_at_, "the memo's number {} is beyond what the file has had so far", index);
    const Value value = stack_[top(1)];
    if (index >= memo_.size()) {
      const std::size_t size = static_cast<std::size_t>(index) + 1;
      document_->charge(2 * sizeof(Memo) * (size - memo_.size()));
      memo_.resize(size);
    }
    memo_[static_cast<std::size_t>(index)] = {value, true};
  }

  void get(std::uint64_t index) {
    const bool is_known = index < memo_.size() && memo_[static_cast<std::size_t>(index)].is_set;
    require(is_known, "the memo has nothing under number {}", index);
    push(memo_[static_cast<std::size_t>(index)].value);
  }

  // ---- arguments

  // Of `count` bytes, at most 8, the least significant first.
  std::uint64_t natural(std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i) value |= std::uint64_t{byte()} << 8 * i;
    return value;
  }

  // Two's complement. Sizes and addresses have 64 bits, and an unsigned one of them has a ninth byte for its sign.
  Value long_integer(std::uint64_t count) {
    require(count <= 9, "an integer of {} bytes: none here has more than 64 bits", count);
    if (count == 0) return Value::of_integer(0);
    std::uint64_t value = natural(std::min<std::size_t>(static_cast<std::size_t>(count), 8));
    if (count == 9) {
      require(byte() == 0, "an integer of more than 64 bits");
      return Value::of_natural(value);
    }
    const unsigned bits = 8 * static_cast<unsigned>(count);
    const bool is_negative = (value >> (bits - 1) & 1) != 0;
    if (is_negative && bits < 64) value |= ~std::uint64_t{0} << bits;
    return Value::of_integer(static_cast<std::int64_t>(value));
  }

  Value decimal(std::string_view digits) const {
    std::int64_t value = 0;
    const char* const end = digits.data() + digits.size();
    auto result = std::from_chars(digits.data(), end, value);
    if (result.ec == std::errc{} && result.ptr == end) return Value::of_integer(value);
    std::uint64_t large = 0;
    result = std::from_chars(digits.data(), end, large);
    require(result.ec == std::errc{} && result.ptr == end, "{} is not a whole number of 64 bits", Quoted{digits});
    return Value::of_natural(large);
  }
  Value int_of(const std::string& digits) const {
    if (digits == "00" || digits == "01") return Value::of_boolean(digits == "01");
    return decimal(digits);
  }
  std::uint64_t index_of(const std::string& digits) const {
    const std::optional<std::uint64_t> index = decimal(digits).natural();
    require(index.has_value(), "{} is no number of the memo", Quoted{digits});
    return *index;
  }

  // As long as the file says, but taken as it arrives.
  std::string bytes(std::uint64_t count) {
    std::string all;
    while (all.size() < count) {
      if (begin_ == end_ && !refill()) cut_off(fmt::format("of {} bytes there are {}", count, all.size()));
      const std::size_t left = static_cast<std::size_t>(std::min<std::uint64_t>(count - all.size(), end_ - begin_));
      grow(all, left);
      all.append(buffer_.data() + begin_, left);
      begin_ += left;
    }
    return all;
  }

  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  std::string line(std::size_t longest = kLongestLine) {
    std::string all;
    for (;;) {
      if (begin_ == end_ && !refill()) cut_off("its line does not end");
      const char* const from = buffer_.data() + begin_;
      const auto* newline = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
      const std::size_t length = newline == nullptr ? end_ - begin_ : static_cast<std::size_t>(newline - from);
      require(length <= longest - all.size(), "a number of more than {} digits", longest);
      grow(all, length);
      all.append(from, length);
      begin_ += length + (newline == nullptr ? 0 : 1);
      if (newline != nullptr) return all;
    }
  }

  // While a text arrives it is on the document's account, too: one of all the file is, else, held before it is counted.
  void grow(const std::string& text, std::size_t bytes) {
    if (text.size() + bytes > text.capacity()) document_->charge(text.size() + bytes);
  }

  // Python's raw-unicode-escape: Latin-1, and \uXXXX and \UXXXXXXXX for the rest.
  std::string unescaped_unicode(std::string_view line) const {
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::size_t digits = !line.substr(i).starts_with("\\u") ? line.substr(i).starts_with("\\U") ? 8 : 0 : 4;
      if (digits == 0) {
        append_utf8(text, static_cast<unsigned char>(line[i]));
        continue;
      }
      append_utf8(text, hexadecimal(line.substr(i + 2, digits), digits));
      i += 1 + digits;
    }
    return text;
  }

  // Python 2's: in quotes, with the escapes that its repr writes.
  std::string unescaped_string(std::string_view line) const {
    const bool is_quoted =
        line.size() >= 2 && line.front() == line.back() && (line.front() == '\'' || line.front() == '"');
    require(is_quoted, "{} is not in quotes", Quoted{line});
    line = line.substr(1, line.size() - 2);
    std::string text;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] != '\\') {
        text += line[i];
        continue;
      }
      require(++i < line.size(), "a text ends with a backslash");
      const std::size_t escape = std::string_view("ntr").find(line[i]);
      if (line[i] == 'x') {
        text += static_cast<char>(hexadecimal(line.substr(i + 1, 2), 2));
        i += 2;
      } else {
        text += escape == std::string_view::npos ? line[i] : "\n\t\r"[escape];
      }
    }
    return text;
  }

  std::uint32_t hexadecimal(std::string_view digits, std::size_t count) const {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    const bool is_whole = digits.size() == count && error == std::errc{} && end == digits.data() + digits.size();
    require(is_whole && value <= 0x10ffff, "{} is no character's number", Quoted{digits});
    return value;
  }

  // ---- bytes

  unsigned char byte() {
    if (begin_ == end_ && !refill()) cut_off("its argument is not all there");
    return static_cast<unsigned char>(buffer_[begin_++]);
  }

  bool refill() {
    position_ += end_;
    begin_ = 0;
    end_ = file_.read(buffer_.data(), buffer_.size());
    return end_ != 0;
  }

  [[noreturn]] void cut_off(std::string_view how) const {
    const std::string trouble = file_.trouble();
    throw Broken(fmt::format("byte {}: {}", opcode_at_,
                             trouble.empty() ? fmt::format("the file is cut off: {}", how) : trouble));
  }

  struct Memo {
    Value value;
    bool is_set = false;
  };

  InputFile file_;
  std::unique_ptr<PlainDocument> document_;
  std::vector<char> buffer_;
  std::size_t position_ = 0;  // in the file, of the buffer's front
  std::size_t begin_ = 0;     // of what is unread in the buffer
  std::size_t end_ = 0;
  std::size_t opcode_at_ = 0;
  char opcode_ = 0;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;  // where they are: so many values are below
  std::vector<Memo> memo_;
};

}  // namespace

std::unique_ptr<PlainDocument> read_pickle(InputFile file) { return PickleReader(std::move(file)).read(); }

}  // namespace cachalot::tools
