#include "cachalot/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/kernels/gang.h"

namespace cachalot {
namespace {

// A pool of the simulated device, and a copy of it in host memory, where threads are to it what warps are on a GPU.
class Pool {
 public:
  Pool(std::size_t slots, std::size_t slot_bytes, Stream stream = nullptr)
      : pool(world.allocator, slots, slot_bytes, stream), bytes_(pool.bytes()) {
    base_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, round_up(bytes_, kAlignment))));
    world.device->copy_to_host(base_.get(), begin(), bytes_);
    view = pool.view();
    move(view.control);
    move(view.words);
    move(view.slots);
  }
  SlotPoolCounters counters() {
    world.device->copy_from_host(begin(), base_.get(), bytes_);
    return pool.counters();
  }

  World world;
  SlotPool pool;
  SlotPoolView view;  // of the copy

 private:
  static constexpr std::size_t kAlignment = 512;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  Address begin() const { return address(pool.view().control); }
  template <typename T>
  void move(T*& pointer) {
    pointer = reinterpret_cast<T*>(base_.get() + (address(pointer) - begin()));
  }

  const std::size_t bytes_;
  std::unique_ptr<std::byte, Free> base_;
};

std::vector<void*> take_all(const SlotPoolView& view) {
  std::vector<void*> taken;
  while (void* const slot = view.take()) taken.push_back(slot);
  return taken;
}

TEST(SlotPool, IsOneAllocationThatGoesWithIt) {
  World world;
  {
    const SlotPool pool(world.allocator, 1000, 40, world.device->new_stream());
    EXPECT_EQ(world.allocator.requested_size(pool.view().control), pool.bytes());
    EXPECT_GE(pool.bytes(), 1000u * 48);
    EXPECT_LE(pool.bytes(), 1000u * 48 + 1000 / 8 + sizeof(SlotPoolControl) + 264);
    EXPECT_EQ(pool.counters().live, 0u);
  }
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(SlotPool, EverySlotIsHandedOutOnceAndThenNull) {
  for (const std::size_t slots : {1u, 63u, 64u, 65u, 1000u}) {
    Pool pool(slots, 8);
    const std::vector<void*> taken = take_all(pool.view);
    EXPECT_EQ(taken.size(), slots);
    EXPECT_EQ(std::set<void*>(taken.begin(), taken.end()).size(), slots);
    const SlotPoolCounters counters = pool.counters();
    EXPECT_EQ(counters.taken, slots);
    EXPECT_EQ(counters.live, slots);
    EXPECT_EQ(counters.high_water, slots);
    EXPECT_EQ(counters.exhausted, 1u);
  }
}

TEST(SlotPool, SlotsAreAlignedApartAndInThePool) {
  Pool pool(130, 33);
  std::vector<void*> taken = take_all(pool.view);
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(taken.front(), pool.view.slots);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(address(taken[i]) % kSlotAlignment, 0u);
    EXPECT_EQ(address(taken[i]) - address(taken[0]), i * 48);
  }
  EXPECT_LE(address(taken.back()) + 33, address(pool.view.control) + pool.pool.bytes());
}

TEST(SlotPool, WhatIsGivenBackCanBeTakenAgain) {
  Pool pool(100, 16);
  std::vector<void*> taken = take_all(pool.view);
  for (const std::size_t i : {99u, 0u, 64u}) pool.view.give(taken[i]);
  const std::vector<void*> again = take_all(pool.view);
  EXPECT_EQ(std::set<void*>(again.begin(), again.end()), (std::set<void*>{taken[99], taken[0], taken[64]}));
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.taken, 103u);
  EXPECT_EQ(counters.given, 3u);
  EXPECT_EQ(counters.high_water, 100u);
}

TEST(SlotPool, TheHighWaterMarkIsTheMostThatWereOutAtOnce) {
  Pool pool(100, 16);
  for (int i = 0; i < 10; ++i) {
    void* const one = pool.view.take();
    void* const other = pool.view.take();
    pool.view.give(one);
    pool.view.give(other);
  }
  EXPECT_EQ(pool.counters().high_water, 2u);
}

TEST(SlotPool, BadGivesAreCountedAndChangeNothing) {
  Pool pool(70, 48);
  void* const slot = pool.view.take();
  void* const other = pool.view.take();
  pool.view.give(other);
  const std::vector<void*> bad = {nullptr,
                                  other,                            // given already
                                  after(slot, 16),                  // inside a slot
                                  after(pool.view.slots, 70 * 48),  // behind the last
                                  pool.view.slots - 48,             // before the first
                                  reinterpret_cast<void*>(~std::uintptr_t{0})};
  for (void* const pointer : bad) pool.view.give(pointer);
  EXPECT_EQ(pool.counters().bad_gives, bad.size());
  EXPECT_EQ(pool.counters().live, 1u);
  EXPECT_EQ(take_all(pool.view).size(), 69u);
}

// Each slot has one owner at a time, which finds its own writes in it.
TEST(SlotPool, ThreadsNeverShareASlotAndTheBooksBalance) {
  constexpr std::size_t kSlots = 300;
  constexpr unsigned kThreads = 4;
  Pool pool(kSlots, 16);
  const SlotPoolView view = pool.view;
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> shared{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&refused, &shared, view, t] {
        std::mt19937 random(t);
        std::vector<std::uint64_t*> mine;
        std::uint64_t tag = t;
        const auto give = [&] {
          std::swap(mine[random() % mine.size()], mine.back());
          if (mine.back()[0] != mine.back()[1] || mine.back()[0] % kThreads != t) ++shared;
          view.give(mine.back());
          mine.pop_back();
        };
        for (int i = 0; i < 20'000; ++i) {
          if (random() % 100 < 60) {
            auto* const slot = static_cast<std::uint64_t*>(view.take());
            if (slot == nullptr) {
              ++refused;
              continue;
            }
            slot[0] = slot[1] = tag += kThreads;
            mine.push_back(slot);
          } else if (!mine.empty()) {
            give();
          }
        }
        while (!mine.empty()) give();
      });
    }
  }
  EXPECT_EQ(shared, 0u);
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.live, 0u);
  EXPECT_EQ(counters.taken, counters.given);
  EXPECT_EQ(counters.exhausted, refused);
  EXPECT_EQ(counters.bad_gives, 0u);
  EXPECT_LE(counters.high_water, kSlots);
  EXPECT_GT(counters.exhausted, 0u);
  EXPECT_EQ(take_all(view).size(), kSlots);
}

TEST(SlotPool, ASlotGivenTwiceAtTheSameMomentIsGivenOnce) {
  constexpr int kRounds = 500;
  Pool pool(1, 16);
  const SlotPoolView view = pool.view;
  for (int i = 0; i < kRounds; ++i) {
    void* const slot = view.take();
    ASSERT_NE(slot, nullptr);
    std::jthread other([view, slot] { view.give(slot); });
    view.give(slot);
  }
  EXPECT_EQ(pool.counters().given, static_cast<std::uint64_t>(kRounds));
  EXPECT_EQ(pool.counters().bad_gives, static_cast<std::uint64_t>(kRounds));
}

// ---- Groups, as warps are ------------------------------------------------------------------------------------------

// Returns the slots that the members of a gang get.
std::vector<void*> take_together(const SlotPoolView& view, unsigned members, std::uint32_t start) {
  std::vector<void*> slots(members);
  Gang::run(members, start, [&](const Gang& member) { slots[member.rank()] = view.take(member); });
  return slots;
}

TEST(SlotPoolGroups, AGroupIsServedFromOneWordByOneAtomic) {
  Pool pool(1000, 16);
  std::vector<void*> slots = take_together(pool.view, 8, 0x80000000u);
  for (unsigned i = 1; i < slots.size(); ++i) EXPECT_EQ(address(slots[i]), address(slots[i - 1]) + 16);
  EXPECT_EQ(std::count_if(pool.view.words, pool.view.words + 15, [](auto word) { return word != 0; }), 1);
  EXPECT_EQ(pool.counters().high_water, 8u);
}

TEST(SlotPoolGroups, AGroupGathersFreeSlotsFromSeveralWords) {
  Pool pool(200, 16);
  std::vector<void*> taken = take_all(pool.view);
  std::set<void*> free;
  for (const std::size_t i : {3u, 60u, 70u, 130u, 131u, 190u, 199u}) free.insert(taken[i]);
  for (void* const slot : free) pool.view.give(slot);
  const std::vector<void*> slots = take_together(pool.view, 7, 0);
  EXPECT_EQ(std::set<void*>(slots.begin(), slots.end()), free);
}

TEST(SlotPoolGroups, WhereSlotsAreTooFewTheLastMembersGetNull) {
  Pool pool(5, 16);
  const std::vector<void*> slots = take_together(pool.view, 8, 0);
  EXPECT_EQ(std::count(slots.begin(), slots.begin() + 5, nullptr), 0);
  EXPECT_EQ(std::count(slots.begin() + 5, slots.end(), nullptr), 3);
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.live, 5u);
  EXPECT_EQ(counters.exhausted, 3u);
  EXPECT_EQ(counters.high_water, 5u);
}

TEST(SlotPoolGroups, AGroupGivesGoodAndBadPointersTogether) {
  Pool pool(200, 16);
  std::vector<void*> taken = take_all(pool.view);
  std::vector<void*> given(taken.begin(), taken.begin() + 4);
  given.insert(given.end(), {taken[100], taken[100], taken[150], nullptr});  // one of them twice
  Gang::run(8, 0, [&](const Gang& member) { pool.view.give(given[member.rank()], member); });
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.given, 6u);
  EXPECT_EQ(counters.bad_gives, 2u);
  EXPECT_EQ(take_all(pool.view).size(), 6u);
}

TEST(SlotPoolGroups, GroupsAndThreadsWorkSideBySide) {
  Pool pool(100, 16);
  const SlotPoolView view = pool.view;
  std::atomic<std::uint64_t> shared{0};
  const auto use = [&shared](void* slot, std::uint64_t tag) {
    auto* const words = static_cast<std::uint64_t*>(slot);
    words[0] = words[1] = tag;
    std::this_thread::yield();
    if (words[0] != tag || words[1] != tag) ++shared;
  };
  {
    std::jthread alone([&] {
      for (int i = 0; i < 2000; ++i) {
        if (void* const slot = view.take()) {
          use(slot, 1000);
          view.give(slot);
        }
      }
    });
    Gang::run(4, 0, [&](const Gang& member) {
      for (int i = 0; i < 500; ++i) {
        void* const slot = view.take(member);
        if (slot != nullptr) use(slot, member.rank());
        view.give(slot, member);
      }
    });
  }
  EXPECT_EQ(shared, 0u);
  EXPECT_EQ(pool.counters().live, 0u);
  EXPECT_EQ(pool.counters().bad_gives, 0u);
}

// ---- The host's side -----------------------------------------------------------------------------------------------

TEST(SlotPool, BadInputIsRefusedAndNothingIsAllocated) {
  World world;
  const auto refused = [&](std::size_t slots, std::size_t bytes, int device = 0) {
    return refusal([&] { SlotPool pool(world.allocator, slots, bytes, nullptr, device); });
  };
  EXPECT_EQ(refused(0, 16), "a slot pool of 0 slots: it must have at least one");
  EXPECT_EQ(refused(16, 0), "a slot pool with slots of 0 bytes: they must have at least one");
  EXPECT_EQ(refused(std::size_t{1} << 40, std::size_t{1} << 40),
            "a slot pool of 1099511627776 slots of 1099511627776 bytes: it may have at most 2^60 bytes");
  EXPECT_EQ(refused(1, ~std::size_t{0}),
            "a slot pool of 1 slots of 18446744073709551615 bytes: it may have at most 2^60 bytes");
  EXPECT_EQ(refused(16, 16, 1), "device 1 is not one of the 1 devices (0 to 0)");
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(SlotPool, APoolThatDoesNotFitIsOutOfMemory) {
  World world(64 * kMiB);
  out_of_memory([&] { SlotPool pool(world.allocator, 1000, kMiB); });
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(SlotPool, AnyFailureOfTheDeviceLeavesNothingBehind) {
  for (std::uint64_t nth = 1; nth <= 6;
       ++nth) {  // malloc, event_create, _record, _synchronize, _destroy, copy_from_host
    World world;
    world.device->set_faults({Fault{.nth = nth, .out_of_memory = false, .code = 700}});
    EXPECT_THROW(SlotPool(world.allocator, 100, 16), CudaError) << nth;
    EXPECT_EQ(world.allocated(), 0u) << nth;
    EXPECT_EQ(SlotPool(world.allocator, 100, 16).counters().live, 0u) << nth;
  }
}

TEST(SlotPool, CreationAndCountersWaitForTheWorkOfTheStream) {
  World world;
  const Stream stream = world.device->new_stream();
  const std::int64_t before = world.device->launch(stream, 1'000'000);
  const SlotPool pool(world.allocator, 100, 16, stream);
  EXPECT_GE(world.device->clock_ns(), before);
  const std::int64_t work = world.device->launch(stream, 1'000'000);
  pool.counters();
  EXPECT_GE(world.device->clock_ns(), work);
}

TEST(SlotPool, MemoryUsedOnAnotherStreamIsNotReusedBeforeThatIsDone) {
  World world;
  const Stream other = world.device->new_stream();
  {
    SlotPool pool(world.allocator, 100, 16);
    world.launch(other);
    pool.record_stream(other);
  }
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_GT(world.active(), 0u);
}

}  // namespace
}  // namespace cachalot
