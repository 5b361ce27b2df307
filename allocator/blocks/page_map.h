// From a pointer to the Block that was last handed out there: a radix over the address, read without a lock.
//
// Nodes of 8 GiB have a slot a MiB, tables of 1 MiB a slot every 16 KiB, leaves of 16 KiB a four-byte index every 512 B.
// A block larger than a slot needs just the slot it starts in (eight bytes); tables and leaves exist only where smaller
// blocks start. So the map of what is in use is small and dense: a malloc touches lines that stay in the cache.
//
// Entries are written when a block is handed out and never erased; whoever finds one checks, under the lock of the
// block's device, that the block is allocated and starts at that very address.
//
// Thread safety: find from any thread; set under the lock of the device that owns the address; the two may race.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "blocks/block.h"
#include "blocks/block_slab.h"

namespace cachalot {

class PageMap {
 public:
  PageMap();
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // The block last handed out at `address`, as far as this map knows: to be checked by the caller. nullptr: none.
  CACHALOT_FAST_PATH Block* find(Address address) const {
    if (address >> kAddressBits != 0) [[unlikely]]
      return nullptr;
    const Node* node = root_[address >> kNodeShift].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]]
      return nullptr;
    std::uint64_t entry = node->slot(address).load(std::memory_order_acquire);
    if (has_child(entry)) entry = child<Table>(entry)->slot(address).load(std::memory_order_acquire);
    const std::uint32_t index = has_child(entry) ? child<Leaf>(entry)->slot(address).load(std::memory_order_relaxed)
                                                 : static_cast<std::uint32_t>(entry >> kIndexShift);
    return block_at(index);
  }

  // `block` is being handed out; its address is below 2^kAddressBits.
  CACHALOT_FAST_PATH void set(Block& block) {
    const Address address = block.address;
    Node* node = root_[address >> kNodeShift].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]]
      node = &add_node(address);
    std::atomic<std::uint64_t>* slot = &node->slot(address);
    std::uint64_t entry = slot->load(std::memory_order_acquire);
    // Two blocks of at least a slot's size that start in the slot cannot both be live: the newer replaces the older.
    if (!has_child(entry)) {
      if (block.size() >= Node::kSlotBytes) return slot->store(entry_of(block), std::memory_order_release);
      entry = add_child<Table>(*slot);
    }
    slot = &child<Table>(entry)->slot(address);
    entry = slot->load(std::memory_order_acquire);
    if (!has_child(entry)) {
      if (block.size() >= Table::kSlotBytes) return slot->store(entry_of(block), std::memory_order_release);
      entry = add_child<Leaf>(*slot);
    }
    child<Leaf>(entry)->slot(address).store(BlockSlab::index_of(block), std::memory_order_relaxed);
  }

  // A chunk of BlockSlab::kSlots slots; returns the index of its first one. Throws std::bad_alloc past 2^32 blocks.
  std::uint32_t add_chunk(Block* blocks);
  void forget_chunk(std::uint32_t first_index);

  static constexpr int kAddressBits = 52;  // the widest user space of today's hosts with unified addressing
  std::size_t metadata_bytes() const;

 private:
  // 2^kShift bytes of addresses, in slots of 2^kSlotShift bytes.
  template <typename T, int kShift, int kSlotShift>
  struct Level {
    static constexpr std::size_t kSlotBytes = std::size_t{1} << kSlotShift;
    static constexpr std::size_t kSlots = std::size_t{1} << (kShift - kSlotShift);
    std::atomic<T>& slot(Address address) { return slots[(address >> kSlotShift) % kSlots]; }
    const std::atomic<T>& slot(Address address) const { return slots[(address >> kSlotShift) % kSlots]; }
    std::atomic<T> slots[kSlots];
  };
  static constexpr int kNodeShift = 33;
  using Node = Level<std::uint64_t, kNodeShift, 20>;
  using Table = Level<std::uint64_t, 20, 14>;
  using Leaf = Level<std::uint32_t, 14, 9>;
  static constexpr std::size_t kRootEntries = std::size_t{1} << (kAddressBits - kNodeShift);
  static constexpr std::size_t kPieceBytes = 64 * kKiB;
  static constexpr std::size_t kMaxChunks = (std::size_t{1} << 32) / BlockSlab::kSlots;

  // An entry of a node or table is 0; the address of a child with the lowest bit set; or a block's index in the upper
  // half and, above the lowest bit, the units of 512 B from the last MiB boundary to the block.
  static constexpr int kIndexShift = 32;
  static constexpr int kUnitShift = 9;
  static bool has_child(std::uint64_t entry) { return (entry & 1) != 0; }
  template <typename Child>
  static Child* child(std::uint64_t entry) {
    return reinterpret_cast<Child*>(entry & ~std::uint64_t{1});
  }
  static std::uint64_t entry_of(const Block& block) {
    return std::uint64_t{BlockSlab::index_of(block)} << kIndexShift | (block.address % kMiB) >> kUnitShift << 1;
  }
  // Index 0 is a chunk's header, never a block.
  Block* block_at(std::uint32_t index) const {
    if (index == 0) return nullptr;
    Block* chunk = chunks_[index / BlockSlab::kSlots].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + index % BlockSlab::kSlots;
  }
  Node& add_node(Address address);
  // Replaces the entry in `slot` by a child that holds it; returns the new entry.
  template <typename Child>
  std::uint64_t add_child(std::atomic<std::uint64_t>& slot);

  // Zeroed memory for a table or leaf; freed with the map. Throws std::bad_alloc.
  void* allocate(std::size_t bytes);

  std::atomic<Node*>* root_;
  std::atomic<Block*>* chunks_;
  std::atomic<std::size_t> node_count_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::size_t chunk_count_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> pieces_;  // of kPieceBytes
  std::size_t piece_used_ = kPieceBytes;
};

}  // namespace cachalot
