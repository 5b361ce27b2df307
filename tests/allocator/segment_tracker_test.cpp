// Segment trackers: they know the memory that is held at every moment, whenever they are added.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/errors.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/allocator/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

// Keeps the parts of one device that a tracker receives, as ranges that are merged where they touch. A part that comes twice, or ends
// without having come, is a failed test.
class TrackedRanges final : public SegmentTracker {
 public:
  using Ranges = std::map<Address, Address>;  // begin to end

  void on_segment(const Change& change) noexcept override {
    using Action = Change::Action;
    const bool comes = change.action == Action::segment_alloc || change.action == Action::segment_map;
    EXPECT_TRUE(comes || change.action == Action::segment_free || change.action == Action::segment_unmap);
    EXPECT_NE(change.bytes, 0u);
    ++(comes ? came : ended);
    const Address end = change.address + change.bytes;
    comes ? add(change.address, end) : take(change.address, end);
  }
  const Ranges& ranges() const { return ranges_; }

  int came = 0;
  int ended = 0;

 private:
  void add(Address begin, Address end) {
    auto next = ranges_.lower_bound(begin);
    EXPECT_TRUE(next == ranges_.end() || end <= next->first) << "it came twice";
    if (next != ranges_.end() && next->first == end) {
      end = next->second;
      next = ranges_.erase(next);
    }
    if (next != ranges_.begin()) {
      const auto before = std::prev(next);
      EXPECT_LE(before->second, begin) << "it came twice";
      if (before->second == begin) {
        before->second = end;
        return;
      }
    }
    ranges_.emplace(begin, end);
  }
  void take(Address begin, Address end) {
    const auto next = ranges_.upper_bound(begin);
    ASSERT_NE(next, ranges_.begin()) << "it had not come";
    const auto whole = std::prev(next);
    const auto [from, to] = *whole;
    ASSERT_LE(end, to) << "it had not come";
    ranges_.erase(whole);
    if (from < begin) ranges_.emplace(from, begin);
    if (end < to) ranges_.emplace(end, to);
  }

  Ranges ranges_;
};

// The ranges of a snapshot, of memory that is awake, merged where they touch.
TrackedRanges::Ranges held_ranges(CachingAllocator& allocator) {
  TrackedRanges held;
  for (const SegmentSnapshot& segment : allocator.snapshot({}, /*include_traces=*/false).segments) {
    EXPECT_TRUE(segment.asleep_size == 0 || segment.asleep_size == segment.total_size);
    if (segment.asleep_size != 0) continue;
    Change change;
    change.action = Change::Action::segment_alloc;
    change.address = segment.address;
    change.bytes = segment.total_size;
    held.on_segment(change);
  }
  return held.ranges();
}

std::shared_ptr<TrackedRanges> added_to(CachingAllocator& allocator) {
  auto held = std::make_shared<TrackedRanges>();
  allocator.add_segment_tracker(held);
  return held;
}

class SegmentTrackers : public ::testing::TestWithParam<const char*> {
 protected:
  // One that is added now knows the same.
  void expect_exact(const TrackedRanges& tracked) {
    EXPECT_EQ(tracked.ranges(), held_ranges(allocator));
    const auto fresh = added_to(allocator);
    EXPECT_EQ(fresh->ranges(), tracked.ranges());
    EXPECT_EQ(fresh->ended, 0);
    allocator.remove_segment_tracker(fresh.get());
    EXPECT_EQ(allocator.validate(), "");
  }

  World world{4 * kGiB, GetParam()};
  CachingAllocator& allocator = world.allocator;
};
INSTANTIATE_TEST_SUITE_P(Heaps, SegmentTrackers,
                         ::testing::Values("heap:segments", "heap:pages", "heap:pages,page_size_mb:2", "heap:async",
                                           "heap:managed"));

TEST_P(SegmentTrackers, KnowWhatIsHeldBeforeAndAfterTheyAreAdded) {
  void* const before = world.allocate(30 * kMiB);
  void* const plain = allocator.allocate(5 * kMiB, 0, nullptr, {.plain = true});
  const auto held = added_to(allocator);
  EXPECT_GT(held->came, 0);
  expect_exact(*held);
  void* const after = world.allocate(50 * kMiB);
  void* const small = world.allocate(1000);
  expect_exact(*held);
  for (void* ptr : {before, plain, after, small}) allocator.deallocate(ptr);
  EXPECT_EQ(held->ended, 0) << "a cached segment is held";
  allocator.empty_cache();
  expect_exact(*held);
  EXPECT_EQ(held->ranges().empty(), world.reserved() == 0);
}

TEST_P(SegmentTrackers, AreNotCalledAfterTheyAreRemoved) {
  const auto held = added_to(allocator);
  void* const ptr = world.allocate(30 * kMiB);
  const int came = held->came;
  allocator.remove_segment_tracker(held.get());
  allocator.remove_segment_tracker(held.get());
  allocator.deallocate(ptr);
  allocator.empty_cache();
  EXPECT_EQ(held->came, came);
  EXPECT_EQ(held->ended, 0);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_P(SegmentTrackers, KnowWhatIsHeldThroughARandomProgram) {
  SCOPED_TRACE("seed 1");
  std::mt19937 random(1);
  const auto below = [&](std::size_t most) { return random() % most; };
  const auto held = added_to(allocator);
  std::vector<void*> live;
  for (int step = 0; step < 400; ++step) {
    if (live.empty() || below(5) < 3) {
      const AllocateOptions options{.plain = below(4) == 0};
      live.push_back(allocator.allocate(1 + below(below(2) == 0 ? 40 * kMiB : 100'000), 0, nullptr, options));
    } else {
      std::swap(live[below(live.size())], live.back());
      allocator.deallocate(live.back());
      live.pop_back();
    }
    if (below(40) == 0) allocator.trim(0);
    if (below(40) == 0) allocator.empty_cache();
    if (below(10) == 0) expect_exact(*held);
  }
  expect_exact(*held);
  for (void* ptr : live) allocator.deallocate(ptr);
}

TEST(SegmentTrackersOfPages, AreToldOfPagesThatSleepAndWake) {
  World world(4 * kGiB, "heap:pages");
  CachingAllocator& allocator = world.allocator;
  void* const awake = world.allocate(30 * kMiB);
  allocator.begin_tagged("weights");
  void* const asleep = world.allocate(80 * kMiB);
  allocator.end_tagged("weights");
  const auto held = added_to(allocator);
  allocator.release_physical("weights");
  EXPECT_GT(held->ended, 0);
  EXPECT_EQ(held->ranges(), held_ranges(allocator));
  const auto added_in_sleep = added_to(allocator);
  EXPECT_EQ(added_in_sleep->ranges(), held->ranges());
  allocator.restore_physical("weights");
  for (const auto& tracked : {held, added_in_sleep}) EXPECT_EQ(tracked->ranges(), held_ranges(allocator));
  for (void* ptr : {awake, asleep}) allocator.deallocate(ptr);
}

// Counts the parts that come, each after the device was asked for access.
class AccessibleParts final : public SegmentTracker {
 public:
  explicit AccessibleParts(SimulatedDevice& device) : device_(device), before_(accesses()) {}
  void on_segment(const Change& change) noexcept override {
    EXPECT_EQ(change.action, Change::Action::segment_map);
    EXPECT_GT(accesses(), before_);
    ++came;
  }

  int came = 0;

 private:
  std::uint64_t accesses() const { return device_.count(DeviceCall::set_access); }

  SimulatedDevice& device_;
  const std::uint64_t before_;
};

TEST(SegmentTrackersOfPages, AreToldOfPagesThatWakeOnceTheyAreAccessible) {
  World world(kGiB, "heap:pages,page_size_mb:2");
  CachingAllocator& allocator = world.allocator;
  allocator.begin_tagged("weights");
  void* const weights = world.allocate(12 * kMiB);
  allocator.end_tagged("weights");
  allocator.release_physical("weights");
  world.device->set_faults({{.call = DeviceCall::set_access, .out_of_memory = false, .code = 999}});
  const auto at_failure = added_to(allocator);
  EXPECT_THROW(allocator.restore_physical("weights"), CudaError);
  EXPECT_EQ(at_failure->came + at_failure->ended, 0);
  world.device->set_faults({});
  const auto parts = std::make_shared<AccessibleParts>(*world.device);
  allocator.add_segment_tracker(parts);
  allocator.restore_physical("weights");
  EXPECT_EQ(parts->came, 6);
  allocator.remove_segment_tracker(parts.get());
  allocator.deallocate(weights);
}

// Puts a tag of many handles to sleep, or wakes it, where one call of the device fails.
TEST(SegmentTrackersOfPages, KnowWhatIsAwakeWhenACallFailed) {
  int failures = 0;
  for (const DeviceCall call :
       {DeviceCall::unmap, DeviceCall::release, DeviceCall::create, DeviceCall::map, DeviceCall::set_access}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      SCOPED_TRACE(std::string(to_string(call)) + " " + std::to_string(nth));
      World world(kGiB, "heap:pages,page_size_mb:2");
      CachingAllocator& allocator = world.allocator;
      allocator.begin_tagged("weights");
      void* const weights = world.allocate(12 * kMiB);
      allocator.end_tagged("weights");
      const auto held = added_to(allocator);
      const auto attempt = [&](const auto& action) {
        try {
          action();
        } catch (const CudaError&) {
          ++failures;
        }
        EXPECT_EQ(added_to(allocator)->ranges(), held->ranges());
      };
      world.device->set_faults({{.call = call, .nth = nth, .out_of_memory = false, .code = 999}});
      attempt([&] { allocator.release_physical("weights"); });
      attempt([&] { allocator.restore_physical("weights"); });
      world.device->set_faults({});
      allocator.restore_physical("weights");
      EXPECT_EQ(held->ranges(), held_ranges(allocator));
      allocator.deallocate(weights);
    }
  }
  EXPECT_GT(failures, 5);
}

TEST(SegmentTrackersOfPages, KnowTheHeapBehindAGuard) {
  World world(kGiB, "heap:pages,guard:True");
  void* const before = world.allocate(100'000);
  const auto held = added_to(world.allocator);
  void* const after = world.allocate(10 * kMiB);
  EXPECT_EQ(held->ranges(), held_ranges(world.allocator));
  for (void* ptr : {before, after}) world.allocator.deallocate(ptr);
}

TEST(SegmentTrackersOfPages, AreToldOfPagesThatMove) {
  World world(kGiB, "heap:pages,page_size_mb:2");
  const auto held = added_to(world.allocator);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(world.allocate(4 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) world.allocator.deallocate(blocks[i]);
  const std::size_t reserved = world.reserved();
  world.allocate(16 * kMiB);
  ASSERT_EQ(world.reserved(), reserved) << "the pages of free blocks have moved";
  EXPECT_EQ(held->ended, 4);
  EXPECT_EQ(held->ranges(), held_ranges(world.allocator));
}

TEST(SegmentTrackersOfSeveralDevices, AreToldOfAll) {
  TwoDevices two;
  void* const first = two.allocator.allocate(30 * kMiB, 0);
  const auto held = added_to(two.allocator);
  void* const second = two.allocator.allocate(30 * kMiB, 1);
  EXPECT_EQ(held->came, 2);
  for (void* ptr : {first, second}) two.allocator.deallocate(ptr);
}

TEST(SegmentTrackersThatAreNull, AreRefused) {
  World world;
  EXPECT_CONTAINS(refusal([&] { world.allocator.add_segment_tracker(nullptr); }), "the tracker is null");
}

class SlowDevice;

// A pause before each call to the device, in which other threads run.
struct Pause {
  explicit Pause(const SlowDevice& /*device*/) { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
};

class SlowDevice final : public ForwardingDevice<SlowDevice, Pause> {
 public:
  using ForwardingDevice::ForwardingDevice;
};

// Threads allocate, free and empty the cache, while trackers come and go.
void allocate_and_empty(CachingAllocator& allocator, unsigned seed, int steps) {
  std::mt19937 random(seed);
  std::vector<void*> live;
  for (int step = 0; step < steps; ++step) {
    if (live.size() < 6) {
      const std::size_t bytes = 1 + random() % (24 * kMiB);
      live.push_back(allocator.allocate(bytes, 0, nullptr, {.plain = random() % 3 == 0}));
    } else {
      std::swap(live[random() % live.size()], live.back());
      allocator.deallocate(live.back());
      live.pop_back();
    }
    if (random() % 8 == 0) allocator.empty_cache();
  }
  while (live.size() > 2) {  // the others stay
    allocator.deallocate(live.back());
    live.pop_back();
  }
}

TEST_P(SegmentTrackers, ThreadsWhileTheyAreAddedAndRemovedMissNothing) {
  const auto slow = std::make_shared<SlowDevice>(world.device);
  CachingAllocator shared({slow}, parse_options(GetParam()));
  const int steps = static_cast<int>(scaled(400));
  std::vector<std::shared_ptr<TrackedRanges>> kept;
  std::atomic<int> running{3};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      allocate_and_empty(shared, seed, steps);
      --running;
    });
  }
  for (int added = 0; running != 0; ++added) {
    const auto held = added_to(shared);
    if (added % 8 == 0 && kept.size() < 20) {
      kept.push_back(held);
      continue;
    }
    shared.remove_segment_tracker(held.get());
    const int calls = held->came + held->ended;
    std::this_thread::yield();
    EXPECT_EQ(held->came + held->ended, calls) << "it was removed";
  }
  for (std::thread& thread : threads) thread.join();
  kept.push_back(added_to(shared));
  for (const auto& held : kept) EXPECT_EQ(held->ranges(), held_ranges(shared));
}

}  // namespace
}  // namespace cachalot
