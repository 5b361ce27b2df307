// An observer of slow paths is notified of each, from its begin to its end, and of nothing else.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cachalot/events.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

// Writes "+grow 1000" and "-grow 1000".
class Recorder final : public SlowWorkObserver {
 public:
  void on_begin(const SlowWork& work) noexcept override { write("+", work); }
  void on_end(const SlowWork& work) noexcept override { write("-", work); }
  std::vector<std::string> take() { return std::exchange(heard_, {}); }

 private:
  void write(const char* sign, const SlowWork& work) {
    std::string text = sign + std::string(to_string(work.kind));
    if (work.bytes != 0) text += " " + std::to_string(work.bytes);
    if (work.device != 0) text += " on " + std::to_string(work.device);
    heard_.push_back(text);
  }
  std::vector<std::string> heard_;
};

using Heard = std::vector<std::string>;

TEST(SlowWorkObserver, HearsOfGrowthAndNotOfHits) {
  World world;
  const auto recorder = std::make_shared<Recorder>();
  world.allocator.set_slow_work_observer(recorder);
  world.allocator.deallocate(world.allocate(1000));
  EXPECT_EQ(recorder->take(), (Heard{"+grow 1000", "-grow 1000"}));
  for (int i = 0; i < 100; ++i) world.allocator.deallocate(world.allocate(1000));
  EXPECT_EQ(recorder->take(), Heard{});
  world.allocator.empty_cache();
  EXPECT_EQ(recorder->take(), (Heard{"+empty_cache", "-empty_cache"}));
}

TEST(SlowWorkObserver, HearsTheEndOfARequestThatFails) {
  World world(64 * kMiB);
  const auto recorder = std::make_shared<Recorder>();
  world.allocator.set_slow_work_observer(recorder);
  out_of_memory([&] { world.allocate(kGiB); });
  EXPECT_EQ(recorder->take(), (Heard{"+grow 1073741824", "-grow 1073741824"}));
}

TEST(SlowWorkObserver, HearsOfSleep) {
  World world(kGiB, "heap:pages");
  world.allocator.begin_tagged("weights");
  void* const memory = world.allocate(10 * kMiB);
  world.allocator.end_tagged("weights");
  const auto recorder = std::make_shared<Recorder>();
  world.allocator.set_slow_work_observer(recorder);
  world.allocator.release_physical("weights", /*save=*/true);
  world.allocator.restore_physical("weights");
  EXPECT_EQ(recorder->take(),
            (Heard{"+release_physical", "-release_physical", "+restore_physical", "-restore_physical"}));
  world.allocator.deallocate(memory);
}

TEST(SlowWorkObserver, HearsOfATagThatGivesWay) {
  World world(kGiB, "heap:pages");
  world.allocator.begin_tagged("kv");
  void* const memory = world.allocate(10 * kMiB);
  world.allocator.end_tagged("kv");
  world.allocator.make_evictable("kv", {.priority = 0, .sleep = {Keep::nothing, {}}, .refill = {}});
  const auto recorder = std::make_shared<Recorder>();
  world.allocator.set_slow_work_observer(recorder);
  EXPECT_GE(world.allocator.give_way(kMiB), 10 * kMiB);
  EXPECT_EQ(recorder->take(), (Heard{"+evict", "-evict"}));
  world.allocator.deallocate(memory);
}

TEST(SlowWorkObserver, HearsOfEachDeviceUntilItIsReplaced) {
  TwoDevices world;
  const auto recorder = std::make_shared<Recorder>();
  world.allocator.set_slow_work_observer(recorder);
  void* const there = world.allocator.allocate(1000, 1);
  EXPECT_EQ(recorder->take(), (Heard{"+grow 1000 on 1", "-grow 1000 on 1"}));
  world.allocator.set_slow_work_observer(nullptr);
  void* const here = world.allocator.allocate(1000, 0);
  EXPECT_EQ(recorder->take(), Heard{});
  EXPECT_EQ(recorder.use_count(), 1);
  world.allocator.deallocate(here);
  world.allocator.deallocate(there);
}

}  // namespace
}  // namespace cachalot
