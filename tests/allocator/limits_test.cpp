// Limits at run time: set_limit, set_soft_limit, the option `limit`.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

constexpr const char* kLimitedHeaps[] = {"heap:segments", "heap:pages", "heap:async", "heap:managed"};

MemoryLimit as_limit(const char* text) { return MemoryLimit::parse(text); }

TEST(Limit, RefusesGrowthBeforeTheDeviceIsAsked) {
  for (const char* heap : kLimitedHeaps) {
    World world(4 * kGiB, heap);
    world.allocator.set_limit(as_limit("100MiB"));
    void* const held = world.allocate(60 * kMiB);
    const auto asked_for_memory = [&] {
      return world.count(DeviceCall::malloc) + world.count(DeviceCall::create) + world.count(DeviceCall::malloc_async) +
             world.count(DeviceCall::malloc_managed);
    };
    const std::uint64_t asked = asked_for_memory();
    const std::string message = out_of_memory([&] { world.allocate(60 * kMiB); });
    EXPECT_CONTAINS(message, "100.00 MiB allowed by set_limit(\"100MiB\"); ");
    EXPECT_EQ(asked_for_memory(), asked) << heap;
    EXPECT_EQ(world.reserved(), 60 * kMiB) << heap;
    world.allocator.set_limit(as_limit("none"));
    world.allocator.deallocate(world.allocate(60 * kMiB));
    world.allocator.deallocate(held);
  }
}

TEST(Limit, OfThePartOfTheDeviceIsThatOfItsTotal) {
  World world(1000 * kMiB);
  world.allocator.set_limit(as_limit("10%"));
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 100 * kMiB);
  world.allocate(100 * kMiB);
  out_of_memory([&] { world.allocate(2 * kMiB); });
}

TEST(Limit, OfFreeMemoryCountsWhatIsHeld) {
  World world(1000 * kMiB);
  world.allocate(200 * kMiB);
  ASSERT_TRUE(world.device->take_for_driver(300 * kMiB));
  world.allocator.set_limit(as_limit("free-100MiB"));
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 600 * kMiB);
  world.allocate(400 * kMiB);
  out_of_memory([&] { world.allocate(2 * kMiB); });
}

TEST(Limit, AndTheFractionTheLowerOneHoldsAndIsNamed) {
  World world(1000 * kMiB);
  world.allocator.set_limit(as_limit("400MiB"));
  world.allocator.set_memory_fraction(0.5);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(600 * kMiB); }), "400.00 MiB allowed by set_limit(\"400MiB\"); ");
  world.allocator.set_memory_fraction(0.25);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(600 * kMiB); }),
                  "250.00 MiB allowed by set_memory_fraction(0.25); ");
  EXPECT_EQ(world.allocator.limit_figures().set_by, "set_memory_fraction(0.25)");
  world.allocator.configure("per_process_memory_fraction:0.125");
  EXPECT_EQ(world.allocator.limit_figures().set_by, "per_process_memory_fraction:0.125");
  world.allocator.set_memory_fraction(1);
  EXPECT_EQ(world.allocator.limit_figures().set_by, "set_limit(\"400MiB\")") << "lifting one leaves the other";
  world.allocator.set_limit(as_limit("none"));
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, std::nullopt);
  EXPECT_EQ(world.allocator.limit_figures().set_by, "");
}

TEST(Limit, MayBeAnOption) {
  World world(1000 * kMiB, "limit:10%");
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(102 * kMiB); }), "100.00 MiB allowed by limit:10%; ");
  world.allocator.configure("limit:200MiB");
  world.allocator.deallocate(world.allocate(102 * kMiB));
  world.allocator.set_limit(as_limit("50MiB"));
  world.allocator.configure("page_size_mb:4");
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 50 * kMiB) << "options that do not name it leave it";
  world.allocator.configure("limit:200MiB");
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 200 * kMiB);
  world.allocator.configure("limit:none");
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, std::nullopt);
}

TEST(Limit, OfTheOptionForFreeMemoryIsMeasuredAtTheFirstNeed) {
  World world(1000 * kMiB, "limit:free-100MiB");
  EXPECT_EQ(world.count(DeviceCall::memory_info), 0u) << "a GPU that is not used gets no context";
  ASSERT_TRUE(world.device->take_for_driver(300 * kMiB));
  world.allocate(100 * kMiB);
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 600 * kMiB);
  const std::uint64_t measured = world.count(DeviceCall::memory_info);
  world.allocate(100 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::memory_info), measured) << "once";
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(500 * kMiB); }), "allowed by limit:free-100MiB; ");
}

TEST(Limit, BelowWhatIsHeldGivesCachedMemoryBackAndRefusesGrowthUntilLessIsHeld) {
  for (const char* heap : kLimitedHeaps) {
    World world(4 * kGiB, heap);
    void* const live = world.allocate(100 * kMiB);
    void* const cached = world.allocate(64 * kMiB);
    world.allocator.deallocate(cached);
    world.allocator.set_limit(as_limit("80MiB"));
    EXPECT_EQ(world.reserved(), 100 * kMiB) << heap;
    EXPECT_EQ(world.count(DeviceCall::synchronize), 0u) << heap;
    out_of_memory([&] { world.allocate(2 * kMiB); });
    world.allocator.deallocate(live);
    world.allocator.deallocate(world.allocate(70 * kMiB));
    EXPECT_LE(world.reserved(), 100 * kMiB) << heap;
  }
}

// The page heap's work that needs no new memory goes on above the limit.
TEST(Limit, BelowWhatIsHeldLeavesTheUseOfWhatIsHeld) {
  World world(4 * kGiB, "heap:pages");
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(world.allocate(4 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) world.allocator.deallocate(blocks[i]);
  world.allocator.set_limit(as_limit("8MiB"));
  const std::size_t held = world.reserved();
  EXPECT_NO_THROW(world.allocate(held - world.allocated())) << "scattered pages are brought together";
  EXPECT_EQ(world.reserved(), held);
}

TEST(Limit, IsKeptWithGarbageCollectionUnderIt) {
  World world(4 * kGiB, "garbage_collection_threshold:0.5,limit:200MiB");
  for (std::size_t mib = 20; mib < 180; mib += 10) world.allocator.deallocate(world.allocate(mib * kMiB));
  EXPECT_LE(world.reserved(), 200 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0) << "what is cached gives way";
}

TEST(Limit, ThatCannotBeMeasuredStaysAsItWas) {
  World world(1000 * kMiB);
  world.allocator.set_limit(as_limit("100MiB"));
  world.device->set_faults({{.call = DeviceCall::memory_info, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(world.allocator.set_limit(as_limit("free")), CudaError);
  EXPECT_EQ(world.allocator.limit_figures().limit_bytes, 100 * kMiB);
}

// --- the soft limit -----------------------------------------------------------------------------------------------------

TEST(SoftLimit, IsToldOncePerCrossing) {
  for (const char* heap : kLimitedHeaps) {
    World world(4 * kGiB, heap);
    std::vector<SoftLimitReport> reports;
    world.allocator.set_soft_limit(as_limit("100MiB"),
                                   [&](const SoftLimitReport& report) { reports.push_back(report); });
    world.allocate(100 * kMiB);
    EXPECT_TRUE(reports.empty()) << heap;
    void* const second = world.allocate(20 * kMiB);
    ASSERT_EQ(reports.size(), 1u) << heap;
    EXPECT_EQ(reports[0].device, 0);
    EXPECT_EQ(reports[0].held_bytes, 120 * kMiB);
    EXPECT_EQ(reports[0].soft_limit_bytes, 100 * kMiB);
    world.allocate(20 * kMiB);
    EXPECT_EQ(reports.size(), 1u) << "it is still above: " << heap;
    world.allocator.deallocate(second);
    world.allocator.empty_cache();
    world.allocate(20 * kMiB);
    EXPECT_EQ(reports.size(), 1u) << "it was never at or below: " << heap;
    world.allocator.set_soft_limit(as_limit("none"), nullptr);
    world.allocate(200 * kMiB);
    EXPECT_EQ(reports.size(), 1u) << heap;
  }
}

TEST(SoftLimit, IsToldAgainAfterHeldMemoryWasBelow) {
  World world;
  int told = 0;
  world.allocator.set_soft_limit(as_limit("100MiB"), [&](const SoftLimitReport&) { ++told; });
  for (int round = 1; round <= 3; ++round) {
    void* const ptr = world.allocate(120 * kMiB);
    EXPECT_EQ(told, round);
    world.allocator.deallocate(ptr);
    world.allocator.empty_cache();
  }
}

// With none of the locks held: another thread can use the allocator meanwhile.
TEST(SoftLimit, CallbackMayUseTheAllocatorAndSoMayOtherThreads) {
  for (const char* heap : kLimitedHeaps) {
    World world(4 * kGiB, heap);
    void* cached = world.allocate(90 * kMiB);
    std::size_t trimmed = 0;
    world.allocator.set_soft_limit(as_limit("100MiB"), [&](const SoftLimitReport& report) {
      on_another_thread([&] { world.allocator.deallocate(cached); });
      world.allocator.deallocate(world.allocate(kMiB));
      trimmed = world.allocator.trim(report.soft_limit_bytes / 2);
    });
    void* const ptr = world.allocate(60 * kMiB);
    EXPECT_EQ(world.allocator.device_of(ptr), 0) << "the memory that crossed is live: " << heap;
    EXPECT_GE(trimmed, 84 * kMiB) << heap;
    EXPECT_LE(world.reserved(), 66 * kMiB) << heap;
  }
}

TEST(SoftLimit, CallbackThatThrowsFreesTheMemory) {
  for (const char* options : {"", "heap:pages", "thread_cache:True"}) {
    for (const std::size_t bytes : {std::size_t{512}, 120 * kMiB}) {
      World world(4 * kGiB, options);
      world.allocator.set_soft_limit(as_limit("1MiB"),
                                     [](const SoftLimitReport&) { throw std::runtime_error("no more"); });
      EXPECT_EQ(message_of<std::runtime_error>([&] { world.allocate(bytes); }), "no more");
      EXPECT_EQ(world.allocated(), 0u) << options;
      world.allocator.deallocate(world.allocate(bytes));
    }
  }
}

TEST(SoftLimit, IsToldOnTheThreadThatCrossed) {
  World world;
  std::thread::id told_on;
  world.allocator.set_soft_limit(as_limit("100MiB"),
                                 [&](const SoftLimitReport&) { told_on = std::this_thread::get_id(); });
  std::thread::id other;
  on_another_thread([&] {
    other = std::this_thread::get_id();
    world.allocate(120 * kMiB);
  });
  EXPECT_EQ(told_on, other);
}

TEST(SoftLimit, IsToldOfAlignedMemoryAndOfMemoryThatWakes) {
  World world(4 * kGiB, "heap:pages");
  int told = 0;
  world.allocator.begin_tagged("weights");
  world.allocate(200 * kMiB);
  world.allocator.end_tagged("weights");
  world.allocator.release_physical("weights");
  world.allocator.set_soft_limit(as_limit("100MiB"), [&](const SoftLimitReport&) { ++told; });
  world.allocator.restore_physical("weights");
  EXPECT_EQ(told, 1);
  world.allocator.release_physical("weights");
  world.allocator.allocate(120 * kMiB, 0, nullptr, {.alignment = 2 * kMiB});
  EXPECT_EQ(told, 2);
}

TEST(SoftLimit, WithoutACallbackIsRefused) {
  World world;
  EXPECT_CONTAINS(refusal([&] { world.allocator.set_soft_limit(as_limit("80%"), nullptr); }), "80% has no callback");
  EXPECT_EQ(world.allocator.limit_figures().soft_limit_bytes, std::nullopt);
}

// --- over threads -------------------------------------------------------------------------------------------------------

// The device counts the memory taken from it by itself.
TEST(LimitOverThreads, IsNeverExceededAtAnyInstant) {
  for (const char* heap : kLimitedHeaps) {
    const std::uint64_t seed = seed_or(4711);
    SCOPED_TRACE(testing::Message() << heap << ", seed " << seed);
    World world(4 * kGiB, heap);
    constexpr std::size_t kLimit = 120 * kMiB;
    world.allocator.set_limit(MemoryLimit::of_bytes(kLimit));
    std::atomic<int> told{0}, refused{0};
    world.allocator.set_soft_limit(as_limit("80MiB"), [&](const SoftLimitReport& report) {
      ++told;
      world.allocator.trim(report.soft_limit_bytes / 2);
    });
    // Enough for one thread to reach the limit by itself, if the others run after it.
    const int operations = std::max(200, static_cast<int>(scaled(400)));
    const auto work = [&](unsigned number) {
      std::mt19937_64 random(seed + number);
      std::vector<void*> mine;
      const auto stream = reinterpret_cast<Stream>(std::uintptr_t{0x1000} * (number % 2));
      for (int i = 0; i < operations; ++i) {
        const auto dice = random() % 100;
        try {
          if (dice < 55) {
            mine.push_back(world.allocate(1 + random() % (dice < 20 ? 40 * kMiB : kMiB), stream));
          } else if (dice < 95 && !mine.empty()) {
            std::swap(mine[random() % mine.size()], mine.back());
            world.allocator.deallocate(mine.back());
            mine.pop_back();
          } else if (dice < 98) {
            world.allocator.trim(random() % kLimit);
          } else {
            world.allocator.reserve(random() % (20 * kMiB));
          }
        } catch (const OutOfMemory&) {
          ++refused;
          for (void* ptr : mine) world.allocator.deallocate(ptr);
          mine.clear();
        }
      }
      for (void* ptr : mine) world.allocator.deallocate(ptr);
    };
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; ++number) threads.emplace_back(work, number);
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(world.device->peak_used_bytes(), kLimit);
    EXPECT_GT(told, 0) << "the soft limit was crossed";
    EXPECT_GT(refused, 0) << "the limit was reached";
    EXPECT_EQ(world.allocated(), 0u);
  }
}

}  // namespace
}  // namespace cachalot
