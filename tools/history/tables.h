// Tables of what a file names many times: texts, call stacks, streams, pools and details of events. Each value is kept
// once, and what names it has a number of 32 bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/device.h"
#include "tools/base/seeded_hash.h"

namespace cachalot::tools {

// Numbers of distinct values, found by hashes of the values, which are kept elsewhere.
class IdSet {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // Returns the number for which `is_it` holds, of those that were added with this hash; kNone: there is none.
  template <typename IsIt>
  std::uint32_t find(std::uint64_t hash, const IsIt& is_it) const {
    if (slots_.empty()) return kNone;
    for (std::size_t at = home(short_hash(hash)); slots_[at].id != kNone; at = next(at)) {
      if (slots_[at].hash == short_hash(hash) && is_it(slots_[at].id)) return slots_[at].id;
    }
    return kNone;
  }

  // Requires that find() does not find it, and that it is not kNone.
  void add(std::uint64_t hash, std::uint32_t id) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    place({short_hash(hash), id});
    ++count_;
  }

 private:
  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t id = kNone;
  };

  static std::uint32_t short_hash(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }
  std::size_t home(std::uint32_t hash) const { return hash & (slots_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  void place(Slot slot) {
    std::size_t at = home(slot.hash);
    while (slots_[at].id != kNone) at = next(at);
    slots_[at] = slot;
  }
  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.id != kNone) place(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two of them, or none
  std::size_t count_ = 0;
};

using TextId = std::uint32_t;     // 0 is ""
using FrameId = std::uint32_t;    // index in StackTable's frames
using StackId = std::uint32_t;    // 0: no call stack was recorded
using DetailsId = std::uint32_t;  // 0: nothing more is known of the event

class TextTable {
 public:
  TextTable() { add(""); }

  TextId add(std::string_view text);
  std::string_view operator[](TextId id) const { return texts_[id]; }
  std::size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  IdSet ids_;
};

struct StackFrame {
  TextId file = 0;
  TextId function = 0;
  std::uint32_t line = 0;
  TextId node = 0;  // of an FX graph, where the program was compiled: "relu_1"

  friend auto operator<=>(const StackFrame&, const StackFrame&) = default;
};

// Call stacks; the frames of each have the newest call first.
class StackTable {
 public:
  StackTable() : begins_{0, 0} {}

  FrameId add_frame(const StackFrame& frame);
  StackId add(std::span<const FrameId> frames);  // no frames: 0
  const StackFrame& frame(FrameId id) const { return frames_[id]; }
  std::span<const FrameId> operator[](StackId id) const {
    return std::span(in_stacks_).subspan(begins_[id], begins_[id + 1] - begins_[id]);
  }
  std::size_t size() const { return begins_.size() - 1; }  // with the empty one, 0
  std::size_t frame_count() const { return frames_.size(); }

 private:
  std::vector<StackFrame> frames_;
  IdSet frame_ids_;
  std::vector<FrameId> in_stacks_;   // of all stacks, one behind the other
  std::vector<std::size_t> begins_;  // stack i has in_stacks_[begins_[i], begins_[i + 1])
  IdSet stack_ids_;
};

// The fields of some events beside the usual ones.
struct EventDetails {
  StackId forward_stack = 0;     // of the call of forward, for what its backward pass allocated
  TextId compile_context = 0;    // "0/0": frame and compilation of torch.compile
  TextId user_metadata = 0;      // text, or JSON where the program gave a dict
  TextId internal_metadata = 0;  // JSON; PyTorch's since 2.15

  friend auto operator<=>(const EventDetails&, const EventDetails&) = default;
};

inline std::uint64_t hash_of(std::uint64_t value) { return SeededHash()(value); }
inline std::uint64_t hash_of(const PoolId& pool) { return SeededHash()(pool.first, pool.second); }
inline std::uint64_t hash_of(const EventDetails& details) {
  return SeededHash()(std::uint64_t{details.forward_stack} << 32 | details.compile_context,
                      std::uint64_t{details.user_metadata} << 32 | details.internal_metadata);
}

// Distinct values in the order in which they came: as many as their numbers can tell apart.
template <typename T, typename Id>
class ValueTable {
 public:
  // `what` they are, for a message: "streams".
  explicit ValueTable(const char* what, const T& first) : what_(what) { add(first); }

  // Throws InvalidArgument when there are too many.
  Id add(const T& value) {
    if (last_ < values_.size() && values_[last_] == value) return last_;
    const std::uint64_t hash = hash_of(value);
    const std::uint32_t known = ids_.find(hash, [&](std::uint32_t id) { return values_[id] == value; });
    if (known != IdSet::kNone) return last_ = static_cast<Id>(known);
    CACHALOT_REQUIRE(values_.size() < std::numeric_limits<Id>::max(), "more than {} {}", values_.size(), what_);
    ids_.add(hash, static_cast<std::uint32_t>(values_.size()));
    values_.push_back(value);
    return last_ = static_cast<Id>(values_.size() - 1);
  }
  const T& operator[](std::size_t id) const { return values_[id]; }
  std::size_t size() const { return values_.size(); }

 private:
  const char* what_;
  std::vector<T> values_;
  IdSet ids_;
  Id last_ = 0;  // the newest answer: many events in a row have the same
};

}  // namespace cachalot::tools
