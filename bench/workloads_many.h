// More work that is measured: on very many blocks, the time of single pairs, and from thread to thread. The rules are
// those of bench/workloads.h.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "bench/workloads.h"

namespace cachalot::bench {

// Starts a thread for each index below `count`, which calls work(index, start_together) and may prepare until it calls
// start_together(). Nanoseconds from the first start to the last end by the threads' own clocks: the one that waits for
// them may get its turn late.
template <typename Work>
double ns_of_threads(int count, Work&& work) {
  struct Times {
    Clock::time_point start;
    Clock::time_point end;
  };
  std::vector<Times> times(static_cast<std::size_t>(count));
  std::atomic<int> waiting = count;
  const auto run = [&](int index) {
    Times& mine = times[static_cast<std::size_t>(index)];
    work(index, [&] {
      --waiting;
      while (waiting.load() > 0) std::this_thread::yield();
      mine.start = Clock::now();
    });
    mine.end = Clock::now();
  };
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) threads.emplace_back(run, index);
  for (std::thread& thread : threads) thread.join();
  const auto first = std::ranges::min_element(times, {}, &Times::start)->start;
  const auto last = std::ranges::max_element(times, {}, &Times::end)->end;
  return std::chrono::duration<double, std::nano>(last - first).count();
}

// Threads that each allocate and free 4 KiB, on a stream of their own or all on one; one allocator for all.
template <typename Allocator = OwnAllocator>
class ThreadPairs {
 public:
  explicit ThreadPairs(Allocator allocator = {}) : allocator_(std::forward<Allocator>(allocator)) {}

  // Million pairs a second of all threads, each of which does `pairs`.
  double shot(int threads, int pairs, bool on_one_stream = false) {
    std::vector<Stream> streams;
    for (int index = 0; index < threads; ++index) streams.push_back(allocator_.stream(on_one_stream ? 0 : index));
    const double ns = ns_of_threads(threads, [&](int index, auto&& start_together) {
      start_together();
      const Stream stream = streams[static_cast<std::size_t>(index)];
      for (int i = 0; i < pairs; ++i) allocator_.deallocate(allocator_.allocate(kBytes, stream), kBytes, stream);
    });
    return 1e3 * threads * pairs / ns;
  }

 private:
  static constexpr std::size_t kBytes = 4 * kKiB;

  Allocator allocator_;
};

// Pointers on their way from one thread to one other. Each looks at how far the other has come only when it has used up
// what it knows, so that most steps touch nothing that the other writes. A thread with nothing to do lets others run.
class Ring {
 public:
  void put(void* pointer) {
    while (put_.at - put_.seen == kPlaces) put_.seen = look(taken_, put_.at - kPlaces);
    places_[put_.at % kPlaces] = pointer;
    put_.published.store(++put_.at, std::memory_order_release);
  }
  void* take() {
    while (taken_.at == taken_.seen) taken_.seen = look(put_, taken_.at);
    void* const pointer = places_[taken_.at % kPlaces];
    taken_.published.store(++taken_.at, std::memory_order_release);
    return pointer;
  }

 private:
  static constexpr std::size_t kPlaces = 512;
  struct alignas(kCacheLine) End {
    std::size_t at = 0;    // where its thread is
    std::size_t seen = 0;  // where that thread last saw the other
    alignas(kCacheLine) std::atomic<std::size_t> published = 0;
  };

  static std::size_t look(const End& other, std::size_t known) {
    const std::size_t now = other.published.load(std::memory_order_acquire);
    if (now == known) std::this_thread::yield();
    return now;
  }

  alignas(kCacheLine) std::array<void*, kPlaces> places_ = {};
  End put_;
  End taken_;
};

// Couples of threads: one allocates 4 KiB on a stream of its own, the other frees it.
template <typename Allocator = OwnAllocator>
class Handoff {
 public:
  explicit Handoff(Allocator allocator = {}) : allocator_(std::forward<Allocator>(allocator)) {}

  // Million pairs a second of all couples, each of which does `pairs`.
  double shot(int couples, int pairs) {
    std::vector<Ring> rings(static_cast<std::size_t>(couples));
    std::vector<Stream> streams;
    for (int index = 0; index < couples; ++index) streams.push_back(allocator_.stream(index));
    const double ns = ns_of_threads(2 * couples, [&](int index, auto&& start_together) {
      start_together();
      const auto couple = static_cast<std::size_t>(index / 2);
      const Stream stream = streams[couple];
      if (index % 2 == 0) {
        for (int i = 0; i < pairs; ++i) rings[couple].put(allocator_.allocate(kBytes, stream));
      } else {
        for (int i = 0; i < pairs; ++i) allocator_.deallocate(rings[couple].take(), kBytes, stream);
      }
    });
    return 1e3 * couples * pairs / ns;
  }

 private:
  static constexpr std::size_t kBytes = 4 * kKiB;

  Allocator allocator_;
};

// `count` live blocks of 512 B to 64 KiB: the cost of allocating them all, and of freeing them.
template <typename Allocator = OwnAllocator>
class ManyBlocks {
 public:
  explicit ManyBlocks(std::size_t count, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)),
        sizes_(log_uniform_sizes(512, 64 * kKiB, count, 5)),
        order_(count),
        live_(count) {
    std::iota(order_.begin(), order_.end(), 0u);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(6));
  }

  void allocate_all() {
    for (std::size_t i = 0; i < live_.size(); ++i) live_[i] = allocator_.allocate(sizes_[i], nullptr);
  }
  void free_in_order() {
    for (std::size_t i = 0; i < live_.size(); ++i) free(i);
  }
  void free_in_random_order() {
    for (const std::uint32_t i : order_) free(i);
  }

 private:
  void free(std::size_t i) { allocator_.deallocate(live_[i], sizes_[i], nullptr); }

  Allocator allocator_;
  std::vector<std::size_t> sizes_;
  std::vector<std::uint32_t> order_;
  std::vector<void*> live_;
};

// TimedPairs takes the time of each of many pairs: it frees one of some live blocks and allocates another, of sizes up
// to 1 MiB. One per thread.
template <typename Allocator = OwnAllocator>
class TimedPairs {
 public:
  TimedPairs(Stream stream, unsigned seed, Allocator allocator = {})
      : allocator_(std::forward<Allocator>(allocator)),
        stream_(stream),
        sizes_(log_uniform_sizes(512, kMiB, kDrawn, seed)),
        live_(kLive) {
    for (std::size_t i = 0; i < kLive; ++i) live_[i] = {allocator_.allocate(sizes_[i], stream_), sizes_[i]};
    for (std::size_t i = 0; i < 20 * kDrawn; ++i) pair(i);  // until the cache has what the pairs need
  }
  ~TimedPairs() {
    for (const LiveBlock& block : live_) allocator_.deallocate(block.pointer, block.bytes, stream_);
  }
  TimedPairs(const TimedPairs&) = delete;
  TimedPairs& operator=(const TimedPairs&) = delete;

  // Nanoseconds of each pair, the clock's own included.
  std::vector<std::uint32_t> times(std::size_t count) {
    std::vector<std::uint32_t> times(count);
    auto before = Clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      pair(i);
      const auto after = Clock::now();
      times[i] = static_cast<std::uint32_t>((after - before).count());
      before = after;
    }
    return times;
  }

 private:
  static constexpr std::size_t kDrawn = std::size_t{1} << 12;
  static constexpr std::size_t kLive = 256;

  void pair(std::size_t i) {
    LiveBlock& block = live_[(i * 97) % kLive];
    allocator_.deallocate(block.pointer, block.bytes, stream_);
    block = {allocator_.allocate(sizes_[i % kDrawn], stream_), sizes_[i % kDrawn]};
  }

  Allocator allocator_;
  Stream stream_;
  std::vector<std::size_t> sizes_;
  std::vector<LiveBlock> live_;
};

// Nanoseconds below which all but one in 10,000 pairs stay, of `pairs` on each of `threads` with a stream each.
template <typename Allocator>
double ns_of_the_slowest_pairs(int threads, std::size_t pairs, Allocator& allocator) {
  std::vector<std::vector<std::uint32_t>> times(static_cast<std::size_t>(threads));
  std::vector<Stream> streams;
  for (int index = 0; index < threads; ++index) streams.push_back(allocator.stream(index));
  ns_of_threads(threads, [&](int index, auto&& start_together) {
    const auto i = static_cast<std::size_t>(index);
    TimedPairs<Allocator&> work(streams[i], static_cast<unsigned>(index), allocator);
    start_together();
    times[i] = work.times(pairs);
  });
  std::vector<std::uint32_t> all;
  for (const auto& of_thread : times) all.insert(all.end(), of_thread.begin(), of_thread.end());
  const auto slowest = all.begin() + static_cast<std::ptrdiff_t>(all.size() - all.size() / 10'000);
  std::ranges::nth_element(all, slowest);
  return *slowest;
}

}  // namespace cachalot::bench
