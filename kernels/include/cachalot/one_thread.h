// A group of one: a thread of the host, for the host twin of a SlotPool (slot_pool_view.h).
#pragma once

#include <atomic>
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

  Word load(Word* word) const { return std::atomic_ref(*word).load(std::memory_order_acquire); }
  Word fetch_add(Word* word, Word value) const { return std::atomic_ref(*word).fetch_add(value); }
  Word fetch_or(Word* word, Word bits) const { return std::atomic_ref(*word).fetch_or(bits); }
  Word fetch_and(Word* word, Word bits) const { return std::atomic_ref(*word).fetch_and(bits); }
  void fetch_max(Word* word, Word value) const {
    const std::atomic_ref shared(*word);
    for (Word seen = shared.load(); seen < value && !shared.compare_exchange_weak(seen, value);) {
    }
  }
  void acquire() const {}  // the atomics above order all else
  void release() const {}
};

}  // namespace cachalot
