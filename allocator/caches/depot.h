// Blocks on their way from threads that free to threads that allocate: batches of one size class each, of one stream.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "blocks/block.h"

namespace cachalot {

// The block sizes that are cached: multiples of 512 B up to 64 KiB, by number. Larger blocks are fewer (35 to 77 % of
// mallocs in recorded training are at most 64 KiB) and a cache of them would hold much more memory.
struct SizeClass {
  static constexpr std::size_t kLargestBytes = 64 * kKiB;
  static constexpr std::size_t kCount = kLargestBytes / kBlockGranularity;

  // `bytes` in [1, kLargestBytes].
  static constexpr std::size_t of(std::size_t bytes) { return (bytes - 1) / kBlockGranularity; }
  static constexpr std::size_t bytes(std::size_t index) { return (index + 1) * kBlockGranularity; }
  // How many move at once: 128 KiB of them, at most 64.
  static constexpr std::int64_t kMostBatchBytes = 128 * kKiB;
  static constexpr std::uint32_t batch(std::size_t index) { return kBatches[index]; }
  static constexpr std::int64_t batch_bytes(std::size_t index) { return as_signed(batch(index) * bytes(index)); }

 private:
  static constexpr std::array<std::uint32_t, kCount> kBatches = [] {
    constexpr std::size_t kMostBlocks = 64;
    std::array<std::uint32_t, kCount> blocks{};
    for (std::size_t i = 0; i < kCount; ++i) {
      blocks[i] = static_cast<std::uint32_t>(std::min(kMostBlocks, 128 * kKiB / ((i + 1) * kBlockGranularity)));
    }
    return blocks;
  }();
};

// Blocks linked through Block::lease, the last pushed first.
struct BlockList {
  Block* head = nullptr;
  std::uint32_t count = 0;

  CACHALOT_FAST_PATH void push(Block& block) {
    block.lease.next = head;
    head = &block;
    ++count;
  }
  // The list is not empty.
  CACHALOT_FAST_PATH Block& pop() {
    Block& block = *head;
    head = block.lease.next;
    --count;
    return block;
  }
};

// What all depots of a device hold, and may hold.
struct DepotBudget {
  std::atomic<std::int64_t> used_bytes{0};
  std::atomic<std::int64_t> limit_bytes{0};
};

// What is wrong with a list of blocks of a class and stream that lie in a cache, or "".
std::string validate(const BlockList& list, std::size_t size_class, Stream stream);

// Bounded, for each class and by the budget. Thread safety: any thread.
class Depot {
 public:
  explicit Depot(DepotBudget& budget) : budget_(budget) {}

  // A full batch; false: there is no room for it.
  bool put(std::size_t size_class, const BlockList& batch);
  // A full batch, or an empty list.
  BlockList take(std::size_t size_class);
  // What lies here, under a Recall of all caches.
  std::size_t blocks() const;
  std::int64_t bytes() const;
  // The first thing that is wrong, or "", of the depot of `stream`.
  std::string validate(Stream stream) const;

 private:
  static constexpr std::size_t kMostBatches = 16;
  struct Stack {
    std::uint32_t count = 0;
    std::array<Block*, kMostBatches> batches;
  };

  DepotBudget& budget_;
  mutable Mutex mutex_;
  std::array<Stack, SizeClass::kCount> stacks_;
};

}  // namespace cachalot
