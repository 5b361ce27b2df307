// The arguments of a launch of our kernels: stretches of device memory, cut into tiles of a few KiB. Blocks of threads take
// tiles in turn, so that their work is even however different the stretches are.
//
// A launch carries its stretches itself, and so needs no memory and no copy, and may be captured into a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include "cachalot/span.h"

CACHALOT_BEGIN

inline constexpr unsigned kThreadsABlock = 256;
inline constexpr unsigned kWordsAThread = 4;  // of a tile, which a thread loads before it stores the first
inline constexpr std::size_t kWordBytes = 16;
inline constexpr std::size_t kTileBytes = kWordBytes * kWordsAThread * kThreadsABlock;

// The items that fit into 4 KiB of arguments, which every driver and GPU allows.
inline constexpr unsigned kItemsALaunch = 120;

// A stretch has a tile for every begun kTileBytes.
template <typename Item>
struct Batch {
  Item items[kItemsALaunch];
  std::uint64_t first_tile[kItemsALaunch + 1];  // of each item; behind the last item, the number of tiles
  unsigned count;
};

// Returns a batch of at most kItemsALaunch items.
template <typename Item>
Batch<Item> batch_of(Span<const Item> items) {
  Batch<Item> batch;
  std::ranges::copy(items, batch.items);
  batch.count = static_cast<unsigned>(items.size());
  batch.first_tile[0] = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t tiles = items[i].bytes / kTileBytes + (items[i].bytes % kTileBytes != 0 ? 1 : 0);
    batch.first_tile[i + 1] = batch.first_tile[i] + tiles;
  }
  return batch;
}

// The answer for a span that is as its pattern has it; any other is the offset of the first byte that differs.
inline constexpr unsigned long long kNoDifference = ~0ull;

CACHALOT_END
