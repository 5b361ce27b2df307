// The work of our kernels, as templates over the machine that runs them: a GPU (device_code.cu), or a test on the host.
//
// A machine is one thread of one block of the grid:
//   thread(), block(), blocks()          its place: thread() < kThreadsABlock, block() < blocks()
//   load(address), store(address, word)  16 bytes of device memory at a multiple of 16
//   load_byte, store_byte                one byte
//   lower(place, value)                  *place becomes the smaller of both, atomically
// Threads need nothing of one another: no barrier, no shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cachalot/host_device.h"
#include "cachalot/kernels.h"
#include "kernels/batch.h"
#include "kernels/pattern.h"

CACHALOT_BEGIN

// The unit that a thread loads or stores at once.
struct Word {
  std::uint64_t low;
  std::uint64_t high;
};

// A stretch of memory as words at multiples of 16, and the edge bytes before and behind them: fewer than 64.
struct WordLayout {
  // Words begin at the offset `before`; the last one ends `slack` bytes before the stretch, at the latest.
  CACHALOT_HOST_DEVICE WordLayout(std::size_t in_before, std::size_t bytes, std::size_t slack)
      : before(in_before),
        words(bytes > before + slack ? (bytes - before - slack) / kWordBytes : 0),
        edges(bytes - words * kWordBytes) {}
  CACHALOT_HOST_DEVICE std::size_t word_offset(std::size_t word) const { return before + word * kWordBytes; }
  CACHALOT_HOST_DEVICE std::size_t edge_offset(std::size_t edge) const {
    return edge < before ? edge : edge + words * kWordBytes;
  }
  std::size_t before;
  std::size_t words;
  std::size_t edges;
};

CACHALOT_HOST_DEVICE inline std::size_t bytes_to_next_word(Address address) {
  return (kWordBytes - address % kWordBytes) % kWordBytes;
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

template <typename Item>
CACHALOT_HOST_DEVICE unsigned item_of_tile(const Batch<Item>& batch, std::uint64_t tile) {
  unsigned first = 0;
  for (unsigned count = batch.count; count > 1;) {
    const unsigned half = count / 2;
    const bool is_behind = batch.first_tile[first + half] <= tile;
    first += is_behind ? half : 0;
    count = is_behind ? count - half : half;
  }
  return first;
}

// Calls use(item, tile of the item) for the tiles of the machine's block.
template <typename Machine, typename Item, typename Use>
CACHALOT_HOST_DEVICE void for_each_tile(const Machine& machine, const Batch<Item>& batch, Use&& use) {
  for (std::uint64_t tile = machine.block(); tile < batch.first_tile[batch.count]; tile += machine.blocks()) {
    const unsigned item = item_of_tile(batch, tile);
    use(item, tile - batch.first_tile[item]);
  }
}

// Calls use(turn, word) for the tile's words that are the thread's: at most kWordsAThread. Nearly every thread has all of
// them, and no conditions then keep the machine from loading them at once.
template <typename Machine, typename Use>
CACHALOT_HOST_DEVICE void for_each_word(const Machine& machine, const WordLayout& layout, std::uint64_t tile,
                                        Use&& use) {
  const std::size_t first = tile * (kTileBytes / kWordBytes) + machine.thread();
  if (first + (kWordsAThread - 1) * kThreadsABlock < layout.words) {
    for (unsigned turn = 0; turn < kWordsAThread; ++turn) use(turn, first + turn * kThreadsABlock);
    return;
  }
  for (unsigned turn = 0; turn < kWordsAThread; ++turn) {
    const std::size_t word = first + turn * kThreadsABlock;
    if (word < layout.words) use(turn, word);
  }
}

// Calls use(edge) for the edge bytes that are the thread's. They belong to the first tile.
template <typename Machine, typename Use>
CACHALOT_HOST_DEVICE void for_each_edge(const Machine& machine, const WordLayout& layout, std::uint64_t tile,
                                        Use&& use) {
  if (tile == 0 && machine.thread() < layout.edges) use(std::size_t{machine.thread()});
}

// ---- Patterns -------------------------------------------------------------------------------------------------------

CACHALOT_HOST_DEVICE inline WordLayout layout_of(const PatternSpan& span) {
  return {bytes_to_next_word(span.address), span.bytes, 0};
}

CACHALOT_HOST_DEVICE inline Word pattern_at(Address address, std::uint64_t seed) {
  return {pattern_word(address / 8, seed), pattern_word(address / 8 + 1, seed)};
}

template <typename Machine>
CACHALOT_HOST_DEVICE void fill_patterns(const Machine& machine, const Batch<PatternSpan>& batch) {
  for_each_tile(machine, batch, [&](unsigned item, std::uint64_t tile) {
    const PatternSpan span = batch.items[item];
    const WordLayout layout = layout_of(span);
    for_each_word(machine, layout, tile, [&](unsigned, std::size_t word) {
      const Address at = span.address + layout.word_offset(word);
      machine.store(at, pattern_at(at, span.seed));
    });
    for_each_edge(machine, layout, tile, [&](std::size_t edge) {
      const Address at = span.address + layout.edge_offset(edge);
      machine.store_byte(at, pattern_byte(at, span.seed));
    });
  });
}

// The place of the first byte that differs, 0 to 15; 16: none does.
CACHALOT_HOST_DEVICE inline unsigned first_difference(const Word& held, const Word& right) {
  const std::uint64_t low = held.low ^ right.low;
  const std::uint64_t high = held.high ^ right.high;
  if (low != 0) return static_cast<unsigned>(__builtin_ctzll(low)) / 8;
  return high != 0 ? 8 + static_cast<unsigned>(__builtin_ctzll(high)) / 8 : 16;
}

// The offset of the first byte of the tile that differs, of those that the thread looks at.
template <typename Machine>
CACHALOT_HOST_DEVICE unsigned long long difference_in_tile(const Machine& machine, const PatternSpan& span,
                                                           std::uint64_t tile) {
  const WordLayout layout = layout_of(span);
  Word held[kWordsAThread] = {};
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    held[turn] = machine.load(span.address + layout.word_offset(word));
  });
  unsigned long long first = kNoDifference;
  const auto note = [&](unsigned long long offset) { first = offset < first ? offset : first; };
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    const std::size_t offset = layout.word_offset(word);
    const unsigned byte = first_difference(held[turn], pattern_at(span.address + offset, span.seed));
    if (byte < kWordBytes) note(offset + byte);
  });
  for_each_edge(machine, layout, tile, [&](std::size_t edge) {
    const std::size_t offset = layout.edge_offset(edge);
    const Address at = span.address + offset;
    if (machine.load_byte(at) != pattern_byte(at, span.seed)) note(offset);
  });
  return first;
}

// `answers` has one for each item, kNoDifference before.
template <typename Machine>
CACHALOT_HOST_DEVICE void verify_patterns(const Machine& machine, const Batch<PatternSpan>& batch,
                                          unsigned long long* answers) {
  for_each_tile(machine, batch, [&](unsigned item, std::uint64_t tile) {
    const unsigned long long first = difference_in_tile(machine, batch.items[item], tile);
    if (first != kNoDifference) machine.lower(answers + item, first);
  });
}

// ---- Moves ----------------------------------------------------------------------------------------------------------

// Returns the distance of the source of a destination's word from the multiple of 16 before it.
CACHALOT_HOST_DEVICE inline unsigned shift_of(const BlockMove& move) {
  return static_cast<unsigned>((move.from - move.to) % kWordBytes);
}

// Returns the layout of the destination's words. If words of the source lie otherwise, each is cut out of two, and both
// must be in the source: the first may begin `shift` bytes before it, the second may end 16 - `shift` bytes behind it.
CACHALOT_HOST_DEVICE inline WordLayout layout_of(const BlockMove& move) {
  const std::size_t to_next = bytes_to_next_word(move.to);
  const unsigned shift = shift_of(move);
  if (shift == 0) return {to_next, move.bytes, 0};
  return {to_next < shift ? to_next + kWordBytes : to_next, move.bytes, kWordBytes - shift};
}

// The 16 bytes that begin `shift` bytes, 1 to 15, after the first byte of `first`; `second` is the next word.
CACHALOT_HOST_DEVICE inline Word cut_out(const Word& first, const Word& second, unsigned shift) {
  const bool is_far = shift >= 8;
  const std::uint64_t parts[3] = {is_far ? first.high : first.low, is_far ? second.low : first.high,
                                  is_far ? second.high : second.low};
  const unsigned bits = shift % 8 * 8;
  const unsigned others = 63 - bits;  // in two steps, since a shift by 64 is undefined
  return {(parts[0] >> bits) | (parts[1] << 1 << others), (parts[1] >> bits) | (parts[2] << 1 << others)};
}

// Loads before it stores, so that a thread's loads are under way together.
template <typename Machine>
CACHALOT_HOST_DEVICE void move_words(const Machine& machine, const BlockMove& move, const WordLayout& layout,
                                     std::uint64_t tile) {
  Word held[kWordsAThread] = {};
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    held[turn] = machine.load(move.from + layout.word_offset(word));
  });
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    machine.store(move.to + layout.word_offset(word), held[turn]);
  });
}

template <typename Machine>
CACHALOT_HOST_DEVICE void move_shifted_words(const Machine& machine, const BlockMove& move, const WordLayout& layout,
                                             std::uint64_t tile) {
  const unsigned shift = shift_of(move);
  Word first[kWordsAThread] = {};
  Word second[kWordsAThread] = {};
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    const Address at = move.from + layout.word_offset(word) - shift;
    first[turn] = machine.load(at);
    second[turn] = machine.load(at + kWordBytes);
  });
  for_each_word(machine, layout, tile, [&](unsigned turn, std::size_t word) {
    machine.store(move.to + layout.word_offset(word), cut_out(first[turn], second[turn], shift));
  });
}

template <typename Machine>
CACHALOT_HOST_DEVICE void move_tile(const Machine& machine, const BlockMove& move, std::uint64_t tile) {
  const WordLayout layout = layout_of(move);
  if (shift_of(move) == 0) {
    move_words(machine, move, layout, tile);
  } else {
    move_shifted_words(machine, move, layout, tile);
  }
  for_each_edge(machine, layout, tile, [&](std::size_t edge) {
    const std::size_t offset = layout.edge_offset(edge);
    machine.store_byte(move.to + offset, machine.load_byte(move.from + offset));
  });
}

// No destination overlaps another, or a source.
template <typename Machine>
CACHALOT_HOST_DEVICE void move_blocks(const Machine& machine, const Batch<BlockMove>& batch) {
  for_each_tile(machine, batch,
                [&](unsigned item, std::uint64_t tile) { move_tile(machine, batch.items[item], tile); });
}

CACHALOT_END
