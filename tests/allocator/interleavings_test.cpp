// The lock is never held across a call to the device, so another thread may do anything meanwhile. Here it does, at
// every single call of a scenario in turn: what a race does once in a million runs happens on purpose.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/allocator/forwarding_device.h"
#include "tests/allocator/testing.h"
#include "tests/reference/accounting.h"

namespace cachalot {
namespace {

class MeddlingDevice;

// The action around each call to the device.
class Meddling {
 public:
  explicit Meddling(const MeddlingDevice& device);
  ~Meddling() noexcept(false);
  Meddling(const Meddling&) = delete;
  Meddling& operator=(const Meddling&) = delete;

 private:
  const MeddlingDevice& device_;
};

// Before the n-th call to it from now on, or after it, lets another thread act, to its end.
class MeddlingDevice final : public ForwardingDevice<MeddlingDevice, Meddling> {
 public:
  using ForwardingDevice::ForwardingDevice;

  enum class When { before, after };
  void act_at(std::uint64_t nth, std::function<void()> action, When when = When::before) {
    calls_left_ = nth;
    action_ = std::move(action);
    when_ = when;
  }
  bool has_acted() const { return action_ == nullptr; }

  void at_call(When when) const {
    if (action_ == nullptr || when != when_ || --calls_left_ > 0) return;
    const std::function<void()> action = std::exchange(action_, nullptr);
    auto other = std::async(std::launch::async, action);
    if (other.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      std::fprintf(stderr, "the other thread waits for a lock that is held across a call to the device\n");
      std::abort();
    }
    other.get();
  }

 private:
  mutable std::uint64_t calls_left_ = 0;
  mutable std::function<void()> action_;
  When when_ = When::before;
};

Meddling::Meddling(const MeddlingDevice& device) : device_(device) { device_.at_call(MeddlingDevice::When::before); }
Meddling::~Meddling() noexcept(false) { device_.at_call(MeddlingDevice::When::after); }

class Interleavings : public testing::Test {
 protected:
  struct Stage {
    explicit Stage(std::string_view options = "") : allocator({meddling}, parse_options(options)) {}
    static SimulatedDevice::Config checked() {
      SimulatedDevice::Config config = World::config_of(60 * kMiB);
      config.check_hazards = true;
      return config;
    }
    std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>(checked());
    std::shared_ptr<MeddlingDevice> meddling = std::make_shared<MeddlingDevice>(device);
    CachingAllocator allocator;
    const Stream other = device->new_stream();
    const Stream third = device->new_stream();
    std::vector<void*> ours;      // of the thread that plays the scenario
    std::vector<void*> theirs;    // of the one that meddles
    std::vector<void*> on_other;  // of that stream; no allocation follows there
    void* being_freed = nullptr;
    std::size_t wanted_bytes = 0;  // the next request of the thread that plays

    void* allocate(std::size_t bytes, Stream stream = nullptr, const AllocateOptions& options = {}) {
      void* ptr = allocator.allocate(bytes, 0, stream, options);
      EXPECT_EQ(address(ptr) % options.alignment, 0u);
      EXPECT_TRUE(!options.contiguous || allocator.handle_count(ptr) == 1);
      device->handed_out(address(ptr), bytes, stream);
      return ptr;
    }
    void use(void* ptr, Stream stream, std::int64_t ns) {
      device->launch(stream, ns, {{address(ptr), allocator.requested_size(ptr)}});
    }
    void use_elsewhere(void* ptr) {
      for (const Stream stream : {other, third}) {
        allocator.record_stream(ptr, stream);
        use(ptr, stream, 100'000);
      }
    }
    void deallocate(void* ptr) {
      device->given_back(address(ptr));
      being_freed = ptr;
      allocator.deallocate(ptr);
      being_freed = nullptr;
    }
    void deallocate_of_theirs(void* ptr) {
      device->given_back(address(ptr));
      allocator.deallocate(ptr);
    }
  };

  using Action = std::function<void(Stage&)>;

  static constexpr AllocateOptions kContiguous{.contiguous = true};
  static constexpr AllocateOptions kPlaced{.contiguous = true, .alignment = kMiB};

  // Growing, frees that wait, reclaiming, a full device, giving back.
  static void play(Stage& stage) {
    const auto try_allocate = [&](std::size_t bytes, const AllocateOptions& options = {}) {
      try {
        stage.ours.push_back(stage.allocate(bytes, nullptr, options));
      } catch (const OutOfMemory&) {  // the other thread may have taken what there was
      }
    };
    const auto allocate = [&](std::size_t bytes) {
      try_allocate(bytes);
      if (stage.wanted_bytes != 0) try_allocate(std::exchange(stage.wanted_bytes, 0));
    };
    const auto free_used_elsewhere = [&] {
      if (stage.ours.empty()) return;
      void* ptr = stage.ours.back();
      stage.ours.pop_back();
      stage.use_elsewhere(ptr);
      stage.deallocate(ptr);
    };
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB, 2 * kMiB, 12 * kMiB}) allocate(bytes);
    free_used_elsewhere();
    allocate(5000);
    stage.device->advance(150'000);
    allocate(5 * kMiB);
    try_allocate(700 * kKiB, kContiguous);
    try_allocate(3 * kMiB, kPlaced);
    free_used_elsewhere();
    stage.device->advance(1'000'000);
    allocate(1000);
    free_used_elsewhere();
    allocate(24 * kMiB);  // waits for the pending frees, gives back the cache
    free_used_elsewhere();
    stage.allocator.empty_cache();
    allocate(30 * kMiB);
  }

  static void expect_balanced(Stage& stage) {
    EXPECT_EQ(stage.allocator.validate(), "");
    const Snapshot snapshot = stage.allocator.snapshot();
    const DeviceStats told = only_current(stage.allocator.memory_stats());
    DeviceStats counted = recount(snapshot, 0);
    if (uses_pages(stage.allocator.options())) keep_sums_alone(counted, told);
    EXPECT_EQ(difference(told, counted), "");
  }

  using When = MeddlingDevice::When;
  static constexpr const char* kSegments[] = {""};
  static constexpr const char* kHeaps[] = {"", "heap:pages,page_size_mb:2,cross_stream:off",
                                           "heap:pages,page_size_mb:2,immortal_streams:True"};

  static void run(const char* name, const Action& action) { run(name, action, kHeaps); }

  static void run(const char* name, const Action& action, std::span<const char* const> heaps) {
    for (const char* heap : heaps) {
      for (const When when : {When::before, When::after}) run(name, action, heap, when);
    }
  }

  static void run(const char* name, const Action& action, const char* heap, When when) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(
          fmt::format("{}, {} call {} to the device, '{}'", name, when == When::before ? "before" : "after", n, heap));
      const bool acted = run_once(action, heap, when, n);
      if (!acted || testing::Test::HasFailure()) {
        EXPECT_GT(n, 15u) << "the scenario calls the device that often";
        return;
      }
    }
  }

  // Returns whether the scenario has `n` calls to the device.
  static bool run_once(const Action& action, const char* heap, When when, std::uint64_t n) {
    auto owned = std::make_unique<Stage>(heap);
    Stage& stage = *owned;
    stage.theirs = {stage.allocate(700), stage.allocate(4000), stage.allocate(2 * kMiB)};
    stage.on_other = {stage.allocate(2 * kMiB, stage.other), stage.allocate(5 * kMiB, stage.other)};
    stage.meddling->act_at(
        n, [&] { action(stage); }, when);
    try {
      play(stage);
    } catch (const HazardError& hazard) {
      ADD_FAILURE() << hazard.what();
      static_cast<void>(owned.release());  // its allocator would run into the same hazard when it goes
      return true;
    }
    const bool acted = stage.meddling->has_acted();
    stage.meddling->act_at(0, nullptr);
    expect_balanced(stage);
    for (const auto* pointers : {&stage.ours, &stage.theirs, &stage.on_other}) {
      for (void* ptr : *pointers) stage.deallocate(ptr);
    }
    stage.allocator.empty_cache();
    expect_balanced(stage);
    EXPECT_EQ(stage.allocator.memory_stats().active.all.current, 0);
    EXPECT_EQ(stage.device->used_bytes(), 0u);
    return acted;
  }
};

TEST_F(Interleavings, WithALookAtEverything) { run("a look", &Interleavings::expect_balanced); }

TEST_F(Interleavings, WithAnAllocationFromTheCache) {
  run("an allocation", [](Stage& stage) { stage.theirs.push_back(stage.allocate(512)); });
}

TEST_F(Interleavings, WithAllocationsThatTakeAllThatIsCached) {
  run(
      "greedy allocations",
      [](Stage& stage) {
        for (const SegmentSnapshot& segment : stage.allocator.snapshot({}, false).segments) {
          for (const BlockSnapshot& block : segment.blocks) {
            const bool fits_its_pool = (segment.segment_type == PoolKind::small) == (block.size <= kMiB);
            if (block.state != BlockSnapshot::State::inactive || !fits_its_pool) continue;
            void* ptr = stage.allocate(block.size, segment.stream);
            EXPECT_LE(segment.address, address(ptr));  // of what the picture showed, not a new segment
            stage.theirs.push_back(ptr);
          }
        }
      },
      kSegments);
}

TEST_F(Interleavings, WithAFree) {
  run("a free", [](Stage& stage) {
    stage.deallocate_of_theirs(stage.theirs.back());
    stage.theirs.pop_back();
  });
}

TEST_F(Interleavings, WithAFreeThatWaits) {
  run("a free that waits", [](Stage& stage) {
    void* ptr = stage.theirs.back();
    stage.theirs.pop_back();
    stage.use_elsewhere(ptr);
    stage.deallocate_of_theirs(ptr);
  });
}

// A free while an event is recorded, or while the device is waited for, comes after that.
TEST_F(Interleavings, WithAFreeOnAnotherStreamThatStillUsesTheMemory) {
  for (const std::size_t which : {0u, 1u}) {
    run("a free on another stream", [which](Stage& stage) {
      void* ptr = stage.on_other[which];
      stage.on_other.erase(stage.on_other.begin() + static_cast<std::ptrdiff_t>(which));
      stage.wanted_bytes = stage.allocator.requested_size(ptr);
      stage.use(ptr, stage.other, 100'000'000);
      stage.deallocate_of_theirs(ptr);
    });
  }
}

TEST_F(Interleavings, WithARecordedUse) {
  run("record_stream", [](Stage& stage) {
    for (void* ptr : stage.theirs) stage.allocator.record_stream(ptr, stage.third);
  });
}

TEST_F(Interleavings, WithADoubleFree) {
  run("a double free", [](Stage& stage) {
    if (stage.being_freed == nullptr) return;
    EXPECT_THROW(stage.allocator.deallocate(stage.being_freed), InvalidArgument);
    EXPECT_THROW(stage.allocator.record_stream(stage.being_freed, stage.other), InvalidArgument);
    EXPECT_EQ(stage.allocator.device_of(stage.being_freed), -1);
  });
}

TEST_F(Interleavings, WithTimePassing) {
  run("time", [](Stage& stage) { stage.device->advance(10'000'000); });
}

// The completion hint must be read before the event is asked: work done in between must not be missed permanently.
TEST_F(Interleavings, WithAnEventDoneRightAfterItWasAsked) {
  Stage stage;
  void* ptr = stage.allocate(4096);
  stage.allocator.record_stream(ptr, stage.other);
  stage.device->launch(stage.other, 1000);
  stage.deallocate(ptr);
  stage.meddling->act_at(
      1, [&] { stage.device->advance(1000); }, MeddlingDevice::When::after);
  EXPECT_NE(stage.allocator.allocate(4096), ptr);
  ASSERT_TRUE(stage.meddling->has_acted());
  EXPECT_EQ(stage.allocator.allocate(4096), ptr);
}

// A thread counts by itself what it allocates from its cache, here before the block that is being freed begins to wait. All of
// it is active from then on.
TEST_F(Interleavings, WithAnAllocationFromAThreadsCache) {
  for (const When when : {When::before, When::after}) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("{} call {} to the device", when == When::before ? "before" : "after", n));
      Stage stage("thread_cache:True");
      Worker worker;  // lives on: a thread that ends is asked for what it has counted
      worker.run([&] { stage.allocator.deallocate(stage.allocator.allocate(4096)); });
      void* ptr = stage.allocate(3 * kMiB);
      stage.use_elsewhere(ptr);
      stage.allocator.reset_peak_stats();
      stage.meddling->act_at(
          n, [&] { worker.run([&] { stage.theirs.push_back(stage.allocator.allocate(4096)); }); }, when);
      stage.deallocate(ptr);
      const DeviceStats stats = stage.allocator.memory_stats();
      const bool acted = stage.meddling->has_acted();
      stage.meddling->act_at(0, nullptr);
      if (!acted) {
        EXPECT_GT(n, 2u) << "events are made and recorded";
        break;
      }
      EXPECT_EQ(stats.active.all.current, 2);
      EXPECT_EQ(stats.active.all.peak, 2);
      EXPECT_EQ(stats.active_bytes.all.peak, stats.active_bytes.all.current);
      EXPECT_EQ(stage.allocator.validate(), "");
      stage.allocator.deallocate(stage.theirs.back());
    }
  }
}

TEST_F(Interleavings, WithOtherSettings) {
  run("settings", [](Stage& stage) {
    stage.allocator.configure("max_split_size_mb:20,roundup_power2_divisions:4");
    stage.allocator.set_memory_fraction(0.9);
    stage.allocator.reset_peak_stats();
    stage.allocator.reset_accumulated_stats();
    stage.allocator.record_history({.max_entries = 10});
  });
}

TEST_F(Interleavings, WithAPrivatePool) {
  run("a pool", [](Stage& stage) {
    stage.allocator.create_or_retain_pool(0, {0, 1});
    { const InPool in_pool(stage.allocator, {0, 1}); }
    EXPECT_TRUE(stage.allocator.pool_has_exactly(0, {0, 1}, {}));
    stage.allocator.release_pool(0, {0, 1});
  });
}

// Interleavings while a tag, which holds `theirs`, goes to sleep and wakes.
class SleepInterleavings : public Interleavings {
 protected:
  static constexpr PoolId kTagsPool{1, 1};  // of the first tag
  static constexpr std::size_t kCached = 3 * kMiB / 2;

  static void run(const char* name, const Action& action) {
    for (std::uint64_t n = 1;; ++n) {
      SCOPED_TRACE(fmt::format("{}, before call {} to the device", name, n));
      Stage stage("heap:pages,page_size_mb:2");
      stage.allocator.begin_tagged("weights");
      for (const std::size_t bytes : {3 * kMiB, kCached, 5 * kMiB}) {
        stage.theirs.push_back(stage.allocator.allocate(bytes));
        stage.device->copy_from_host(address(stage.theirs.back()), "held", 4);
      }
      stage.allocator.end_tagged("weights");
      stage.allocator.deallocate(stage.theirs[1]);  // its neighbours keep its pages
      stage.theirs.erase(stage.theirs.begin() + 1);
      stage.meddling->act_at(n, [&] { action(stage); });
      stage.allocator.release_physical("weights", /*save=*/true);
      expect_sound(stage);
      stage.allocator.restore_physical("weights");
      const bool acted = stage.meddling->has_acted();
      stage.meddling->act_at(0, nullptr);
      expect_sound(stage);
      expect_kept(stage);
      if (!acted || testing::Test::HasFailure()) {
        EXPECT_GT(n, 20u) << "the scenario calls the device that often";
        return;
      }
    }
  }

  static void expect_sound(Stage& stage) {
    EXPECT_EQ(stage.allocator.validate(), "");
    std::size_t awake = 0;
    for (const SegmentSnapshot& segment : stage.allocator.snapshot({}, false).segments) {
      awake += segment.total_size - segment.asleep_size;
    }
    EXPECT_EQ(awake, stage.allocator.memory_reserved());
  }

  static void expect_kept(Stage& stage) {
    for (void* ptr : stage.theirs) {
      std::string content(4, '?');
      stage.device->copy_to_host(content.data(), address(ptr), content.size());
      EXPECT_EQ(content, "held");
      stage.allocator.deallocate(ptr);
    }
    for (void* ptr : stage.ours) stage.allocator.deallocate(ptr);
    while (stage.allocator.pool_use_count(0, kTagsPool) > 0) stage.allocator.release_pool(0, kTagsPool);
    stage.allocator.empty_cache();
    expect_sound(stage);
    EXPECT_EQ(stage.device->used_bytes(), 0u);
  }
};

TEST_F(SleepInterleavings, WithALookAtEverything) { run("a look", &SleepInterleavings::expect_sound); }

TEST_F(SleepInterleavings, WithAFree) {
  run("a free", [](Stage& stage) {
    stage.allocator.deallocate(stage.theirs.back());
    stage.theirs.pop_back();
  });
}

TEST_F(SleepInterleavings, WithFreesOfEverythingUsedElsewhere) {
  run("frees that wait", [](Stage& stage) {
    for (void* ptr : std::exchange(stage.theirs, {})) {
      stage.allocator.record_stream(ptr, stage.other);
      stage.allocator.deallocate(ptr);
    }
  });
}

TEST_F(SleepInterleavings, WithAnAllocationFromTheTag) {
  run("an allocation", [](Stage& stage) {
    stage.allocator.begin_tagged("weights");
    try {
      stage.ours.push_back(stage.allocator.allocate(kCached));
    } catch (const InvalidArgument& refusal) {
      EXPECT_CONTAINS(refusal.what(), "tag 'weights' is asleep");
    }
    stage.allocator.end_tagged("weights");
  });
}

TEST_F(SleepInterleavings, WithAUserOfThePoolThatComesAndStays) {
  run("a user", [](Stage& stage) {
    stage.allocator.create_or_retain_pool(0, kTagsPool);
    stage.allocator.deallocate(stage.theirs.back());
    stage.theirs.pop_back();
  });
}

}  // namespace
}  // namespace cachalot
