// Allocations by address, each beginning on a multiple of 2 MiB: a radix tree over the 47 bits of an address, so that
// neither insert, erase nor look-up depends on how many there are.
// Not thread-safe; the device's mutex guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cachalot/device.h"
#include "device/address_space.h"

CACHALOT_BEGIN

struct Allocation {
  std::size_t bytes = 0;       // asked for; 0: none here
  std::uint64_t physical = 0;  // number of its first byte
  std::uint64_t mapping = 0;   // its number among mappings
  bool foreign = false;        // of another process
};

class AllocationTable {
 public:
  // `address`: a multiple of kPhysicalUnit in no allocation; `allocation.bytes` > 0.
  void insert(Address address, const Allocation& allocation);
  void erase(Address address);

  // The allocation that begins at the address; null if none does.
  const Allocation* find(Address address) const;

  struct Found {
    Address begin = 0;
    const Allocation* allocation = nullptr;  // null: no allocation holds the address
  };
  Found holding(Address address) const;

  // Calls visit(begin, allocation) in the order of addresses.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& branch : branches_) {
      for (std::size_t i = 0; branch && i < kBranchLeaves; ++i) {
        const Leaf* leaf = branch->leaves[i].get();
        for (std::size_t slot = 0; leaf && slot < kLeafSlots; ++slot) {
          if (leaf->allocations[slot].bytes > 0) visit(leaf->begin + slot * kPhysicalUnit, leaf->allocations[slot]);
        }
      }
    }
  }

 private:
  // 2^47 bytes = 256 branches of 512 leaves of 512 slots of 2 MiB.
  static constexpr std::size_t kBranches = 256;
  static constexpr std::size_t kBranchLeaves = 512;
  static constexpr std::size_t kLeafSlots = 512;
  static constexpr std::size_t kLeafBytes = kLeafSlots * kPhysicalUnit;
  static constexpr std::size_t kBranchBytes = kBranchLeaves * kLeafBytes;
  static_assert(kBranches * kBranchBytes == std::size_t{1} << 47);

  struct Leaf {
    Address begin = 0;
    Address held_by = 0;    // beginning of an allocation that reaches in here from a lower leaf; 0: none
    std::size_t users = 0;  // allocations that begin here or reach in here
    std::array<Allocation, kLeafSlots> allocations;
  };
  struct Branch {
    std::array<std::unique_ptr<Leaf>, kBranchLeaves> leaves;
  };

  static std::size_t slot_of(Address address) { return address % kLeafBytes / kPhysicalUnit; }
  Leaf* leaf_of(Address address) const;
  Leaf& make_leaf(Address address);
  void leave(Leaf& leaf);

  std::array<std::unique_ptr<Branch>, kBranches> branches_;
  Leaf* idle_ = nullptr;  // empty, but kept: new addresses ascend, so that it is likely to be used again
};

CACHALOT_END
