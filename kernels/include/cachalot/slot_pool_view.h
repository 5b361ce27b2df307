/// @file
/// The inside of a SlotPool, as kernels and the host use it. Kernels include slot_pool.cuh.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cachalot/host_device.h"
#include "cachalot/one_thread.h"
#ifdef __CUDACC__
#include "cachalot/warp_group.cuh"
#endif

CACHALOT_BEGIN_API

/// The number of slots that one word of the bitmap stands for.
inline constexpr unsigned kSlotsAWord = 64;

/// A SlotPoolControl holds the counters of a SlotPool in device memory. Counters that many threads
/// write lie on cache lines of their own.
struct SlotPoolControl {
  using Count = unsigned long long;  ///< the type of CUDA's atomics
  alignas(64) Count live = 0;        ///< slots taken, and for a moment takes that are being refused
  alignas(64) Count given = 0;       ///< slots given back
  alignas(64) Count high_water = 0;  ///< the most slots that were taken at once
  Count exhausted = 0;               ///< takes that were refused
  Count bad_gives = 0;               ///< gives of a pointer that is not a taken slot
};

/// A SlotPoolView takes slots from the pool's bitmap and gives them back. One algorithm serves a
/// warp on the GPU and a thread of the host, over a group: threads that act as one, with one atomic
/// for all of them. WarpGroup and OneThread are the groups.
///
/// Invariants, whatever runs concurrently: 1. A bit of `words` is set while its slot is taken, and
/// for places behind the last slot. 2. A take counts itself in `live` before it searches, and a
/// give counts itself out last. So no more takes search than there are free slots, each of them
/// finds a clear bit, and an exhausted pool refuses at once.
struct SlotPoolView {
  /// Returns a slot for the calling thread, with the content that its last owner left. Returns null
  /// if all slots are taken, which is counted as exhausted; while other takes are being refused it
  /// may be returned a moment after a slot was given back. Threads of a warp that call together are
  /// served together.
  /// Cost: two atomics for a warp, and one more for every word without enough clear bits.
  CACHALOT_HOST_DEVICE void* take() const;
  /// Gives back a slot that take returned. Writes to it are visible to the thread that takes it
  /// next. A pointer that is not the start of a slot of this pool, or whose slot is not taken,
  /// changes nothing and is counted in bad_gives; null as well.
  CACHALOT_HOST_DEVICE void give(void* slot) const;

  /// Returns a slot for each member of a group that the caller made, as take() does.
  /// Requires: all members call.
  template <typename Group>
  CACHALOT_HOST_DEVICE void* take(Group group) const;
  /// Gives back the slot of each member of a group that the caller made, as give() does.
  /// Requires: all members call.
  template <typename Group>
  CACHALOT_HOST_DEVICE void give(void* slot, Group group) const;

  using Word = unsigned long long;     ///< a word of the bitmap
  SlotPoolControl* control = nullptr;  ///< the counters
  Word* words = nullptr;               ///< the bitmap
  std::byte* slots = nullptr;          ///< the first slot
  std::uint64_t slot_count = 0;        ///< the number of slots
  std::uint64_t slot_bytes = 0;        ///< bytes from one slot to the next

 private:
  static constexpr std::uint64_t kNoSlot = ~std::uint64_t{0};

  CACHALOT_HOST_DEVICE std::uint64_t word_count() const {
    return (slot_count + kSlotsAWord - 1) / kSlotsAWord;
  }
  CACHALOT_HOST_DEVICE std::uint64_t index_of(const void* slot) const;
  template <typename Group>
  CACHALOT_HOST_DEVICE unsigned admit(const Group& group) const;
  template <typename Group>
  CACHALOT_HOST_DEVICE Word claim(const Group& group, std::uint64_t word, unsigned wanted) const;
};
static_assert(std::is_trivially_copyable_v<SlotPoolView>);

/// SlotBits are operations on the bits of a word, for the host and for kernels.
struct SlotBits {
  using Word = SlotPoolView::Word;  ///< a word of the bitmap
  /// Returns the number of set bits.
  CACHALOT_HOST_DEVICE static unsigned count(Word bits) {
#ifdef __CUDA_ARCH__
    return static_cast<unsigned>(__popcll(bits));
#else
    return static_cast<unsigned>(__builtin_popcountll(bits));
#endif
  }
  /// Returns the word without its `n` lowest set bits; 0 if it has fewer.
  CACHALOT_HOST_DEVICE static Word without_lowest(Word bits, unsigned n) {
    for (; n != 0 && bits != 0; --n) bits &= bits - 1;
    return bits;
  }
  /// Returns the index of the lowest set bit. Requires: a bit is set.
  CACHALOT_HOST_DEVICE static unsigned lowest(Word bits) { return count((bits & (~bits + 1)) - 1); }
};

// ---- Implementation ----------------------------------------------------------------------------

CACHALOT_HOST_DEVICE inline std::uint64_t SlotPoolView::index_of(const void* slot) const {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(slot) - reinterpret_cast<std::uintptr_t>(slots);
  return offset % slot_bytes == 0 && offset / slot_bytes < slot_count ? offset / slot_bytes
                                                                      : kNoSlot;
}

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Group>
CACHALOT_HOST_DEVICE void* SlotPoolView::take(Group group) const {
  const unsigned rank = group.rank();
  const unsigned admitted = admit(group);
  std::uint64_t word = (std::uint64_t{group.start()} * word_count()) >> 32;
  std::byte* slot = nullptr;
  for (unsigned served = 0; served < admitted; word = word + 1 < word_count() ? word + 1 : 0) {
    const Word claimed = claim(group, word, admitted - served);
    const unsigned count = SlotBits::count(claimed);
    if (rank >= served && rank < served + count) {
      const Word mine = SlotBits::without_lowest(claimed, rank - served);
      slot = slots + (word * kSlotsAWord + SlotBits::lowest(mine)) * slot_bytes;
    }
    served += count;
  }
  group.acquire();
  return slot;
}

// Counts the group in. Returns how many of its members get a slot: those of the lowest ranks.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Group>
CACHALOT_HOST_DEVICE unsigned SlotPoolView::admit(const Group& group) const {
  const unsigned wanted = group.size();
  const std::uint64_t before = group.fetch_add(&control->live, wanted);
  const std::uint64_t room = before < slot_count ? slot_count - before : 0;
  const unsigned admitted = room < wanted ? static_cast<unsigned>(room) : wanted;
  if (admitted < wanted) {
    group.fetch_add(&control->live, Word{0} - (wanted - admitted));
    group.fetch_add(&control->exhausted, wanted - admitted);
  }
  if (admitted != 0 && group.load(&control->high_water) < before + admitted) {
    group.fetch_max(&control->high_water, before + admitted);
  }
  return admitted;
}

// Sets up to `wanted` clear bits of a word. Returns those that no other group set first.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Group>
CACHALOT_HOST_DEVICE SlotPoolView::Word SlotPoolView::claim(const Group& group, std::uint64_t word,
                                                            unsigned wanted) const {
  const Word clear = ~group.load(&words[word]);
  if (clear == 0) return 0;
  const Word chosen = clear & ~SlotBits::without_lowest(clear, wanted);
  return chosen & ~group.fetch_or(&words[word], chosen);
}

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Group>
CACHALOT_HOST_DEVICE void SlotPoolView::give(void* slot, Group group) const {
  const std::uint64_t index = index_of(slot);
  group.release();
  // Members that give to the same word, or give an invalid pointer, go on together.
  const Group peers = group.with_same(index / kSlotsAWord);
  unsigned good = 0;
  if (index != kNoSlot) {
    const Word bits = peers.either(Word{1} << (index % kSlotsAWord));
    good = SlotBits::count(bits & peers.fetch_and(&words[index / kSlotsAWord], ~bits));
  }
  if (good < peers.size()) peers.fetch_add(&control->bad_gives, peers.size() - good);
  if (good == 0) return;
  peers.fetch_add(&control->given, good);
  peers.fetch_add(&control->live, Word{0} - good);
}

CACHALOT_HOST_DEVICE inline void* SlotPoolView::take() const {
#ifdef __CUDA_ARCH__
  return take(WarpGroup());
#else
  return take(OneThread());
#endif
}

CACHALOT_HOST_DEVICE inline void SlotPoolView::give(void* slot) const {
#ifdef __CUDA_ARCH__
  give(slot, WarpGroup());
#else
  give(slot, OneThread());
#endif
}

CACHALOT_END_API
