// A Block is a stretch of one segment: free, allocated, or freed but waiting for other streams.
//
// Invariants (validate() checks them):
// (1) a segment's blocks tile it, in address order, without gap;
// (2) no two free neighbours of one arena: a segment from cudaMalloc has one arena, addresses of the page heap may have many;
// (3) a free block is in its arena's bins, any other block is not;
// (4) the first block of a segment stays the same object as long as the segment lives.
//
// 64 bytes, one cache line. Fields for rare modes only are in BlockDetail, beside it in the slab.
// Not thread-safe: the mutex of the block's DeviceAllocator guards it, except `lent_bytes` (see ThreadCache).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/host_memory.h"
#include "base/metadata_memory.h"
#include "cachalot/device.h"
#include "cachalot/events.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

struct Arena;
struct BinLeaf;
struct StreamUse;

inline constexpr std::size_t kBlockGranularity = 512;  // sizes and offsets are multiples; so sizes have 9 spare bits

struct Block {
  enum Flag : std::uint64_t {
    kAllocated = 1,  // handed out
    kFreeing = 2,    // deallocate is recording its events, without the lock
    kPending = 4,    // freed, waiting for events or for the end of a capture
    kRetired = 8,    // not a block: an unused slot of the slab
    kEdge = 16,      // not a block: the neighbour of the first and the last of a segment
    kGap = 32,       // an edge that has an extent: addresses of the page heap without memory
    kClaimed = 64,   // free, but taken out of the bins: the page heap is backing the addresses beside it
    kCached = 128,   // in a thread's cache, or handed out from one: see lent_bytes
  };
  static constexpr std::uint64_t kFlagBits = kBlockGranularity - 1;
  static constexpr std::uint64_t kRequestedBits = (std::uint64_t{1} << 62) - 1;

  struct BinPlace {  // while in a bin of free blocks
    BinLeaf* leaf;
    std::uint16_t place;  // in the leaf
    std::uint16_t slot;   // the bin
    std::uint32_t epoch;  // of its arena when it became free: see StreamClock
  };
  struct Uses {                    // while not free
    StreamUse* head;               // streams it was recorded on
    std::uint32_t pending_events;  // not yet seen done
  };

  struct Lease {                // while kCached
    std::uint16_t* word;        // see lent_bytes
    std::uint16_t size_class;   // this and the next two follow from the size, but a free would wait for that
    std::uint16_t first_place;  // SizeClass::first
    std::uint8_t most;          // SizeClass::most
  };

  Address address;
  std::uint64_t size_and_flags;
  std::uint64_t requested : 62;  // bytes asked for; of a free block: by its last user (of those that no cache served)
  std::uint64_t map_place : 2;   // where the page map has it: PageMap::Place
  Block* prev;                   // neighbours in the segment; at its ends the heap's edge, never null
  Block* next;
  Arena* arena;
  union {
    BinPlace bin;
    Uses uses;
    Lease lease;
  };

  std::size_t size() const { return size_and_flags & ~kFlagBits; }
  bool has(Flag flag) const { return (size_and_flags & flag) != 0; }
  bool is_free() const { return (size_and_flags & kFlagBits) == 0; }
  bool is_unused() const { return is_free() || has(kClaimed); }
  bool is_split() const { return prev != next; }  // part of a segment of several blocks: else both are the edge
  bool is_edge() const { return has(kEdge); }
  bool is_gap() const { return has(kGap); }
  Address end() const { return address + size(); }

  // For a thread that is about to take the lock and free this block: its line and its neighbours' are under way meanwhile.
  // Others may be changing the links; then lines are fetched that are not needed, and that is all.
  __attribute__((no_sanitize("thread"))) void prefetch_neighbours() const {
    __builtin_prefetch(__atomic_load_n(&prev, __ATOMIC_RELAXED));
    __builtin_prefetch(__atomic_load_n(&next, __ATOMIC_RELAXED));
  }

  // Returns the bytes that the user of a kCached block requested; 0: it lies in a cache. The word (the requested bytes
  // of the last granule) changes while other threads read it, without a lock, and by threads in turn: so it lies beside
  // those of the thread's other cached blocks (LentWords), and their own lines can be in every processor's cache.
  std::size_t lent_bytes() const {
    const std::uint16_t word = __atomic_load_n(lease.word, __ATOMIC_RELAXED);
    return word == 0 ? 0 : size() - kBlockGranularity + word;
  }
  bool is_lent() const { return __atomic_load_n(lease.word, __ATOMIC_RELAXED) != 0; }
  void mark_lent(std::size_t bytes) {
    const std::size_t of_last_granule = (bytes - 1) % kBlockGranularity + 1;
    __atomic_store_n(lease.word, static_cast<std::uint16_t>(of_last_granule), __ATOMIC_RELAXED);
  }
  void mark_cached() { __atomic_store_n(lease.word, std::uint16_t{0}, __ATOMIC_RELAXED); }
  // Returns the requested bytes if the block is handed out at this address, from a cache; otherwise 0.
  std::size_t lent_bytes(Address at) const {
    return address == at && (size_and_flags & kFlagBits) == kCached ? lent_bytes() : 0;
  }
  bool is_lent(Address at) const { return address == at && (size_and_flags & kFlagBits) == kCached && is_lent(); }
  bool is_cached() const { return has(kCached) && !is_lent(); }  // it lies in a cache
  // Handed out, by the heap or from a cache, and how many bytes were asked for.
  bool is_live() const { return has(kAllocated) || (has(kCached) && is_lent()); }
  std::size_t requested_bytes() const { return has(kCached) ? lent_bytes() : std::size_t{requested}; }
};
static_assert(sizeof(Block) == 64);

// The fields that a block needs in rare modes only (garbage collection, recorded contexts).
struct BlockDetail : HostObject {
  std::uint64_t freed_at = 0;  // the pool's clock when it became free
  Context context;             // where it was allocated
  Context segment_context;     // of the first block: where its segment was first allocated for
};

// One stream, other than its own, that a block was recorded on. A node of a list.
struct StreamUse {
  KnownStream stream;
  Event event;     // while its free is being recorded, and from the end of the stream on
  bool has_ended;  // the event was recorded at the end of the stream
  StreamUse* next;
};

// A block and its address beside it: a search for an address reads no block.
struct BlockAt {
  Address address;
  Block* block;
};

// The storage of Blocks. Memory comes in chunks of 64 KiB, aligned to their size, and is never given back before the
// end: so the steady state allocates nothing, and a Block pointer found through the page map may always be looked at.
// One slab per device; a chunk knows its device, so that a block's owner is known without a lock. Not thread-safe except
// owner_of.
class BlockSlab {
 public:
  // Chunks come from `memory`, which must outlive the slab and all readers of its blocks.
  BlockSlab(int device, MetadataMemory& memory) : device_(device), memory_(memory) {}
  ~BlockSlab();
  BlockSlab(const BlockSlab&) = delete;
  BlockSlab& operator=(const BlockSlab&) = delete;

  // Fields are not set, except the links in the free list.
  Block& make() {
    if (free_ == nullptr) [[unlikely]]
      add_chunk();
    Block& block = *free_;
    free_ = block.next;
    return block;
  }
  void retire(Block& block) {
    block.address = 0;
    block.size_and_flags = Block::kRetired;
    block.next = free_;
    free_ = &block;
  }

  // Made on first use; nullptr from find_detail when none was made. Host memory that runs out here ends the program:
  // details are asked for when an operation is half done.
  BlockDetail& detail(const Block& block) noexcept;
  BlockDetail* find_detail(const Block& block) const;

  std::size_t metadata_bytes() const;

  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::size_t kSlots = kChunkBytes / sizeof(Block);  // slot 0 holds the chunk's header

  static int owner_of(const Block& block) { return chunk_of(block).device; }

 private:
  struct Chunk {
    int device;
    std::unique_ptr<BlockDetail[]> details;
  };
  static_assert(sizeof(Chunk) <= sizeof(Block));
  static Chunk& chunk_of(const Block& block) {
    return *reinterpret_cast<Chunk*>(reinterpret_cast<std::uintptr_t>(&block) & ~(kChunkBytes - 1));
  }
  static std::size_t slot_of(const Block& block) {
    return (reinterpret_cast<std::uintptr_t>(&block) & (kChunkBytes - 1)) / sizeof(Block);
  }
  void add_chunk();

  int device_;
  MetadataMemory& memory_;
  Block* free_ = nullptr;
  Vector<Chunk*> chunks_;
};

CACHALOT_END
