// Many threads at once. The simulated device's checker refuses two live handouts that overlap; ThreadSanitizer looks at
// the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

constexpr std::size_t kThreads = 4;

int operations() { return static_cast<int>(scaled(10'000)); }

SimulatedDevice::Config watched(std::size_t device_bytes) {
  SimulatedDevice::Config config = World::config_of(device_bytes);
  config.check_hazards = true;
  return config;
}

struct Handout {
  void* ptr;
  std::size_t bytes;
  Stream stream;
};

// Allocations that threads pass to each other to free.
class Mailbox {
 public:
  void put(Handout handout) {
    const std::lock_guard lock(mutex_);
    box_.push_back(handout);
  }
  bool take(Handout& handout) {
    const std::lock_guard lock(mutex_);
    if (box_.empty()) return false;
    handout = box_.front();
    box_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Handout> box_;
};

class Player {
 public:
  Player(World& world, Mailbox& mailbox, std::uint64_t seed) : world_(world), mailbox_(mailbox), random_(seed) {}

  void play(int count) {
    for (int i = 0; i < count; ++i) {
      const std::uint64_t dice = below(1000);
      if (dice < 450)
        allocate();
      else if (dice < 800)
        deallocate();
      else if (dice < 900)
        post();
      else if (dice < 990)
        free_anothers();
      else if (dice < 995)
        world_.device->advance(static_cast<std::int64_t>(below(100'000)));
      else if (dice < 997)
        world_.allocator.empty_cache();
      else
        look();
    }
    while (!live_.empty()) deallocate();
  }

  void free_anothers() {
    Handout handout{};
    if (mailbox_.take(handout)) give_back(handout);
  }

  std::int64_t allocations() const { return allocations_; }

 private:
  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
  }

  void allocate() {
    const auto bytes = static_cast<std::size_t>(std::exp2(std::uniform_real_distribution<double>(0, 24)(random_)));
    try {
      void* ptr = world_.allocate(bytes, stream_);
      ++allocations_;
      world_.device->handed_out(address(ptr), bytes, stream_);
      world_.device->launch(stream_, static_cast<std::int64_t>(below(10'000)), {{address(ptr), bytes}});
      live_.push_back({ptr, bytes, stream_});
    } catch (const OutOfMemory&) {
      deallocate();
    }
  }

  Handout pick() {
    const std::size_t which = below(live_.size());
    const Handout handout = live_[which];
    live_[which] = live_.back();
    live_.pop_back();
    return handout;
  }

  void deallocate() {
    if (!live_.empty()) give_back(pick());
  }

  // Posts an allocation that is used on another stream, in its order, and freed by any thread.
  void post() {
    if (live_.empty()) return;
    const Handout handout = pick();
    const Event event = world_.device->event_create();
    world_.device->event_record(event, handout.stream);
    world_.device->stream_wait(side_stream_, event);
    world_.device->event_destroy(event);
    world_.allocator.record_stream(handout.ptr, side_stream_);
    world_.device->launch(side_stream_, static_cast<std::int64_t>(below(50'000)),
                          {{address(handout.ptr), handout.bytes}});
    mailbox_.put(handout);
  }

  void give_back(const Handout& handout) {
    world_.device->given_back(address(handout.ptr));
    if (below(2) == 0) {
      world_.allocator.deallocate(handout.ptr);
    } else {
      world_.allocator.deallocate(handout.ptr, handout.bytes, 0, handout.stream);
    }
  }

  void look() {
    const DeviceStats stats = world_.allocator.memory_stats();
    EXPECT_LE(stats.allocated_bytes.all.current, stats.active_bytes.all.current);
    EXPECT_LE(stats.active_bytes.all.current, stats.reserved_bytes.all.current);
    EXPECT_LE(stats.requested_bytes.all.current, stats.active_bytes.all.current);
    EXPECT_EQ(world_.allocator.validate(), "");
    for (const SegmentSnapshot& segment : world_.allocator.snapshot().segments) {
      EXPECT_LE(segment.active_size, segment.total_size);
    }
    world_.allocator.fragmentation();
    world_.allocator.reset_peak_stats();
  }

  World& world_;
  Mailbox& mailbox_;
  std::mt19937_64 random_;
  const Stream stream_ = world_.device->new_stream();
  const Stream side_stream_ = world_.device->new_stream();
  std::vector<Handout> live_;
  std::int64_t allocations_ = 0;
};

void play_together(World& world, std::uint64_t seed) {
  Mailbox mailbox;
  std::vector<std::unique_ptr<Player>> players;
  for (std::size_t i = 0; i < kThreads; ++i) players.push_back(std::make_unique<Player>(world, mailbox, seed + i));
  std::vector<std::thread> threads;
  for (auto& player : players) threads.emplace_back([&player] { player->play(operations()); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads * static_cast<std::size_t>(operations()); ++i) players[0]->free_anothers();

  std::int64_t allocations = 0;
  for (auto& player : players) allocations += player->allocations();
  world.allocator.empty_cache();
  const DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.allocation.all.allocated, allocations);
  EXPECT_EQ(stats.allocation.all.freed, allocations);
  EXPECT_EQ(stats.active.all.freed, allocations);
  EXPECT_EQ(stats.allocated_bytes.all.allocated, stats.allocated_bytes.all.freed);
  EXPECT_EQ(stats.requested_bytes.all.current, 0);
  EXPECT_EQ(stats.reserved_bytes.all.current, 0);
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

class Threads : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Modes, Threads,
                         testing::Values("", "thread_cache:True", "heap:pages", "heap:pages,thread_cache:False"));

TEST_P(Threads, WithAStreamEachKeepTheBooksInPlentyOfMemory) {
  World world(watched(64 * kGiB), GetParam());
  play_together(world, 11);
}

TEST_P(Threads, WithAStreamEachKeepTheBooksWhenMemoryRunsOut) {
  World world(watched(600 * kMiB), GetParam());
  play_together(world, 12);
}

TEST_P(Threads, RecordAndFreeWhileHistoryIsSwitched) {
  World world(64 * kGiB, GetParam());
  std::atomic<bool> done = false;
  std::thread watcher([&] {
    while (!done) {
      world.allocator.record_history({.max_entries = 50});
      world.allocator.snapshot();
      world.allocator.record_history({.enabled = false});
    }
  });
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const Stream stream = world.device->new_stream();
      for (int j = 0; j < operations() / 10; ++j) world.allocator.deallocate(world.allocate(1000, stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  watcher.join();
  EXPECT_EQ(world.active(), 0u);
}

TEST_P(Threads, OnOneStreamShareItsMemory) {
  World world(64 * kGiB, GetParam());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < operations(); ++j) world.allocator.deallocate(world.allocate(1000));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(world.reserved(), 32 * kMiB);  // a segment of 2 MiB, or a handle
  EXPECT_EQ(world.allocator.memory_stats().allocation.all.freed, static_cast<std::int64_t>(kThreads) * operations());
  EXPECT_LE(world.allocator.max_memory_allocated(), kThreads * 1024);
}

TEST_P(Threads, RedirectedIntoPoolsStayInThem) {
  World world(64 * kGiB, GetParam());
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i <= kThreads; ++i) {
    threads.emplace_back([&world, i] {
      const PoolId pool{0, i};
      for (int round = 0; round < 50; ++round) {
        const InPool in_pool(world.allocator, pool);
        std::vector<void*> live;
        for (int j = 0; j < 20; ++j) live.push_back(world.allocate(1000));
        EXPECT_TRUE(world.allocator.pool_has_exactly(0, pool, live));
        for (void* ptr : live) world.allocator.deallocate(ptr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST_P(Threads, ConfigureAndLimitWhileOthersAllocate) {
  World world(200 * kMiB, GetParam());
  std::atomic<bool> done = false;
  std::thread tuner([&] {
    while (!done) {
      world.allocator.configure("max_split_size_mb:32,garbage_collection_threshold:0.5");
      world.allocator.set_memory_fraction(0.6);
      world.allocator.configure("roundup_power2_divisions:4");
      world.allocator.configure("thread_cache:False");
      world.allocator.configure("thread_cache:True");
      world.allocator.set_memory_fraction(1);
    }
  });
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&world, i] {
      std::mt19937_64 random(i);
      const Stream stream = world.device->new_stream();
      std::deque<void*> live;
      for (int j = 0; j < operations() / 5; ++j) {
        try {
          live.push_back(world.allocate(std::uniform_int_distribution<std::size_t>(1, 20 * kMiB)(random), stream));
        } catch (const OutOfMemory&) {
        }
        while (live.size() > 4) {
          world.allocator.deallocate(live.front());
          live.pop_front();
        }
      }
      for (void* ptr : live) world.allocator.deallocate(ptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  tuner.join();
  EXPECT_EQ(world.active(), 0u);
}

}  // namespace
}  // namespace cachalot
