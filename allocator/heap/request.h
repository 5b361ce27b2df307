// A Request is a malloc after the policy's decisions: the size of the block, and its arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "blocks/block_pool.h"

CACHALOT_BEGIN

// An Alignment says which addresses may serve a request: those whose byte at `offset` has an address that is a multiple of
// `bytes`, a power of two. The offset is a multiple of kBlockGranularity, as every block's address is.
struct Alignment {
  std::size_t bytes = kBlockGranularity;
  std::size_t offset = 0;

  // Returns the most bytes that lie between the start of a block and the first such address in it.
  std::size_t slack() const { return bytes > kBlockGranularity ? bytes - kBlockGranularity : 0; }
  // Returns the first such address from `address` on, which is a multiple of kBlockGranularity.
  Address first_from(Address address) const {
    return slack() == 0 ? address : round_up(address + offset, bytes) - offset;
  }
};

// Passed by value, so that it stays in registers.
struct Request {
  std::size_t bytes;        // asked for
  std::size_t rounded;      // the block wanted
  Arena* arena;             // pool and stream
  bool contiguous = false;  // of the page heap: in one handle
  BlockPool& pool() const { return arena->pool; }
  const KnownStream& stream() const { return arena->stream; }
};

// An Ordering says which memory of other streams a search may use: memory whose last use is before the stream's next
// work, or also memory of which this holds once the stream waits for events that are recorded already.
enum class Ordering : std::uint8_t { now, after_wait };

// An ArenaHold keeps an arena that is being asked for memory and may have none yet.
class ArenaHold {
 public:
  explicit ArenaHold(Arena& arena) : arena_(arena) { ++arena_.requests; }
  ~ArenaHold() { --arena_.requests; }
  ArenaHold(const ArenaHold&) = delete;
  ArenaHold& operator=(const ArenaHold&) = delete;

 private:
  Arena& arena_;
};

CACHALOT_END
