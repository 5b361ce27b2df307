// From a pointer to the Block that was last handed out there: a radix over the address, read without a lock.
//
// Nodes of 8 GiB have a slot a MiB, tables of a MiB a slot every 4 KiB, leaves of 4 KiB a slot every 512 B. A block is in
// the slot it starts in of the highest level whose slots are not larger than it, or further down where smaller blocks
// have started; only there are tables and leaves (a leaf is one cache line). So the map of what is in use is small and
// dense, and stays in the cache.
//
// Entries are written when a block is handed out and never erased; whoever finds one checks, under the lock of the
// block's device, that the block is allocated and starts at that very address.
//
// Thread safety: find from any thread; set under the lock of the device that owns the address; the two may race. No MiB
// holds segments of two devices at the same time: devices give memory in units of 2 MiB.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/bytes.h"
#include "base/check.h"
#include "base/metadata_memory.h"
#include "blocks/block.h"

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
    Entry entry = node->slot(address).load(std::memory_order_acquire);
    if (has_child(entry)) entry = child<Table>(entry).slot(address).load(std::memory_order_acquire);
    if (has_child(entry)) entry = child<Leaf>(entry).slot(address).load(std::memory_order_acquire);
    return reinterpret_cast<Block*>(entry);
  }

  // `block` is being handed out; its address is below 2^kAddressBits. Costs nothing when the block was handed out before
  // and its entry still is its own: nobody else's can have taken the place, see kNeverShared.
  CACHALOT_FAST_PATH void set(Block& block) {
    if (block.size_and_flags < kNeverShared[block.map_place]) write(block);
  }

  // For blocks: an entry may be followed as long as the map lives.
  MetadataMemory& block_memory() { return block_memory_; }
  std::size_t metadata_bytes() const { return memory_.bytes() + block_memory_.bytes(); }

  static constexpr int kAddressBits = 48;  // device addresses are unified with the host's: 47 bits on x86-64, 48 on Arm

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
  using Entry = std::uintptr_t;  // a Block's address, or a child's with the lowest bit set, or 0
  using Node = Level<Entry, kNodeShift, 20>;
  using Table = Level<Entry, 20, 12>;
  using Leaf = Level<Entry, 12, 9>;
  static constexpr std::size_t kRootEntries = std::size_t{1} << (kAddressBits - kNodeShift);

  // Block::map_place: where the entry of a block was written; it may have been moved down since.
  enum Place : unsigned { kNowhere, kInNode, kInTable, kInLeaf };
  // A block of at least so many bytes, handed out again, is still where its entry was written. For another's entry to
  // replace it, both would have to start in one slot, neither smaller than it: but a block keeps its address for life,
  // and whatever comes to lie beside one of at least a slot's size starts in another slot, or is smaller and goes a
  // level down, together with the entry it finds.
  static constexpr std::size_t kNeverShared[] = {~std::size_t{0}, Node::kSlotBytes, Table::kSlotBytes, 0};

  static bool has_child(Entry entry) { return (entry & 1) != 0; }
  template <typename Child>
  static Child& child(Entry entry) {
    return *reinterpret_cast<Child*>(entry - 1);
  }

  CACHALOT_FAST_PATH void write(Block& block) {
    const Address address = block.address;
    Node* node = root_[address >> kNodeShift].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]]
      node = &add_node(address);
    std::atomic<Entry>* slot = &node->slot(address);
    Entry entry = slot->load(std::memory_order_acquire);
    // Two blocks of at least a slot's size that start in the slot cannot both be live: the newer replaces the older.
    if (!has_child(entry)) {
      if (block.size() >= Node::kSlotBytes) return write(*slot, block, kInNode);
      entry = add_child<Table>(*slot);
    }
    slot = &child<Table>(entry).slot(address);
    entry = slot->load(std::memory_order_acquire);
    if (!has_child(entry)) {
      if (block.size() >= Table::kSlotBytes) return write(*slot, block, kInTable);
      entry = add_child<Leaf>(*slot);
    }
    write(child<Leaf>(entry).slot(address), block, kInLeaf);
  }
  static void write(std::atomic<Entry>& slot, Block& block, Place place) {
    block.map_place = place & 3u;
    slot.store(reinterpret_cast<Entry>(&block), std::memory_order_release);
  }
  // Host memory that runs out here ends the program: the block is already marked as handed out.
  Node& add_node(Address address) noexcept;
  // Replaces the entry in `slot` by a child that holds it; returns the new entry.
  template <typename Child>
  Entry add_child(std::atomic<Entry>& slot) noexcept;

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::atomic<Node*>[], Free> root_;
  MetadataMemory memory_;  // of nodes, tables and leaves
  MetadataMemory block_memory_;
};

}  // namespace cachalot
