// From a pointer to the Block that was last handed out there: a radix over the address, read without a lock.
//
// Nodes of 2 GiB have one slot per 128 KiB, tables of 128 KiB one per 4 KiB, leaves of 4 KiB one per 512 B. A block is in
// the slot it starts in of the highest level whose slots are not larger than it, or further down where smaller blocks have
// started; only there are tables and leaves. Entries are numbers of 32 bits, so a cache line holds 2 MiB of a node, half a
// table or two leaves. So the map of memory in use is small and dense, and stays in the cache.
//
// Entries are written when a block is handed out and erased when its memory goes back; the finder of one checks, under
// the lock of the block's device, that the block is allocated and starts at that very address. So nodes, tables and
// leaves of addresses that are gone serve others, each as what it was: a find that is on its way through one comes to a
// block that is not the one it looks for, or to none. A device that never gives the same address twice costs no more.
//
// Thread safety: find from any thread; set, enter and leave under the lock of the device that owns the address; they may
// race. No slot of a node holds segments of two devices at the same time: devices give memory in units of 2 MiB.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "base/metadata_memory.h"
#include "blocks/block.h"

CACHALOT_BEGIN

class PageMap {
 public:
  PageMap();
  ~PageMap();
  PageMap(const PageMap&) = delete;
  PageMap& operator=(const PageMap&) = delete;

  // Returns the block that this map has last seen handed out at `address`, or null. The caller checks it.
  CACHALOT_FAST_PATH Block* find(Address address) const {
    if (address >> kAddressBits != 0) [[unlikely]]
      return nullptr;
    const Node* node = root_[address >> kNodeShift].load(std::memory_order_acquire);
    if (node == nullptr) [[unlikely]]
      return nullptr;
    Entry entry = node->slot(address).load(std::memory_order_acquire);
    if (has_child(entry)) entry = slot_of<Table>(entry, address).load(std::memory_order_acquire);
    if (has_child(entry)) entry = slot_of<Leaf>(entry, address).load(std::memory_order_acquire);
    if (entry == kNothing) return nullptr;
    return &block_of(entry);
  }

  // `block` is being handed out; its address is below 2^kAddressBits. Costs nothing when the block was handed out before
  // and its entry still is its own: no other block's can have taken the place, see kNeverShared.
  CACHALOT_FAST_PATH void set(Block& block) {
    if (block.size_and_flags < kNeverShared[block.map_place]) write(block);
  }

  // Addresses below 2^kAddressBits in which blocks will be handed out: a segment's, or a range's for pages. Throws
  // std::bad_alloc, having changed nothing.
  void enter(Address begin, std::size_t bytes);
  // Leaves addresses in the ranges in which they were entered; no block in them is allocated any more.
  void leave(Address begin, std::size_t bytes) noexcept;
  // Forgets a part of an entered range, in units of 2 MiB, in which no block is allocated: nothing is kept for it until
  // one is. Blocks there that are handed out again must have forgotten their place.
  void forget(Address begin, std::size_t bytes) noexcept;

  // For blocks, too: an entry may be followed as long as the map lives.
  MetadataMemory& memory() { return memory_; }
  std::size_t metadata_bytes() const { return memory_.bytes(); }

  static constexpr int kAddressBits = 48;  // device addresses are unified with the host's: 47 bits on x86-64, 48 on Arm

 private:
  // The place of a block or a child in memory_, which both begin at even numbers; a child's with the lowest bit set.
  // Number 0 belongs to no block: each chunk of blocks begins with something else.
  using Entry = MetadataMemory::Number;
  static constexpr Entry kNothing = 0;

  // 2^kShift bytes of addresses, in slots of 2^kSlotShift bytes.
  template <int kShift, int kSlotShift>
  struct Level {
    static constexpr std::size_t kSlotBytes = std::size_t{1} << kSlotShift;
    static constexpr std::size_t kSlots = std::size_t{1} << (kShift - kSlotShift);
    static std::size_t index_of(Address address) { return (address >> kSlotShift) % kSlots; }
    std::atomic<Entry>& slot(Address address) { return slots[index_of(address)]; }
    const std::atomic<Entry>& slot(Address address) const { return slots[index_of(address)]; }
    std::atomic<Entry> slots[kSlots];
  };
  static constexpr int kNodeShift = 31;
  using Node = Level<kNodeShift, 17>;
  using Table = Level<17, 12>;
  using Leaf = Level<12, 9>;
  static constexpr std::size_t kRootEntries = std::size_t{1} << (kAddressBits - kNodeShift);

  // Block::map_place: where the entry of a block was written; it may have been moved down since.
  enum Place : unsigned { kNowhere, kInNode, kInTable, kInLeaf };
  // A block of at least these bytes, handed out again, is still where its entry was written. For another's entry to
  // replace it, both would have to start in one slot, neither smaller than it: but a block never changes its address,
  // and whatever comes to lie beside one of at least a slot's size starts in another slot, or is smaller and goes a
  // level down, together with the entry it finds. (BlockHeap::cut makes a block smaller that is not handed out: it
  // forgets its place.)
  static constexpr std::size_t kNeverShared[] = {~std::size_t{0}, Node::kSlotBytes, Table::kSlotBytes, 0};

  static bool has_child(Entry entry) { return (entry & 1) != 0; }
  Block& block_of(Entry entry) const { return *reinterpret_cast<Block*>(memory_.at(entry)); }
  // Returns the slot of the child that `entry` names. Terms that do not depend on the entry are added up while it is still
  // being loaded; left to itself the compiler does it the other way round.
  template <typename Child>
  CACHALOT_FAST_PATH std::atomic<Entry>& slot_of(Entry entry, Address address) const {
    std::byte* place = memory_.at(0) + Child::index_of(address) * sizeof(std::atomic<Entry>) - MetadataMemory::kUnit;
    asm("" : "+r"(place));
    return *reinterpret_cast<std::atomic<Entry>*>(place + entry * MetadataMemory::kUnit);
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
    slot = &slot_of<Table>(entry, address);
    entry = slot->load(std::memory_order_acquire);
    if (!has_child(entry)) {
      if (block.size() >= Table::kSlotBytes) return write(*slot, block, kInTable);
      entry = add_child<Leaf>(*slot);
    }
    write(slot_of<Leaf>(entry, address), block, kInLeaf);
  }
  void write(std::atomic<Entry>& slot, Block& block, Place place) {
    block.map_place = place & 3u;
    slot.store(memory_.number_of(&block), std::memory_order_release);
  }
  // Memory of one kind of node, and those of it that nothing leads to any more, all empty.
  template <typename Kind>
  struct Store {
    Vector<Kind*> spare;  // has room for all that were made
    std::size_t made = 0;
  };
  template <typename Kind>
  Store<Kind>& store() CACHALOT_REQUIRES(mutex_);
  template <typename Kind>
  Kind& take(std::size_t alignment) CACHALOT_REQUIRES(mutex_);
  template <typename Kind>
  void give(Kind& kind) noexcept CACHALOT_REQUIRES(mutex_);

  // Empties a slot of the level above Child's.
  template <typename Child>
  void clear(std::atomic<Entry>& slot) noexcept CACHALOT_REQUIRES(mutex_);
  // Clears the slots of the node at that place in root_ that are wholly in [begin, end).
  void clear(Node& node, std::size_t place, Address begin, Address end) noexcept CACHALOT_REQUIRES(mutex_);

  // Host memory that runs out here ends the program: the block is already marked as handed out.
  Node& add_node(Address address) noexcept;
  // Replaces the entry in `slot` by a child that holds it; returns the new entry.
  template <typename Child>
  Entry add_child(std::atomic<Entry>& slot) noexcept;

  // Gives back the page of host memory that has this place in the root, if nothing is entered in it.
  void tidy_root(std::size_t place) noexcept CACHALOT_REQUIRES(mutex_);

  std::atomic<Node*>* root_;
  MetadataMemory memory_;  // of nodes, tables, leaves and blocks
  SleepingMutex mutex_;    // also guards that nodes come and go
  Store<Node> nodes_ CACHALOT_GUARDED_BY(mutex_);
  Store<Table> tables_ CACHALOT_GUARDED_BY(mutex_);
  Store<Leaf> leaves_ CACHALOT_GUARDED_BY(mutex_);
  // The number of entries, by the node's place in root_; not 0.
  Map<std::size_t, std::size_t> entered_ CACHALOT_GUARDED_BY(mutex_);
};

CACHALOT_END
