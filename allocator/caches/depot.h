// Blocks on their way from threads that free to threads that allocate: batches of one size class each, of one stream.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "blocks/block.h"

CACHALOT_BEGIN

// The block sizes that are cached: multiples of 512 B up to 64 KiB, by number. Larger blocks are fewer (35 to 77 % of
// mallocs in recorded training are at most 64 KiB) and a cache of them would hold much more memory.
struct SizeClass {
  static constexpr std::size_t kLargestBytes = 64 * kKiB;
  static constexpr std::size_t kCount = kLargestBytes / kBlockGranularity;

  // `bytes` in [1, kLargestBytes].
  static constexpr std::size_t of(std::size_t bytes) { return (bytes - 1) / kBlockGranularity; }
  static constexpr std::size_t bytes(std::size_t index) { return (index + 1) * kBlockGranularity; }
  // The blocks that move at once: 128 KiB of them, at most 64.
  static constexpr std::int64_t kMostBatchBytes = 128 * kKiB;
  static constexpr std::uint32_t kMostBatchBlocks = 64;
  static constexpr std::uint32_t batch(std::size_t index) { return most(index) / 2; }
  static constexpr std::int64_t batch_bytes(std::size_t index) { return as_signed(batch(index) * bytes(index)); }
  // A thread has at most two batches of a class, in places from `first` on.
  static constexpr std::uint32_t most(std::size_t index) {
    return static_cast<std::uint32_t>(first(index + 1) - first(index));
  }
  static constexpr std::uint16_t first(std::size_t index) { return kFirst[index]; }

 private:
  static constexpr std::array<std::uint16_t, kCount + 1> kFirst = [] {
    std::array<std::uint16_t, kCount + 1> first{};
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::size_t fit = kMostBatchBytes / ((i + 1) * kBlockGranularity);
      first[i + 1] = static_cast<std::uint16_t>(first[i] + 2 * std::min<std::size_t>(kMostBatchBlocks, fit));
    }
    return first;
  }();

 public:
  static constexpr std::size_t kPlaces = kFirst[kCount];
};

// The words of Block::lent_bytes of blocks that one thread's cache took from the heap, with enough of them to a line that a
// batch on its way between two threads moves few lines; and no line has words of two threads, which would disturb each other,
// until their blocks have passed through a depot. With the device's mutex held.
class LentWords {
 public:
  // Throws std::bad_alloc.
  std::uint16_t* allocate();
  // `word` was allocated by any LentWords.
  static void free(std::uint16_t* word);
  bool all_are_free() const { return free_.size() == lines_.size() * kWords; }
  std::size_t metadata_bytes() const { return lines_.size() * sizeof(Line) + free_.capacity() * sizeof(free_[0]); }

 private:
  static constexpr std::size_t kWords = (kCacheLine - sizeof(void*)) / sizeof(std::uint16_t);
  struct alignas(kCacheLine) Line {
    LentWords* owner;
    std::array<std::uint16_t, kWords> words;
  };

  Deque<Line> lines_;
  Vector<std::uint16_t*> free_;  // with room for all
};

// The bytes that all depots of a device hold, and may hold.
struct DepotBudget {
  std::atomic<std::int64_t> used_bytes{0};
  std::atomic<std::int64_t> limit_bytes{0};
};

// Returns the first error in blocks of a class and stream that lie in a cache, or "".
std::string validate(std::span<Block* const> blocks, std::size_t size_class, StreamKey stream);

// Bounded, for each class and by the budget. Thread safety: any thread.
class Depot : public HostObject {
 public:
  explicit Depot(DepotBudget& budget) : budget_(budget) {}

  // A batch; false: there is no room for it.
  bool put(std::size_t size_class, Block* const* batch);
  // Into `batch`; false: there is none.
  bool take(std::size_t size_class, Block** batch);
  // All that lies here, block by block.
  template <typename Visit>
  void drain(Visit&& visit);
  // The blocks and bytes that lie here, under a Recall of all caches.
  std::size_t blocks() const;
  std::int64_t bytes() const;
  // The first thing that is wrong, or "", of the depot of `stream`.
  std::string validate(StreamKey stream) const;
  std::size_t metadata_bytes() const;

  // For one more thread's cache of the stream, with the device's mutex held as for the next. They live as long as the depot:
  // blocks have words of caches that are gone. Throws std::bad_alloc.
  LentWords& add_words() { return words_.emplace_back(); }
  bool all_words_are_free() const { return std::ranges::all_of(words_, &LentWords::all_are_free); }

 private:
  static constexpr std::size_t kMostBatches = 16;
  struct Stack {
    std::size_t batches = 0;
    std::unique_ptr<Block*[]> blocks;  // room for kMostBatches, made when first needed
  };
  bool push(std::size_t size_class, Block* const* batch);

  DepotBudget& budget_;
  Deque<LentWords> words_;
  mutable SpinMutex mutex_;
  std::atomic<std::uint32_t> batches_{0};
  std::array<Stack, SizeClass::kCount> stacks_;
};

template <typename Visit>
void Depot::drain(Visit&& visit) {
  std::array<Block*, SizeClass::kMostBatchBlocks> batch;
  for (std::size_t i = 0; i < SizeClass::kCount && batches_.load(std::memory_order_relaxed) != 0; ++i) {
    while (take(i, batch.data())) std::for_each_n(batch.begin(), SizeClass::batch(i), [&](Block* b) { visit(*b); });
  }
}

CACHALOT_END
