// Thread caches: the blocks that are cached or not, the time when they go back, and that only the clock shows a
// difference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread_local_state.h"
#include "caches/thread_caches.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr const char* kCached = "thread_cache:True";
constexpr std::size_t kDevice = 64 * kGiB;

// Bytes that are neither handed out nor in the heap's bins.
std::size_t cached_bytes(CachingAllocator& allocator) {
  const Fragmentation figures = allocator.fragmentation();
  return figures.reserved_bytes - figures.allocated_bytes - figures.free_bytes;
}

std::vector<void*> allocate_many(World& world, std::size_t count, std::size_t bytes, Stream stream = nullptr) {
  std::vector<void*> blocks(count);
  for (void*& block : blocks) block = world.allocate(bytes, stream);
  return blocks;
}

void free_all(World& world, const std::vector<void*>& blocks) {
  for (void* block : blocks) world.allocator.deallocate(block);
}

// --- the caches' existence ------------------------------------------------------------------------------------------

TEST(ThreadCaches, AreOnForPagesAndOffForSegmentsUnlessSaidOtherwise) {
  const auto caches = [](const char* options) {
    World world(kDevice, options);
    for (int i = 0; i < 3; ++i)
      world.allocator.deallocate(world.allocate(1000));  // first there is nothing, then a page
    return cached_bytes(world.allocator) != 0;
  };
  EXPECT_FALSE(caches(""));
  EXPECT_TRUE(caches("thread_cache:True"));
  EXPECT_TRUE(caches("heap:pages"));
  EXPECT_TRUE(caches("expandable_segments:True"));
  EXPECT_FALSE(caches("heap:pages,thread_cache:False"));
}

TEST(ThreadCaches, AreSwitchedAtRunTime) {
  World world;
  void* before = world.allocate(1000);
  world.allocator.configure(kCached);
  void* while_on = world.allocate(1000);
  world.allocator.deallocate(before);
  world.allocator.deallocate(world.allocate(2000));
  EXPECT_GT(cached_bytes(world.allocator), 0u);
  world.allocator.configure("thread_cache:False");
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
  world.allocator.deallocate(while_on);
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(ThreadCaches, ServeUpTo64KiB) {
  World world(kDevice, kCached);
  world.allocator.deallocate(world.allocate(64 * kKiB + 1));
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
  world.allocator.deallocate(world.allocate(64 * kKiB));
  EXPECT_EQ(cached_bytes(world.allocator), 64 * kKiB);
}

// --- the view of a program ------------------------------------------------------------------------------------------

// By pool only where a block's size decides its pool: over the page heap small ones may lie beside large ones.
void expect_same(const StatArray& a, const StatArray& b, bool by_pool, const char* name) {
  const auto same = [&](const Stat& x, const Stat& y, const char* pool) {
    EXPECT_EQ(x.current, y.current) << name << ' ' << pool;
    EXPECT_EQ(x.peak, y.peak) << name << ' ' << pool;
    EXPECT_EQ(x.allocated, y.allocated) << name << ' ' << pool;
    EXPECT_EQ(x.freed, y.freed) << name << ' ' << pool;
  };
  same(a.all, b.all, "all");
  if (!by_pool) return;
  same(a.small_pool, b.small_pool, "small");
  same(a.large_pool, b.large_pool, "large");
}

void expect_same(const DeviceStats& a, const DeviceStats& b, bool by_pool) {
  expect_same(a.allocation, b.allocation, by_pool, "allocation");
  expect_same(a.allocated_bytes, b.allocated_bytes, by_pool, "allocated_bytes");
  expect_same(a.requested_bytes, b.requested_bytes, by_pool, "requested_bytes");
  expect_same(a.active, b.active, by_pool, "active");
  expect_same(a.active_bytes, b.active_bytes, by_pool, "active_bytes");
}

// One program over an allocator with caches and one without: all statistics of allocated memory agree at every look,
// peaks and sums among them.
TEST(ThreadCaches, LeaveTheStatisticsOfOneThreadAsTheyAre) {
  for (const char* heap : {"", "heap:pages"}) {
    World with(kDevice, fmt::format("{}{}thread_cache:True", heap, *heap == 0 ? "" : ","));
    World without(kDevice, fmt::format("{}{}thread_cache:False", heap, *heap == 0 ? "" : ","));
    std::mt19937_64 random(7);
    const auto below = [&](std::size_t bound) {
      return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
    };
    std::vector<std::pair<void*, void*>> live;
    for (int step = 0; step < 20000; ++step) {
      const std::size_t dice = below(1000);
      if (dice < 480 || live.empty()) {
        const std::size_t bytes = below(8) == 0 ? 1 + below(3 * kMiB) : 1 + below(std::size_t{64} << below(11));
        const auto stream = reinterpret_cast<Stream>(below(3) << 12);
        live.emplace_back(with.allocate(bytes, stream), without.allocate(bytes, stream));
        EXPECT_EQ(with.allocator.allocated_size(live.back().first),
                  without.allocator.allocated_size(live.back().second));
        EXPECT_EQ(with.allocator.requested_size(live.back().first), bytes);
      } else if (dice < 980) {
        std::swap(live[below(live.size())], live.back());
        const bool used_elsewhere = below(20) == 0;
        for (World* world : {&with, &without}) {
          if (!used_elsewhere) break;
          void* ptr = world == &with ? live.back().first : live.back().second;
          const auto other = reinterpret_cast<Stream>(std::uintptr_t{9} << 12);
          world->launch(other, 100);
          world->allocator.record_stream(ptr, other);
        }
        with.allocator.deallocate(live.back().first);
        without.allocator.deallocate(live.back().second);
        live.pop_back();
      } else if (dice < 985) {
        for (World* world : {&with, &without}) world->pass(70);
      } else if (dice < 995) {
        expect_same(with.allocator.memory_stats(), without.allocator.memory_stats(), /*by_pool=*/*heap == 0);
        EXPECT_EQ(with.allocator.max_memory_allocated(), without.allocator.max_memory_allocated());
      } else if (dice < 998) {
        for (World* world : {&with, &without}) world->allocator.reset_peak_stats();
      } else {
        for (World* world : {&with, &without}) world->allocator.reset_accumulated_stats();
      }
      if (step % 500 == 0) {
        ASSERT_EQ(with.allocator.validate(), "") << step;
      }
    }
    expect_same(with.allocator.memory_stats(), without.allocator.memory_stats(), /*by_pool=*/*heap == 0);
  }
}

// Memory that waits for another stream's work leaves the statistics in empty_cache, after what the caches have done.
TEST(ThreadCaches, LeaveThePeaksAsTheyAreWhenFreesHaveWaited) {
  World with(kDevice, kCached);
  World without(kDevice);
  for (World* world : {&with, &without}) {
    const Stream other = world->device->new_stream();
    void* waiting = world->allocate(kGiB);
    world->launch(other);
    world->allocator.record_stream(waiting, other);
    world->allocator.deallocate(waiting);
    const std::vector<void*> blocks = allocate_many(*world, 40, 1000);
    world->allocator.empty_cache();
    free_all(*world, blocks);
  }
  expect_same(with.allocator.memory_stats(), without.allocator.memory_stats(), /*by_pool=*/true);
}

TEST(ThreadCaches, RefuseWhatIsNotLive) {
  World world(kDevice, kCached);
  void* ptr = world.allocate(3000);
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(after(ptr, 512)); }),
                  "lies inside the allocation of 3000 bytes");
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(ptr, 2999, 0, nullptr); }), "3000 bytes were asked for");
  EXPECT_EQ(world.allocated(), 3072u);
  world.allocator.deallocate(ptr);
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(ptr); }), "free");
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(ptr, 3000, 0, nullptr); }), "free");
  EXPECT_CONTAINS(refusal([&] { world.allocator.record_stream(ptr, nullptr); }), "free");
  EXPECT_CONTAINS(refusal([&] { world.allocator.requested_size(ptr); }), "free");
  EXPECT_EQ(world.allocator.device_of(ptr), -1);
  world.allocator.drain_thread_caches();
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(ptr); }), "free");
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(ThreadCaches, AreShownAsInactiveInSnapshots) {
  World world(kDevice, kCached);
  void* live = world.allocate(1500);
  world.allocator.deallocate(world.allocate(5000));
  std::size_t active = 0;
  for (const SegmentSnapshot& segment : world.allocator.snapshot().segments) {
    active += segment.active_size;
    std::size_t end = segment.address;
    for (const BlockSnapshot& block : segment.blocks) {
      EXPECT_EQ(block.address, end);
      end += block.size;
      if (block.address == address(live)) {
        EXPECT_EQ(block.state, BlockSnapshot::State::active_allocated);
        EXPECT_EQ(block.requested_size, 1500u);
      } else {
        EXPECT_EQ(block.state, BlockSnapshot::State::inactive);
      }
    }
  }
  EXPECT_EQ(active, 1536u);
  world.allocator.deallocate(live);
}

// --- blocks that go past them ---------------------------------------------------------------------------------------

TEST(ThreadCaches, AreKeptFromBlocksThatOtherStreamsUse) {
  World world(kDevice, kCached);
  const Stream stream = world.device->new_stream();
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(1000, stream);
  world.launch(other);
  world.allocator.record_stream(ptr, other);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.active(), 1024u);  // it waits
  for (int i = 0; i < 100; ++i) EXPECT_NE(world.allocate(1000, stream), ptr);
  world.pass(2000);
  EXPECT_EQ(world.allocate(1000, stream), ptr);  // when the work is done, it serves again
  EXPECT_EQ(world.active(), world.allocated());

  void* freed_elsewhere = world.allocate(2000, stream);
  world.launch(other);
  world.allocator.deallocate(freed_elsewhere, 2000, 0, other);  // as good as record_stream
  EXPECT_EQ(world.allocator.memory_stats().active.all.current - world.allocator.memory_stats().allocation.all.current,
            1);
}

TEST(ThreadCaches, AreKeptFromPrivatePools) {
  World world(kDevice, kCached);
  world.allocator.deallocate(world.allocate(1000));
  const PoolId pool{0, 1};
  std::vector<void*> in_pool;
  void* outside = world.allocate(1000);
  {
    const InPool redirected(world.allocator, pool);
    in_pool = allocate_many(world, 10, 1000);
    EXPECT_TRUE(world.allocator.pool_has_exactly(0, pool, in_pool));
    world.allocator.deallocate(outside);
    world.allocator.deallocate(in_pool.back());
    in_pool.pop_back();
    EXPECT_TRUE(world.allocator.pool_has_exactly(0, pool, in_pool));
  }
  free_all(world, in_pool);
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(ThreadCaches, AreKeptFromWhatACaptureUses) {
  World world(kDevice, kCached);
  const Stream stream = world.device->new_stream();
  void* before = world.allocate(1000, stream);
  const PoolId pool{1, 0};
  {
    const Capture capture(world, stream, pool);
    void* captured = world.allocate(1000, stream);
    EXPECT_TRUE(world.allocator.pool_has_exactly(0, pool, {captured}));
    world.allocator.deallocate(captured);
    world.allocator.deallocate(before);
  }
  EXPECT_EQ(world.allocated(), 0u);
  world.allocator.release_pool(0, pool);
}

TEST(ThreadCaches, HideNothingFromHistory) {
  World world(kDevice, kCached);
  void* before = world.allocate(1000);
  world.allocator.record_history({.max_entries = 50});
  void* during = world.allocate(1000);
  world.allocator.deallocate(before);
  std::vector<Change::Action> actions;
  const auto traces = world.allocator.snapshot().device_traces;
  for (const Change& change : traces.at(0)) actions.push_back(change.action);
  using Action = Change::Action;
  EXPECT_EQ(actions, (std::vector<Action>{Action::alloc, Action::free_requested, Action::free_completed}));
  world.allocator.record_history({.enabled = false});
  world.allocator.deallocate(during);
  world.allocator.deallocate(world.allocate(1000));
  EXPECT_GT(cached_bytes(world.allocator), 0u);
}

TEST(ThreadCaches, AreBesideCachingThatIsOff) {
  World world(kDevice, kCached);
  void* cached = world.allocate(1000);
  world.allocator.set_caching_enabled(false);
  void* uncached = world.allocate(1000);
  EXPECT_EQ(world.count(DeviceCall::malloc), 2u);
  world.allocator.deallocate(uncached);
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  world.allocator.deallocate(cached);
  world.allocator.set_caching_enabled(true);
}

// --- bounds, and going back -----------------------------------------------------------------------------------------

// Frees of all sizes that are cached.
void fill_cache(World& world) {
  for (std::size_t bytes = 512; bytes <= 64 * kKiB; bytes += 512) free_all(world, allocate_many(world, 200, bytes));
}

TEST(ThreadCaches, HoldAMebibyteAThread) {
  constexpr auto kMost = static_cast<std::size_t>(ThreadCaches::kMostThreadBytes);
  World world(kDevice, kCached);
  world.allocate(32 * kGiB);  // of which they may have a 4096th
  fill_cache(world);
  EXPECT_LE(cached_bytes(world.allocator), kMost);
  EXPECT_GT(cached_bytes(world.allocator), kMost / 2);
  world.allocator.drain_thread_caches();
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
}

// Blocks that a lone thread leaves in a depot would not be fetched.
TEST(ThreadCaches, HoldMoreForEachOtherWhereThereAreSeveral) {
  constexpr auto kMost = static_cast<std::size_t>(ThreadCaches::kMostThreadBytes);
  World world(kDevice, kCached);
  world.allocate(32 * kGiB);
  Worker other;
  other.run([&] { world.allocator.deallocate(world.allocate(512)); });
  fill_cache(world);
  EXPECT_LE(cached_bytes(world.allocator), kMost + 4 * kMiB);
  EXPECT_GT(cached_bytes(world.allocator), kMost + kMiB);
}

TEST(ThreadCaches, OfAStreamThatEndsAreEmptiedWithTheirDepot) {
  constexpr auto kMost = static_cast<std::size_t>(ThreadCaches::kMostThreadBytes);
  World world(kDevice, kCached);
  const Stream ending = world.device->new_stream();
  world.allocate(32 * kGiB);
  Worker other;
  other.run([&] { world.allocator.deallocate(world.allocate(512)); });
  const std::size_t before = cached_bytes(world.allocator);
  free_all(world, allocate_many(world, 4000, 1024, ending));
  EXPECT_GT(cached_bytes(world.allocator), before + kMost);
  world.allocator.stream_ends(ending);
  EXPECT_LE(cached_bytes(world.allocator), before);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(ThreadCaches, ShareALittleOfWhatIsHeld) {
  World world(kDevice, kCached);
  world.allocate(16 * kGiB);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < 8; ++i) workers.push_back(std::make_unique<Worker>());
  for (auto& worker : workers) {
    worker->run([&] { free_all(world, allocate_many(world, 4000, 1024)); });
    EXPECT_LE(cached_bytes(world.allocator), world.reserved() / 4096);
  }
  EXPECT_GT(cached_bytes(world.allocator), world.reserved() / 32768);
}

// A rare size takes no more than one block; one that is wanted again and again is fetched by the batch.
TEST(ThreadCaches, FetchMoreTheMoreIsWanted) {
  World world(kDevice, kCached);
  void* rare = world.allocate(5000);
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
  allocate_many(world, 200, 1024);
  EXPECT_GT(cached_bytes(world.allocator), 0u);
  EXPECT_LE(cached_bytes(world.allocator), 64 * 1024u);
  world.allocator.deallocate(rare);
}

TEST(ThreadCaches, GoBackWithTheirThread) {
  World world(kDevice, kCached);
  on_another_thread([&] {
    free_all(world, allocate_many(world, 500, 1024));
    EXPECT_GT(cached_bytes(world.allocator), 0u);
  });
  world.allocator.empty_cache();  // of the depots, too
  EXPECT_EQ(world.reserved(), 0u);
  on_another_thread([&] { world.allocator.deallocate(world.allocate(1024)); });  // its memory serves another
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
}

// Freed when the thread's own cache has gone already: a thread's objects go in reverse order of their making.
TEST(ThreadCaches, TakeNothingFromThreadsThatEnd) {
  World world(kDevice, kCached);
  on_another_thread([&] {
    static thread_local struct Last {
      World* world = nullptr;
      void* ptr = nullptr;
      ~Last() {
        world->allocator.deallocate(ptr);
        world->allocator.deallocate(world->allocate(1024));
      }
    } last;
    last.world = &world;
    last.ptr = world.allocate(1024);
  });
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
}

TEST(ThreadCaches, OfThreadsAtRestAreEmptiedByEmptyCache) {
  World world(kDevice, kCached);
  Worker resting;
  resting.run([&] { free_all(world, allocate_many(world, 100, 1024)); });
  EXPECT_GT(cached_bytes(world.allocator), 0u);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  resting.run([&] { free_all(world, allocate_many(world, 2, 1024)); });  // and serve on
  EXPECT_GT(cached_bytes(world.allocator), 0u);
}

// Most memory is small blocks that a resting thread has freed: its cache must not stand in the way.
TEST(ThreadCaches, OfThreadsAtRestAreEmptiedWhenMemoryRunsOut) {
  for (const char* heap : {"thread_cache:True", "heap:pages"}) {
    World world(4 * kGiB, heap);
    Worker resting;
    resting.run([&] {
      std::vector<void*> blocks = allocate_many(world, 3 * kGiB / (64 * kKiB), 64 * kKiB);
      free_all(world, blocks);
    });
    EXPECT_GT(cached_bytes(world.allocator), 0u);
    void* everything = world.allocate(4 * kGiB);
    EXPECT_EQ(world.reserved(), 4 * kGiB) << heap;
    world.allocator.deallocate(everything);
  }
}

// Also when they have been drained just before: no request waits for the device, or fails, for what they hold.
TEST(ThreadCaches, AreEmptiedBeforeARequestWouldFailHoweverOften) {
  World world(4 * kGiB, "heap:pages");
  Worker resting;
  const auto fill_cache_of_resting = [&] {
    resting.run([&] { free_all(world, allocate_many(world, 40, 64 * kKiB)); });
    EXPECT_GT(cached_bytes(world.allocator), 0u);
  };
  world.allocator.deallocate(world.allocate(1024));  // so that there are two caches
  fill_cache_of_resting();
  void* some = world.allocate(kGiB);
  EXPECT_EQ(cached_bytes(world.allocator), 0u);
  fill_cache_of_resting();
  world.allocator.deallocate(some);
  world.allocator.deallocate(world.allocate(4 * kGiB));
  EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 0);
}

// A call of a device that runs code while it waits for its work.
class BusyDevice;
struct Synchronizing {
  explicit Synchronizing(const BusyDevice&) {}
};
class BusyDevice : public ForwardingDevice<BusyDevice, Synchronizing> {
 public:
  using ForwardingDevice::ForwardingDevice;
  void synchronize() override {
    if (const std::function<void()> work = std::exchange(meanwhile, nullptr)) work();
    ForwardingDevice::synchronize();
  }
  std::function<void()> meanwhile;
};

// Another thread frees everything while a request that is out of memory waits for the device, and rests then.
TEST(ThreadCaches, AreEmptiedAgainAfterTheLastWait) {
  constexpr std::size_t kBytes = kGiB;
  const auto simulated = std::make_shared<SimulatedDevice>(World::config_of(kBytes));
  const auto device = std::make_shared<BusyDevice>(simulated);
  CachingAllocator allocator({device}, parse_options("heap:pages"));
  Worker resting;
  std::vector<void*> blocks(kBytes / 4 * 3 / (64 * kKiB));
  for (void*& block : blocks) block = allocator.allocate(64 * kKiB);
  device->meanwhile = [&] {
    resting.run([&] {
      for (void* block : blocks) allocator.deallocate(block);
    });
  };
  void* everything = allocator.allocate(kBytes);
  EXPECT_FALSE(device->meanwhile);
  allocator.deallocate(everything);
  EXPECT_EQ(allocator.validate(), "");
}

TEST(ThreadCaches, OutliveAndAreOutlivedByTheirAllocator) {
  Worker worker;
  for (int round = 0; round < 3; ++round) {
    World world(kDevice, kCached);
    worker.run([&] { free_all(world, allocate_many(world, 100, 1024)); });
    on_another_thread([&] { free_all(world, allocate_many(world, 100, 1024)); });
    EXPECT_EQ(world.allocated(), 0u);
  }
}

// --- several threads ------------------------------------------------------------------------------------------------

TEST(ThreadCaches, PassBlocksFromThreadsThatFreeToThreadsThatAllocate) {
  World world(kDevice, kCached);
  Worker consumer;
  std::size_t reserved_at_first = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<void*> blocks = allocate_many(world, 300, 1024);
    consumer.run([&] { free_all(world, blocks); });
    if (round == 10) reserved_at_first = world.reserved();
  }
  EXPECT_EQ(world.reserved(), reserved_at_first);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.allocator.memory_stats().allocation.all.freed, 200 * 300);
  EXPECT_LE(world.allocator.max_memory_allocated(), 300u * 1024 + 2 * 2 * kMiB);  // the bound for two threads
  EXPECT_GE(world.allocator.max_memory_allocated(), 300u * 1024);
}

// Each of a size of its own, which comes back to it through the depot: so the only visit to the heap that gathers the
// others' counts is that of the freeing thread, when it has freed a MiB.
TEST(ThreadCaches, KeepPeaksNearTheTruthWhereOneThreadFreesWhatSeveralAllocate) {
  constexpr std::size_t kEach = 512 * kKiB;
  constexpr std::size_t kSizes[] = {1024, 1536, 2048, 2560};
  World world(256 * kGiB, kCached);
  const std::size_t held = 128 * kGiB;  // of which a thread may cache a MiB
  world.allocate(held);
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) workers.push_back(std::make_unique<Worker>());
  Worker consumer;
  std::size_t peak = 0;  // after the turn of the last worker
  const auto play_rounds = [&] {
    for (int round = 0; round < 20; ++round) {
      std::vector<void*> blocks;
      std::size_t live = held;
      for (std::size_t i = 0; i < std::size(kSizes); ++i) {
        workers[i]->run([&] {
          for (std::size_t left = kEach / kSizes[i]; left > 0; --left) blocks.push_back(world.allocate(kSizes[i]));
        });
        live += kEach / kSizes[i] * kSizes[i];
      }
      peak = live;
      consumer.run([&] { free_all(world, blocks); });
    }
  };
  play_rounds();  // from then on the depot has what they need
  world.allocator.reset_peak_stats();
  play_rounds();
  // A cache looks at its sums when a stack is full.
  constexpr auto kBound = static_cast<std::size_t>(ThreadCaches::kMostUngatheredBytes + SizeClass::kMostBatchBytes);
  EXPECT_GE(world.allocator.max_memory_allocated(), peak);
  EXPECT_LE(world.allocator.max_memory_allocated(), peak + kBound);
}

// Blocks that a thread lacks are taken from the other's cache; but not again and again.
TEST(ThreadCaches, GrowOnceWhereThreadsKeepTakingFromEachOther) {
  World world(kDevice, kCached);
  Worker other;
  std::vector<void*> all = allocate_many(world, 2 * kMiB / kKiB, kKiB);
  const auto pass_one = [&] {  // from the other's cache, which has the only one
    void* const last = all.back();
    other.run([&] { world.allocator.deallocate(last); });
    all.back() = world.allocate(kKiB);
  };
  const auto pass_many = [&](std::uint32_t times) {
    for (std::uint32_t i = 0; i < times; ++i) pass_one();
  };
  pass_many(ThreadCaches::kMostDrainsInARow);
  EXPECT_EQ(world.reserved(), 2 * kMiB);
  void* const large = world.allocate(100 * kKiB + kMiB);
  const std::size_t before = world.reserved();
  for (std::uint64_t i = 0; i < ThreadCaches::kVisitsBetweenDrains; ++i)
    world.allocator.deallocate(world.allocate(kMiB + kKiB));  // each two visits to the heap
  pass_many(ThreadCaches::kMostDrainsInARow);
  EXPECT_EQ(world.reserved(), before);
  pass_one();
  EXPECT_EQ(world.reserved(), before + 2 * kMiB);
  pass_many(100);
  EXPECT_EQ(world.reserved(), before + 2 * kMiB);
  world.allocator.deallocate(large);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(ThreadCaches, StandBeingRecalledAllTheTime) {
  World world(kDevice, kCached);
  world.allocate(4 * kGiB);
  std::atomic<bool> done{false};
  std::thread recaller([&] {
    for (int i = 0; !done; ++i) {
      world.allocator.memory_stats();
      if (i % 50 == 0) {
        EXPECT_EQ(world.allocator.validate(), "");
      }
    }
  });
  std::vector<std::thread> workers;
  for (int worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
      for (std::size_t round = 0; round < 300; ++round) {
        const std::size_t bytes = 1024 * (1 + (round + static_cast<std::size_t>(worker)) % 3);
        free_all(world, allocate_many(world, 50 + round % 150, bytes));
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  done = true;
  recaller.join();
  EXPECT_EQ(world.allocated(), 4 * kGiB);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 4 * kGiB);
}

// The fence orders earlier stores: a thread that is not turned away must be seen in its cache.
TEST(ThreadCaches, AreRecalledBeforeTheFence) {
  static ThreadCaches* caches = nullptr;  // a hook is a function
  static int fences = 0;
  static std::vector<bool> were_recalled;
  Mutex mutex;
  ThreadCaches some(mutex, {[](Block&, const Held&) {}, [](const Held&) {}});
  caches = &some;
  std::vector<std::unique_ptr<Worker>> workers;
  const auto make_a_cache = [&] {
    const DeviceLock lock(mutex);
    some.of_this_thread(StreamKey::of_handle(nullptr), lock);
  };
  for (int i = 0; i < 3; ++i) workers.push_back(std::make_unique<Worker>());
  for (const auto& worker : workers) worker->run(make_a_cache);
  set_heavy_fence_hook(+[]() CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
    ++fences;
    were_recalled.clear();
    caches->for_each([](const ThreadCache& cache) { were_recalled.push_back(cache.is_recalled()); });
  });
  {
    const DeviceLock lock(mutex);
    const ThreadCaches::Recall recall(&some);
  }
  EXPECT_EQ(fences, 1);
  EXPECT_EQ(were_recalled, (std::vector<bool>{true, true, true}));
  make_a_cache();  // of the thread that recalls, which need not keep itself out
  fences = 0;
  {
    const DeviceLock lock(mutex);
    const ThreadCaches::Recall recall(&some);
  }
  set_heavy_fence_hook(nullptr);
  EXPECT_EQ(fences, 1);
  EXPECT_EQ(were_recalled, (std::vector<bool>{true, true, true, false}));
  some.forget_threads();
}

TEST(ThreadCaches, ServeSeveralAllocatorsOnOneThread) {
  World a(kDevice, kCached);
  World b(kDevice, kCached);
  std::vector<std::pair<World*, void*>> live;
  for (int i = 0; i < 1000; ++i) {
    World& world = i % 2 == 0 ? a : b;
    const auto stream = reinterpret_cast<Stream>(static_cast<std::uintptr_t>(i % 3) << 12);
    live.emplace_back(&world, world.allocate(1000, stream));
  }
  for (const auto& [world, ptr] : live) world->allocator.deallocate(ptr);
  EXPECT_EQ(a.allocated() + b.allocated(), 0u);
  EXPECT_GT(cached_bytes(a.allocator), 0u);
  EXPECT_GT(cached_bytes(b.allocator), 0u);
}

}  // namespace
}  // namespace cachalot
