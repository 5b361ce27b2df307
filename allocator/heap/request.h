// A Request is a malloc after the policy's decisions: the size of the block, and its arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocks/block_pool.h"

CACHALOT_BEGIN

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
