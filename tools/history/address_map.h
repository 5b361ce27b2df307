// An AddressMap has a number for each live address. It is made for many addresses and a history that chose them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "cachalot/device.h"
#include "tools/base/seeded_hash.h"

namespace cachalot::tools {

class AddressMap {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  // kNone: the address has no number.
  std::uint32_t find(Address address) const {
    if (slots_.empty()) return kNone;
    return slots_[slot_of(address)].number;
  }

  // Requires a number that is not kNone.
  void set(Address address, std::uint32_t number) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    Slot& slot = slots_[slot_of(address)];
    if (slot.number == kNone) ++count_;
    slot = {address, number};
  }

  // Returns the number that the address had, or kNone.
  std::uint32_t erase(Address address) {
    if (slots_.empty()) return kNone;
    std::size_t hole = slot_of(address);
    const std::uint32_t number = slots_[hole].number;
    if (number == kNone) return kNone;
    --count_;
    // Later entries move up, unless that would be before their home.
    for (std::size_t at = next(hole); slots_[at].number != kNone; at = next(at)) {
      const std::size_t way = (at - home(slots_[at].address)) & (slots_.size() - 1);
      if (way < ((at - hole) & (slots_.size() - 1))) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].number = kNone;
    return number;
  }

 private:
  struct Slot {
    Address address = 0;
    std::uint32_t number = kNone;
  };

  std::size_t home(Address address) const { return SeededHash()(address) & (slots_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }
  // Returns the slot that holds the address, or would hold it.
  std::size_t slot_of(Address address) const {
    std::size_t at = home(address);
    while (slots_[at].number != kNone && slots_[at].address != address) at = next(at);
    return at;
  }

  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 64 : 2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.number != kNone) slots_[slot_of(slot.address)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two of them, or none
  std::size_t count_ = 0;
};

}  // namespace cachalot::tools
