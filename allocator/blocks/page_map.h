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
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/bytes.h"
#include "base/check.h"
#include "base/metadata_memory.h"
#include "blocks/block.h"
#include "blocks/block_slab.h"

namespace cachalot {

class PageMap {
 public:
  PageMap();
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

  // `block` is being handed out; its address is below 2^kAddressBits. Costs nothing when the block was handed out before
  // and its entry still is its own: nobody else's can have taken the place, see kNeverShared.
  CACHALOT_FAST_PATH void set(Block& block) {
    if (block.size_and_flags < kNeverShared[block.map_level]) write(block);
  }

  // Memory for BlockSlab::kSlots more blocks, and the index of the first. It is zeroed, aligned to its size, and lives as
  // long as the map. Throws std::bad_alloc; so past 2^32 blocks.
  struct Chunk {
    void* memory;
    std::uint32_t first_index;
  };
  Chunk add_chunk();
  // Its blocks are found no more.
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
  static constexpr std::size_t kLine = 64;  // of the cache
  static constexpr int kNodeShift = 33;
  using Node = Level<std::uint64_t, kNodeShift, 20>;
  using Table = Level<std::uint64_t, 20, 14>;
  using Leaf = Level<std::uint32_t, 14, 9>;
  static constexpr std::size_t kRootEntries = std::size_t{1} << (kAddressBits - kNodeShift);
  static constexpr std::size_t kMaxChunks = (std::size_t{1} << 32) / BlockSlab::kSlots;

  // Block::map_level: where the entry of a block was written; it may have been moved down since.
  enum Place : unsigned { kNowhere, kInNode, kInTable, kInLeaf };
  // A block of at least so many bytes, handed out again, is still where its entry was written. For another's entry to
  // replace it, both would have to start in one slot, neither smaller than it: but a block keeps its address for life,
  // and whatever comes to lie beside one of at least a slot's size starts in another slot, or is smaller and goes a
  // level down, together with the entry it finds.
  static constexpr std::size_t kNeverShared[] = {~std::size_t{0}, Node::kSlotBytes, Table::kSlotBytes, 0};

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

  CACHALOT_FAST_PATH void write(Block& block) {
    const Address address = block.address;
    Node* node = root_[address >> kNodeShift].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]]
      node = &add_node(address);
    std::atomic<std::uint64_t>* slot = &node->slot(address);
    std::uint64_t entry = slot->load(std::memory_order_acquire);
    // Two blocks of at least a slot's size that start in the slot cannot both be live: the newer replaces the older.
    if (!has_child(entry)) {
      if (block.size() >= Node::kSlotBytes) {
        block.map_level = kInNode;
        return slot->store(entry_of(block), std::memory_order_release);
      }
      entry = add_child<Table>(*slot);
    }
    slot = &child<Table>(entry)->slot(address);
    entry = slot->load(std::memory_order_acquire);
    if (!has_child(entry)) {
      if (block.size() >= Table::kSlotBytes) {
        block.map_level = kInTable;
        return slot->store(entry_of(block), std::memory_order_release);
      }
      entry = add_child<Leaf>(*slot);
    }
    block.map_level = kInLeaf;
    child<Leaf>(entry)->slot(address).store(BlockSlab::index_of(block), std::memory_order_relaxed);
  }
  Node& add_node(Address address);
  // Replaces the entry in `slot` by a child that holds it; returns the new entry.
  template <typename Child>
  std::uint64_t add_child(std::atomic<std::uint64_t>& slot);

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::atomic<Node*>[], Free> root_;
  std::unique_ptr<std::atomic<Block*>[], Free> chunks_;
  MetadataMemory memory_;     // nodes, tables, leaves, and the chunks of blocks
  mutable std::mutex mutex_;  // guards what follows
  std::size_t chunk_count_ = 0;
};

}  // namespace cachalot
