// A group of one: a thread of the host, for the host twin of a SlotPool (slot_pool_view.h).
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstdint>

namespace cachalot {

class OneThread {
 public:
  using Word = unsigned long long;

  unsigned size() const { return 1; }
  unsigned rank() const { return 0; }
  // Where to begin to search, spread over 32 bits: threads keep away from each other.
  std::uint32_t start() const {
    thread_local const char kHere = 0;
    return static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(&kHere) * 0x9e3779b97f4a7c15u) >> 32);
  }
  OneThread with_same(std::uint64_t) const { return *this; }  // the members that call with the same value
  Word either(Word bits) const { return bits; }               // what any member has

  // Builtins of GCC, Clang and nvcc: std::atomic_ref is C++20.
  Word load(Word* word) const { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  Word fetch_add(Word* word, Word value) const { return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST); }
  Word fetch_or(Word* word, Word bits) const { return __atomic_fetch_or(word, bits, __ATOMIC_SEQ_CST); }
  Word fetch_and(Word* word, Word bits) const { return __atomic_fetch_and(word, bits, __ATOMIC_SEQ_CST); }
  void fetch_max(Word* word, Word value) const {
    Word seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (seen < value &&
           !__atomic_compare_exchange_n(word, &seen, value, /*weak=*/true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
  }
  void acquire() const {}  // the atomics above order all else
  void release() const {}
};

}  // namespace cachalot
