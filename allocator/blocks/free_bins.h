// The free blocks of one arena, for exact best fit: the smallest that fits, and among equals the lowest address (the
// order of PyTorch's set of free blocks).
//
// Sizes fall into bins, 64 an octave, found by two levels of bitmap; below 64 KiB a bin holds a single size. A bin is
// ordered by (size, address): its smallest blocks sit in a doubly linked list of at most kListed, the rest in a treap.
// Most bins hold a handful of blocks, so most operations touch the head of a list; a bin with 65,536 equal holes
// costs a logarithm. Links are inside the blocks; a group of bins is allocated when its octave is first used and
// stays: the steady state allocates nothing.
//
// The block that came last is kept aside, out of the bins, until the next one comes: very often it is the one taken or
// merged next (half the time of a malloc and free of a cached size is saved by not sorting it in and out).
//
// Invariants: (1) a bin's listed blocks are its smallest, in order; (2) its treap is empty unless it lists at least
// one; (3) a bit is set exactly for each bin and group that holds blocks; (4) the newest block is in no bin.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bits.h"
#include "base/check.h"
#include "blocks/block.h"

namespace cachalot {

class FreeBins {
 public:
  FreeBins() = default;
  FreeBins(const FreeBins&) = delete;
  FreeBins& operator=(const FreeBins&) = delete;

  CACHALOT_FAST_PATH void insert(Block& block) {
    if (newest_ != nullptr) sort_in(*newest_);
    newest_ = &block;
  }

  CACHALOT_FAST_PATH void remove(Block& block) {
    if (newest_ == &block) {
      newest_ = nullptr;
    } else {
      sort_out(block);
    }
  }

  // The first block in (size, address) order of at least `bytes`; nullptr when there is none. Leaves it in.
  CACHALOT_FAST_PATH Block* best_fit(std::size_t bytes) const {
    Block* block = best_fit_in_bins(bytes);
    Block* newest = newest_;
    if (newest == nullptr || newest->size_and_flags < bytes) return block;
    return block == nullptr || before(*newest, *block) ? newest : block;
  }

  Block* largest() const;
  bool empty() const { return occupied_groups_ == 0 && newest_ == nullptr; }

  // Calls visit(Block&) in (size, address) order; visit must not change the bins.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    settle();
    for (const auto& group : groups_) {
      if (!group) continue;
      for (const Bin& bin : group->bins) {
        for (Block* block = bin.head; block != nullptr; block = block->links.right) visit(*block);
        for_each_in_treap(bin.overflow, visit);
      }
    }
  }

  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  static constexpr std::uint32_t kListed = 16;  // measured best of 4 to 64: 77-99 % of inserts walk no step
  static constexpr std::size_t kBinsPerOctave = 64;
  static constexpr std::size_t kSmallestOctave = 9;  // 512 B
  static constexpr std::size_t kGroups = 64 - kSmallestOctave;

  struct Bin {
    Block* head = nullptr;
    Block* tail = nullptr;
    Block* overflow = nullptr;  // root of the treap
    std::uint32_t listed = 0;
  };
  struct Group {
    std::array<Bin, kBinsPerOctave> bins;
  };

  // (size, address) as one number: one comparison without a branch. Free blocks have no flags beside the size.
  __extension__ using Key = unsigned __int128;
  static Key key(const Block& block) { return Key{block.size_and_flags} << 64 | block.address; }
  static bool before(const Block& a, const Block& b) { return key(a) < key(b); }
  // group x kBinsPerOctave + bin: the octave, and the six bits below the leading one.
  static std::size_t slot_for(std::size_t bytes) {
    const std::size_t octave = highest_bit(bytes);
    return octave * kBinsPerOctave + (bytes >> (octave - 6)) - (kSmallestOctave + 1) * kBinsPerOctave;
  }
  Bin& bin_for(std::size_t slot) const {
    auto& group = groups_[slot / kBinsPerOctave];
    if (group == nullptr) [[unlikely]]
      group = std::make_unique<Group>();
    return group->bins[slot % kBinsPerOctave];
  }
  void add_group(std::size_t group) const;
  void mark_occupied(std::size_t slot) const {
    occupied_[slot / kBinsPerOctave] |= std::uint64_t{1} << slot % kBinsPerOctave;
    occupied_groups_ |= std::uint64_t{1} << slot / kBinsPerOctave;
  }
  void mark_empty(std::size_t slot) {
    std::uint64_t& occupied = occupied_[slot / kBinsPerOctave];
    occupied &= ~(std::uint64_t{1} << slot % kBinsPerOctave);
    if (occupied == 0) occupied_groups_ &= ~(std::uint64_t{1} << slot / kBinsPerOctave);
  }

  void sort_in(Block& block) const {
    const std::size_t slot = slot_for(block.size_and_flags);  // free: no flags
    Bin& bin = bin_for(slot);
    if (bin.head == nullptr) {
      block.links = {nullptr, nullptr};
      bin.head = bin.tail = &block;
      bin.listed = 1;
      mark_occupied(slot);
    } else {
      insert_ordered(bin, block);
    }
  }

  void sort_out(Block& block) {
    const std::size_t slot = slot_for(block.size_and_flags);
    Bin& bin = groups_[slot / kBinsPerOctave]->bins[slot % kBinsPerOctave];
    if (bin.overflow != nullptr) [[unlikely]] {
      if (before(*bin.tail, block)) {
        erase_from_treap(bin.overflow, block);
        return;
      }
    }
    if (--bin.listed == 0) {
      bin.head = bin.tail = nullptr;
      if (bin.overflow != nullptr) [[unlikely]] {
        refill(bin);
      } else {
        mark_empty(slot);
      }
      return;
    }
    (block.links.left ? block.links.left->links.right : bin.head) = block.links.right;
    (block.links.right ? block.links.right->links.left : bin.tail) = block.links.left;
  }

  // Puts the newest block into its bin: what looks at all blocks in order begins with this. It changes where a block
  // is kept, not which blocks there are.
  void settle() const {
    if (newest_ != nullptr) sort_in(*newest_);
    newest_ = nullptr;
  }

  CACHALOT_FAST_PATH Block* best_fit_in_bins(std::size_t bytes) const {
    const std::size_t slot = slot_for(bytes);
    const std::size_t group = slot / kBinsPerOctave;
    const std::uint64_t candidates = occupied_[group] >> slot % kBinsPerOctave;
    if (candidates != 0) {
      const Bin* bin = &groups_[group]->bins[slot % kBinsPerOctave];
      if ((candidates & 1) != 0) {
        if (Block* block = first_of_at_least(*bin, bytes)) return block;
      }
      if (candidates > 1) return bin[lowest_bit(candidates & ~std::uint64_t{1})].head;
    }
    const std::uint64_t larger_groups = occupied_groups_ >> group >> 1 << group << 1;
    if (larger_groups == 0) return nullptr;
    const std::size_t larger = lowest_bit(larger_groups);
    return groups_[larger]->bins[lowest_bit(occupied_[larger])].head;
  }

  static Block* first_of_at_least(const Bin& bin, std::size_t bytes) {
    if (bin.tail->size() < bytes) return first_in_treap(bin.overflow, bytes);
    Block* block = bin.head;
    while (block->size() < bytes) block = block->links.right;
    return block;
  }
  static void insert_ordered(Bin& bin, Block& block);
  static void refill(Bin& bin);
  static void append(Bin& bin, Block& block);

  static std::uint64_t priority(const Block& block);
  static Block* first_in_treap(Block* root, std::size_t bytes);
  static void insert_in_treap(Block*& root, Block& block);
  static void erase_from_treap(Block*& root, Block& block);
  static Block& pop_first(Block*& root);
  static Block* merge(Block* left, Block* right);

  template <typename Visit>
  static void for_each_in_treap(Block* root, Visit&& visit) {
    if (root == nullptr) return;
    for_each_in_treap(root->links.left, visit);
    Block* right = root->links.right;
    visit(*root);
    for_each_in_treap(right, visit);
  }

  mutable Block* newest_ = nullptr;  // mutable, as the rest, for settle
  mutable std::uint64_t occupied_groups_ = 0;
  mutable std::array<std::uint64_t, kGroups> occupied_{};  // bins, by group
  mutable std::array<std::unique_ptr<Group>, kGroups> groups_;
};

}  // namespace cachalot
