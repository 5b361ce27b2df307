// Numbers of distinct values, found by hashes of the values, which are kept elsewhere.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace cachalot::tools {

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

}  // namespace cachalot::tools
