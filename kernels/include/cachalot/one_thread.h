/// @file
/// The group of one host thread, for the host twin of a SlotPool.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstdint>

CACHALOT_BEGIN_API

/// A OneThread is a group (SlotPoolView) of one thread of the host. Its atomics are GCC's and
/// Clang's builtins: std::atomic_ref is C++20.
class OneThread {
 public:
  using Word = unsigned long long;  ///< the type of the atomics

  /// Returns the number of threads in the group.
  unsigned size() const { return 1; }
  /// Returns the place of the calling thread in the group.
  unsigned rank() const { return 0; }
  /// Returns where to begin to search, spread over 32 bits, so that threads keep away from each
  /// other.
  std::uint32_t start() const {
    thread_local const char here = 0;
    return static_cast<std::uint32_t>(
        (reinterpret_cast<std::uintptr_t>(&here) * 0x9e3779b97f4a7c15u) >> 32);
  }
  /// Returns the group of the members that call with the same value.
  OneThread with_same(std::uint64_t) const { return *this; }
  /// Returns the bits that any member has.
  Word either(Word bits) const { return bits; }

  /// Returns the word. Writes that its writer made before it are visible.
  Word load(Word* word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  /// Adds to the word. Returns its previous value.
  Word fetch_add(Word* word, Word value) const {
    return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
  }
  /// Sets bits of the word. Returns its previous value.
  Word fetch_or(Word* word, Word bits) const {
    return __atomic_fetch_or(word, bits, __ATOMIC_SEQ_CST);
  }
  /// Keeps only these bits of the word. Returns its previous value.
  Word fetch_and(Word* word, Word bits) const {
    return __atomic_fetch_and(word, bits, __ATOMIC_SEQ_CST);
  }
  /// Raises the word to at least `value`.
  void fetch_max(Word* word, Word value) const {
    Word seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (seen < value && !__atomic_compare_exchange_n(word, &seen, value, /*weak=*/true,
                                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }
  /// Makes earlier writes of other groups visible: the atomics above do.
  void acquire() const {}
  /// Makes this group's writes visible to others: the atomics above do.
  void release() const {}
};

CACHALOT_END_API
