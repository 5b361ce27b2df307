#include "tools/exports/pickle_writer.h"

#include <bit>
#include <limits>

namespace cachalot::tools {
namespace {

// Python's own pickler writes so many parts at once. The memory viewer passes them as arguments of one call, of which
// browsers allow some ten thousand.
constexpr int kBatch = 1000;
constexpr std::size_t kLongestRemembered = 256;  // longer texts seldom come again

}  // namespace

PickleWriter::PickleWriter(OutputFile& out) : out_(out) {
  opcode(Opcode::proto);
  little_endian(4, 1);
}

void PickleWriter::begin_dict() {
  value();
  opcode(Opcode::empty_dict);
  open_.push_back({});
}

void PickleWriter::begin_list() {
  value();
  opcode(Opcode::empty_list);
  open_.push_back({.is_list = true});
}

void PickleWriter::key(std::string_view name) {
  Open& dict = open_.back();
  if (!dict.has_batch) opcode(Opcode::mark);
  dict.has_batch = true;
  add_text(name);
}

// A list's parts are written in batches; dicts are small.
void PickleWriter::value() {
  if (open_.empty() || !open_.back().is_list) return;
  Open& list = open_.back();
  if (list.parts == kBatch) {
    opcode(Opcode::appends);
    list = {.is_list = true};
  }
  if (!list.has_batch) opcode(Opcode::mark);
  list.has_batch = true;
  ++list.parts;
}

void PickleWriter::end(Opcode code) {
  if (open_.back().has_batch) opcode(code);
  open_.pop_back();
}

void PickleWriter::add(std::uint64_t number) {
  if (number <= std::numeric_limits<std::int64_t>::max()) return add(static_cast<std::int64_t>(number));
  value();
  opcode(Opcode::long1);
  little_endian(9, 1);  // with a byte for the sign
  little_endian(number, 8);
  little_endian(0, 1);
}

void PickleWriter::add(std::int64_t number) {
  value();
  const auto bits = static_cast<std::uint64_t>(number);
  if (number >= 0 && number <= std::numeric_limits<std::uint8_t>::max()) {
    opcode(Opcode::binint1);
    little_endian(bits, 1);
  } else if (number >= 0 && number <= std::numeric_limits<std::uint16_t>::max()) {
    opcode(Opcode::binint2);
    little_endian(bits, 2);
  } else if (number == static_cast<std::int32_t>(number)) {
    opcode(Opcode::binint);
    little_endian(bits, 4);
  } else {
    const auto bytes =
        static_cast<int>(std::bit_width(number < 0 ? ~bits : bits) + 8) / 8;  // with the bit for the sign
    opcode(Opcode::long1);
    little_endian(static_cast<std::uint64_t>(bytes), 1);
    little_endian(bits, bytes);
  }
}

void PickleWriter::add(bool boolean) {
  value();
  opcode(boolean ? Opcode::newtrue : Opcode::newfalse);
}

void PickleWriter::add(std::string_view text) {
  value();
  add_text(text);
}

void PickleWriter::add_pair(std::uint64_t first, std::uint64_t second) {
  value();
  open_.push_back({});  // its parts are no parts of the list
  add(first);
  add(second);
  open_.pop_back();
  opcode(Opcode::tuple2);
}

PickledId PickleWriter::remember() {
  opcode(Opcode::memoize);
  return remembered_++;
}

void PickleWriter::add_again(PickledId id) {
  value();
  const bool is_short = id <= std::numeric_limits<std::uint8_t>::max();
  opcode(is_short ? Opcode::binget : Opcode::long_binget);
  little_endian(id, is_short ? 1 : 4);
}

void PickleWriter::add_text(std::string_view text) {
  const auto known = texts_.find(text);
  if (known != texts_.end()) {
    const bool is_short = known->second <= std::numeric_limits<std::uint8_t>::max();
    opcode(is_short ? Opcode::binget : Opcode::long_binget);
    little_endian(known->second, is_short ? 1 : 4);
    return;
  }
  const bool is_short = text.size() <= std::numeric_limits<std::uint8_t>::max();
  opcode(is_short ? Opcode::short_binunicode : Opcode::binunicode);
  little_endian(text.size(), is_short ? 1 : 4);
  out_.write(text);
  if (text.size() <= kLongestRemembered) texts_.emplace(text, remember());
}

void PickleWriter::finish() { opcode(Opcode::stop); }

void PickleWriter::opcode(Opcode code) { little_endian(static_cast<std::uint64_t>(code), 1); }

void PickleWriter::little_endian(std::uint64_t number, int bytes) {
  char text[8];
  for (int i = 0; i < bytes; ++i) text[i] = static_cast<char>(number >> (8 * i));
  out_.write({text, static_cast<std::size_t>(bytes)});
}

}  // namespace cachalot::tools
