// Every call of the driver fails while pools go to sleep and wake: nothing is lost, and what was begun can be finished.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

// Two tags sleep and wake, one saved and one not, one used by no thread and one within its region. The saved content is there
// in the end, no matter which call fails.
class SleepProgram {
 public:
  explicit SleepProgram(World& world) : world_(world) {}

  // Returns whether a call failed.
  bool play() {
    failed_ = false;
    for (int round = 0; round < 2; ++round) {
      while (live_.size() > 2) remove(0);
      for (std::size_t i = 0; i < 3; ++i) add((1 + i) * 700 * kKiB);
      {
        const Region cache(world_, "cache");
        attempt([&] { world_.allocator.deallocate(world_.allocate(3 * kMiB)); });
        attempt([&] { world_.allocator.release_physical("weights", /*save=*/true); });
        attempt([&] { world_.allocator.release_physical("cache"); });
        attempt([&] { world_.allocator.restore_physical("cache"); });
        attempt([&] { world_.allocator.restore_physical("weights"); });
      }
      attempt([&] { world_.allocator.release_physical("weights", /*save=*/true); });
      remove(live_.size() / 2);
      attempt([&] { world_.allocator.restore_physical("weights"); });
      attempt([&] { world_.allocator.empty_cache(); });
    }
    return failed_;
  }

  // Nothing fails any more.
  void finish() {
    world_.allocator.restore_physical("cache");
    world_.allocator.restore_physical("weights");
    for (const Block& block : live_) {
      std::string content(5, '?');
      world_.device->copy_to_host(content.data(), address(block.ptr), content.size());
      if (!block.content.empty()) {
        EXPECT_EQ(content, block.content);
      }
    }
    while (!live_.empty()) remove(0);
    world_.allocator.empty_cache();
    EXPECT_EQ(world_.reserved(), 0u);
    EXPECT_EQ(world_.device->used_bytes(), 0u);
  }

 private:
  struct Block {
    void* ptr;
    std::string content;  // "": it could not be written
  };

  void attempt(const std::function<void()>& action) {
    try {
      failed_ |= fails(action);
    } catch (const InvalidArgument& error) {  // it could not be woken
      EXPECT_CONTAINS(error.what(), "is asleep");
      failed_ = true;
    }
    ASSERT_EQ(world_.allocator.validate(), "");
  }

  void add(std::size_t bytes) {
    const std::size_t before = live_.size();
    attempt([&] {
      const Region region(world_, "weights");
      live_.push_back({world_.allocate(bytes), ""});
    });
    if (live_.size() == before) return;
    world_.device->launch(nullptr, 1000, {{address(live_.back().ptr), bytes}});
    attempt([&] {
      const std::string content = fmt::format("no {:02}", live_.size());
      world_.device->copy_from_host(address(live_.back().ptr), content.data(), content.size());
      live_.back().content = content;
    });
  }

  void remove(std::size_t which) {
    if (which >= live_.size()) return;
    attempt([&] { world_.allocator.deallocate(live_[which].ptr); });
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  World& world_;
  std::vector<Block> live_;
  bool failed_ = false;
};

SimulatedDevice::Config logged() {
  SimulatedDevice::Config config = checked();
  config.log_calls = true;
  return config;
}

// Every piece of host memory went back.
void expect_no_host_memory(World& world) {
  int held = 0;
  for (const LoggedCall& call : world.device->take_log()) {
    if (call.call == DeviceCall::host_malloc && !call.failed) ++held;
    if (call.call == DeviceCall::host_free && !call.failed) --held;
  }
  EXPECT_EQ(held, 0);
}

class EveryCallOfSleepFails : public testing::TestWithParam<FailingCall> {};

TEST_P(EveryCallOfSleepFails, AndNothingIsLost) {
  const auto [call, oom] = GetParam();
  std::uint64_t injected = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE(fmt::format("{} number {}", to_string(call), nth));
    World world(logged(), "heap:pages,page_size_mb:2");
    world.device->set_faults({{.call = call, .nth = nth, .out_of_memory = oom, .code = 999}});
    SleepProgram program(world);
    program.play();
    const bool was_injected = world.device->faults_injected() != 0;
    injected += world.device->faults_injected();
    world.device->set_faults({});
    world.allocator.restore_physical("cache");
    world.allocator.restore_physical("weights");
    EXPECT_FALSE(program.play());
    program.finish();
    expect_no_host_memory(world);
    if (!was_injected || HasFailure()) break;
  }
  EXPECT_GT(injected, 0u);
}

// Every call after the n-th fails as well: then not even begun changes can be undone. With a smaller CACHALOT_TEST_SCALE only each
// third.
TEST_P(EveryCallOfSleepFails, AndGoesOnFailing) {
  const auto [call, oom] = GetParam();
  const std::uint64_t step = test_scale() < 1 ? 3 : 1;
  for (std::uint64_t nth = 1; nth < 60; nth += step) {
    SCOPED_TRACE(fmt::format("{} from number {} on", to_string(call), nth));
    World world(logged(), "heap:pages,page_size_mb:2");
    world.device->set_faults(
        {{.call = call, .nth = nth, .out_of_memory = oom, .code = 999, .repeat = true},
         {.call = DeviceCall::unmap, .nth = nth / 2 + 1, .out_of_memory = false, .code = 999, .repeat = true}});
    SleepProgram program(world);
    program.play();
    world.device->set_faults({});
    program.finish();
    expect_no_host_memory(world);
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfTheDriver, EveryCallOfSleepFails,
    testing::Values(FailingCall{DeviceCall::create, true}, FailingCall{DeviceCall::create, false},
                    FailingCall{DeviceCall::map, true}, FailingCall{DeviceCall::map, false},
                    FailingCall{DeviceCall::set_access, true}, FailingCall{DeviceCall::set_access, false},
                    FailingCall{DeviceCall::unmap, false}, FailingCall{DeviceCall::release, false},
                    FailingCall{DeviceCall::synchronize, false}, FailingCall{DeviceCall::host_malloc, true},
                    FailingCall{DeviceCall::host_malloc, false}, FailingCall{DeviceCall::host_free, false},
                    FailingCall{DeviceCall::copy_to_host, false}, FailingCall{DeviceCall::copy_from_host, false}),
    name_of);

// The driver needs memory for mappings, too.
TEST(Waking, WithoutMemoryForMappingsRecoversAndElseIsOutOfMemory) {
  for (const DeviceCall call : {DeviceCall::map, DeviceCall::set_access}) {
    SCOPED_TRACE(to_string(call));
    World world(checked(), "heap:pages");
    void* ptr = nullptr;
    {
      const Region region(world, "weights");
      ptr = world.allocate(8 * kMiB);
    }
    world.allocator.release_physical("weights");
    world.allocator.deallocate(world.allocate(100 * kMiB));
    world.device->set_faults({{.call = call, .repeat = true}});
    EXPECT_CONTAINS(out_of_memory([&] { world.allocator.restore_physical("weights"); }), "8.00 MiB");
    EXPECT_EQ(world.allocator.validate(), "");
    EXPECT_EQ(world.reserved(), 0u) << "recovery gives back what nobody uses";
    world.device->set_faults({});
    world.allocator.deallocate(world.allocate(100 * kMiB));
    world.device->set_faults({{.call = call}});
    world.allocator.restore_physical("weights");
    world.device->launch(nullptr, 1, {{address(ptr), 8 * kMiB}});
    world.allocator.deallocate(ptr);
  }
}

TEST(SleepAfterAFailure, FindsMemoryThatABrokenWakeLeftMapped) {
  World world(checked(), "heap:pages");
  void* ptr = nullptr;
  {
    const Region region(world, "weights");
    ptr = world.allocate(8 * kMiB);
  }
  world.allocator.release_physical("weights");
  world.device->set_faults({{.call = DeviceCall::set_access, .out_of_memory = false, .code = 999},
                            {.call = DeviceCall::unmap, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(world.allocator.restore_physical("weights"), CudaError);
  world.device->set_faults({});
  EXPECT_EQ(world.reserved(), 8 * kMiB);  // it could not be unmapped again
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.release_physical("weights", /*save=*/true);
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.restore_physical("weights");
  world.device->launch(nullptr, 1, {{address(ptr), 8 * kMiB}});
  world.allocator.deallocate(ptr);
}

}  // namespace
}  // namespace cachalot
