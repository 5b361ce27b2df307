// TensorPool by several threads: waiting, timeouts, ending threads, and that no slot ever has two owners.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/pool/testing.h"

namespace cachalot {
namespace {

using namespace std::chrono_literals;

// Returns when a thread waits in acquire.
void await_waiter(const TensorPool& pool, std::uint64_t waits = 1) {
  while (pool.stats().host_waits < waits) std::this_thread::yield();
}

TEST(PoolThreads, AWaitingThreadGetsWhatAnotherReturns) {
  PoolWorld world({.initial_slots = 1, .when_empty = WhenEmpty::wait});
  PooledTensor tensor = world.pool.acquire();
  void* const data = tensor.data();
  std::thread waiting([&] { EXPECT_EQ(world.pool.acquire().data(), data); });
  await_waiter(world.pool);
  tensor.release();
  waiting.join();
  EXPECT_EQ(world.pool.stats().host_waits, 1u);
  EXPECT_TRUE(world.pool.acquire());
}

TEST(PoolThreads, SeveralWaitingThreadsAllGetOneInTheEnd) {
  PoolWorld world({.initial_slots = 2, .when_empty = WhenEmpty::wait});
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        const PooledTensor tensor = world.pool.acquire();
        std::this_thread::yield();
        ++served;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 300);
  EXPECT_EQ(world.pool.stats().slots, 2u);
}

// All stacks are recalled while threads wait, the stack of a thread that comes to the pool only then included.
TEST(PoolThreads, AThreadThatIsNewToThePoolServesAllThatWait) {
  PoolWorld world({.initial_slots = 64, .when_empty = WhenEmpty::wait});
  std::vector<PooledTensor> all;
  for (int i = 0; i < 64; ++i) all.push_back(world.pool.acquire());
  std::vector<std::thread> waiting;
  std::optional<PooledTensor> served[2];
  for (std::size_t i = 0; i < 2; ++i) {
    waiting.emplace_back([&, i] { served[i] = world.pool.acquire_for(5s); });
    await_waiter(world.pool, i + 1);
  }
  std::promise<void> finish;
  std::thread is_new([&] {
    all.pop_back();
    all.pop_back();
    finish.get_future().wait();  // a thread that ends gives its stack back
  });
  for (std::thread& thread : waiting) thread.join();
  EXPECT_TRUE(served[0] && served[1]);
  finish.set_value();
  is_new.join();
}

TEST(PoolThreads, AWaitEndsWithItsTimeout) {
  PoolWorld world({.initial_slots = 1, .when_empty = WhenEmpty::fail});
  const PooledTensor tensor = world.pool.acquire();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(world.pool.acquire_for(20ms));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 20ms);
  EXPECT_FALSE(world.pool.acquire_for(-1s));
  EXPECT_EQ(world.pool.stats().host_waits, 1u);
  EXPECT_EQ(world.pool.stats().live, 1u);
}

TEST(PoolThreads, AWaitWithATimeoutIsServedInTime) {
  PoolWorld world({.initial_slots = 1, .when_empty = WhenEmpty::fail});
  PooledTensor tensor = world.pool.acquire();
  std::thread waiting([&] { EXPECT_TRUE(world.pool.acquire_for(std::chrono::nanoseconds::max())); });
  await_waiter(world.pool);
  tensor.release();
  waiting.join();
}

TEST(PoolThreads, FreeSlotsDoNotHideInTheStackOfAThreadThatRests) {
  PoolWorld world({.initial_slots = 64, .when_empty = WhenEmpty::fail});
  std::promise<void> returned;
  std::promise<void> finish;
  std::thread rests([&] {
    std::vector<PooledTensor> all;
    for (int i = 0; i < 64; ++i) all.push_back(world.pool.acquire());
    all.clear();
    returned.set_value();
    finish.get_future().wait();
  });
  returned.get_future().wait();
  std::vector<PooledTensor> all;
  for (int i = 0; i < 64; ++i) all.push_back(world.pool.acquire());
  EXPECT_EQ(world.pool.stats().live, 64u);
  EXPECT_FALSE(world.pool.try_acquire());
  finish.set_value();
  rests.join();
}

TEST(PoolThreads, AThreadThatEndsGivesItsStackBack) {
  PoolWorld world;
  for (int i = 0; i < 10; ++i) {
    on_another_thread([&] { world.pool.acquire(); });
    EXPECT_EQ(world.pool.validate(), "");
  }
  EXPECT_EQ(world.pool.stats().slots, 1u);
  EXPECT_EQ(world.pool.stats().acquires, 10u);
}

TEST(PoolThreads, AThreadMayOutliveItsPools) {
  World world;
  on_another_thread([&] {
    for (int i = 0; i < 100; ++i) {
      TensorPool pool(world.allocator, kSpec);
      pool.acquire();
    }
  });
  EXPECT_EQ(world.allocated(), 0u);
}

// Two threads find the pool empty at the same time: one asks for memory, and both are served.
TEST(PoolThreads, ThreadsThatNeedGrowthAtOnceGrowOnce) {
  for (int round = 0; round < 20; ++round) {
    PoolWorld world({.growth_step = 2});
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::vector<PooledTensor> tensors(2);
    for (PooledTensor& tensor : tensors) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < 2) std::this_thread::yield();
        tensor = world.pool.acquire();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(world.pool.stats().allocations, 1u);
    tensors.clear();
  }
}

TEST(PoolThreads, TensorsComeBackFromOtherThreadsWhileThePoolGoes) {
  for (int round = 0; round < 50; ++round) {
    World world;
    auto pool = std::make_unique<TensorPool>(world.allocator, kSpec, TensorPoolOptions{.high_water = 1});
    std::vector<PooledTensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(pool->acquire());
    std::thread returns([&] { tensors.clear(); });
    pool.reset();
    returns.join();
    EXPECT_EQ(world.allocated(), 0u);
  }
}

// One thread acquires, another returns: the slots go back by batches, and none is counted twice or lost.
TEST(PoolThreads, TensorsThatAnotherThreadReturnsAreCountedExactly) {
  constexpr std::uint64_t kTensors = 20'000;
  for (const std::size_t slots : {std::size_t{1}, std::size_t{40}, std::size_t{4096}}) {
    PoolWorld world({.initial_slots = slots, .when_empty = WhenEmpty::wait}, {{1}, DType::int8});
    std::vector<PooledTensor> boxes(kTensors);
    std::atomic<std::size_t> filled{0};
    std::thread acquires([&] {
      for (std::size_t i = 0; i < kTensors; ++i) {
        boxes[i] = world.pool.acquire();
        filled.store(i + 1, std::memory_order_release);
      }
    });
    std::thread returns([&] {
      for (std::size_t i = 0; i < kTensors; ++i) {
        while (filled.load(std::memory_order_acquire) <= i) std::this_thread::yield();
        boxes[i].release();
      }
    });
    acquires.join();
    returns.join();
    const PoolStats stats = world.pool.stats();
    EXPECT_EQ(stats.acquires, kTensors);
    EXPECT_EQ(stats.live, 0u);
    EXPECT_GE(stats.peak_live, 1u);
    EXPECT_LE(stats.peak_live, slots);
    EXPECT_EQ(world.pool.validate(), "");
  }
}

// Both threads end with stacks that are neither full nor empty, and another thread gets all that they had.
TEST(PoolThreads, WhatThreadsThatEndedHadServesAnother) {
  PoolWorld world({.initial_slots = 600, .when_empty = WhenEmpty::fail}, {{1}, DType::int8});
  std::vector<PooledTensor> tensors;
  on_another_thread([&] {
    for (int i = 0; i < 101; ++i) tensors.push_back(world.pool.acquire());
  });
  on_another_thread([&] { tensors.clear(); });
  EXPECT_EQ(world.pool.stats().peak_live, 101u);
  for (int i = 0; i < 600; ++i) tensors.push_back(world.pool.acquire());
  EXPECT_EQ(world.pool.stats().live, 600u);
  EXPECT_EQ(world.pool.stats().acquires, 701u);
  EXPECT_FALSE(world.pool.try_acquire());
}

// Each slot has a shadow on the host, in which its owner leaves a mark that no other thread makes.
struct Stress {
  explicit Stress(const TensorPoolOptions& options) : world(options, {{1}, DType::float32}) {}

  std::atomic<std::uint64_t>& shadow(const PooledTensor& tensor) {
    return shadows[address(tensor.data()) / 512 % shadows.size()];
  }
  void run(std::uint64_t thread, int operations, Stream stream) {
    std::vector<PooledTensor> held;
    std::uint64_t state = thread * 7919 + 1;
    for (int i = 0; i < operations; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const bool takes = held.size() < 8 && (held.empty() || (state >> 33) % 2 == 0);
      if (takes) {
        auto tensor = world.pool.acquire_for(1ms, stream);
        if (!tensor) continue;
        EXPECT_EQ(shadow(*tensor).exchange(thread, std::memory_order_relaxed), 0u);
        held.push_back(*std::move(tensor));
      } else {
        EXPECT_EQ(shadow(held.back()).exchange(0, std::memory_order_relaxed), thread);
        held.pop_back();
      }
      if ((state >> 33) % 1000 == 0) world.pool.trim(4);
    }
    for (PooledTensor& tensor : held) shadow(tensor) = 0;
  }

  PoolWorld world;
  std::vector<std::atomic<std::uint64_t>> shadows = std::vector<std::atomic<std::uint64_t>>(1 << 20);
};

TEST(PoolThreads, NoSlotEverHasTwoOwners) {
  for (const std::size_t max_slots : {std::size_t{6}, std::size_t{40}, std::size_t{0}}) {
    Stress stress({.max_slots = max_slots, .growth_step = 3});
    const Stream shared = stress.world.device->new_stream();
    std::vector<std::thread> threads;
    for (std::uint64_t i = 1; i <= 4; ++i) {
      const Stream stream = i <= 2 ? shared : stress.world.device->new_stream();
      threads.emplace_back([&stress, i, stream] { stress.run(i, 5000, stream); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(stress.world.pool.validate(), "");
    EXPECT_EQ(stress.world.pool.stats().live, 0u);
  }
}

}  // namespace
}  // namespace cachalot
