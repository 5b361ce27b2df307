// The costs that the page heap learns from its own calls of the driver, and the plans that change by them.
#include "pages/driver_costs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

// --- prices by themselves ----------------------------------------------------------------------------------------------

// A driver whose calls cost this, and the costs that are learned from plans on it.
struct Driver {
  DriverCosts::Prices truth;
  DriverCosts costs;

  static DriverCosts::Calls calls(std::size_t count, double us) { return {count, static_cast<std::int64_t>(us)}; }
  DriverCosts::Measured plan(std::size_t creates, std::size_t maps, std::size_t ranges, std::size_t unmaps) const {
    const auto times = [](std::size_t count, double us) { return calls(count, static_cast<double>(count) * us); };
    DriverCosts::Measured took{times(unmaps, truth.unmap), times(creates, truth.create), times(maps, truth.map),
                               times(ranges, truth.set_access)};
    took.accesses.us += static_cast<std::int64_t>(static_cast<double>(maps - ranges) * truth.set_access_mapping);
    return took;
  }
  void grow(std::size_t handles) { costs.record(plan(handles, handles, 1, 0)); }
  void remap(std::size_t handles, double wait_us = 0) {
    DriverCosts::Measured took = plan(0, handles, 1, 1);
    took.maps.us += static_cast<std::int64_t>(wait_us);
    took.remaps = true;
    costs.record(took);
  }
};

void expect_published(const DriverCosts& costs) {
  const DriverCosts::Prices published;
  const auto [create, map, set_access, set_access_mapping, unmap, remap_wait] = costs.prices();
  EXPECT_EQ(create, published.create);
  EXPECT_EQ(map, published.map);
  EXPECT_EQ(set_access, published.set_access);
  EXPECT_EQ(set_access_mapping, published.set_access_mapping);
  EXPECT_EQ(unmap, published.unmap);
  EXPECT_EQ(remap_wait, published.remap_wait);
}

TEST(DriverCosts, ArePublishedOnesAtFirst) {
  const LatencyModel published = LatencyModel::published();
  const DriverCosts::Prices prices;
  EXPECT_EQ(prices.create, published[DeviceCall::create]);
  EXPECT_EQ(prices.map, published[DeviceCall::map]);
  EXPECT_EQ(prices.set_access, published[DeviceCall::set_access]);
  EXPECT_EQ(prices.set_access_mapping, published.set_access_us_per_mapping);
  EXPECT_EQ(prices.unmap, published[DeviceCall::unmap]);
}

TEST(DriverCosts, StayOnADriverThatCostsTheSameOrUpToAHalfMore) {
  for (const double factor : {1.0, 1.4, 0.7}) {
    Driver driver;
    driver.truth.create *= factor;
    driver.truth.set_access *= factor;
    driver.truth.unmap *= factor;
    for (std::size_t i = 1; i < 50; ++i) {
      driver.grow(i % 7 + 1);
      driver.remap(i % 5 + 1);
    }
    expect_published(driver.costs);
  }
}

TEST(DriverCosts, StayWhereTheClockResolvesNothing) {
  Driver driver;
  driver.truth = {0, 0, 0, 0, 0, 0};
  driver.grow(16);
  driver.remap(16);
  expect_published(driver.costs);
}

TEST(DriverCosts, FollowTheFirstGrowth) {
  Driver driver;
  driver.truth = {.create = 90, .map = 20, .set_access = 134, .set_access_mapping = 96, .unmap = 200};
  driver.grow(1);
  driver.grow(16);
  driver.remap(4);
  EXPECT_EQ(driver.costs.prices().create, 90);
  EXPECT_EQ(driver.costs.prices().map, 20);
  EXPECT_EQ(driver.costs.prices().set_access, 134);
  EXPECT_EQ(driver.costs.prices().set_access_mapping, 96);
  EXPECT_EQ(driver.costs.prices().unmap, 200);
  EXPECT_EQ(driver.costs.prices().remap_wait, 0);
}

TEST(DriverCosts, GoDownAgainAfterASlowStart) {
  Driver driver;
  driver.truth.create = 2000;  // the driver initialises itself
  driver.grow(1);
  EXPECT_EQ(driver.costs.prices().create, 2000);
  driver.truth.create = 29;
  for (int i = 0; i < 10; ++i) driver.grow(1);
  EXPECT_NEAR(driver.costs.prices().create, 29, 15);
  const double settled = driver.costs.prices().create;
  driver.truth.create = 400;  // one slow call
  driver.grow(1);
  EXPECT_EQ(driver.costs.prices().create, settled);
}

TEST(DriverCosts, GoUpSlowlyWhereTheDriverBecomesSlower) {
  Driver driver;
  driver.grow(1);
  driver.truth.create = 90;
  for (int i = 0; i < 8; ++i) driver.grow(1);
  EXPECT_LT(driver.costs.prices().create, 60);
  for (int i = 0; i < 60; ++i) driver.grow(1);
  EXPECT_GT(driver.costs.prices().create, 60);
}

TEST(DriverCosts, HaveAPriceForWaitsApart) {
  Driver driver;
  driver.grow(16);
  driver.remap(4, 50'000);
  EXPECT_FALSE(driver.costs.remaps_wait_long()) << "one may be a chance";
  for (int i = 0; i < 3; ++i) driver.remap(4, 50'000);
  EXPECT_TRUE(driver.costs.remaps_wait_long());
  EXPECT_EQ(driver.costs.prices().map, 2);
  for (int i = 0; i < 100; ++i) driver.remap(4, 50'000);
  EXPECT_EQ(driver.costs.prices().map, 2);
  EXPECT_LE(driver.costs.prices().remap_wait, 4000);
  for (int i = 0; i < 15; ++i) driver.remap(4);
  EXPECT_FALSE(driver.costs.remaps_wait_long());
}

TEST(DriverCosts, ForgetAWaitThatWasNotMetForLong) {
  Driver driver;
  driver.grow(4);
  for (int i = 0; i < 20; ++i) driver.remap(4, 50'000);
  EXPECT_TRUE(driver.costs.remaps_wait_long());
  for (int i = 0; i < 10; ++i) driver.grow(4);
  EXPECT_TRUE(driver.costs.remaps_wait_long());
  for (int i = 0; i < 100; ++i) driver.grow(4);
  EXPECT_FALSE(driver.costs.remaps_wait_long());
}

// --- the heap's plans --------------------------------------------------------------------------------------------------

SimulatedDevice::Config with_times(std::size_t device_bytes = 64 * kGiB) {
  SimulatedDevice::Config config = World::config_of(device_bytes);
  config.latency = LatencyModel::published();
  return config;
}

// Figures of GMLake (ASPLOS 2024): 96 us of cuMemSetAccess for each chunk of 2 MiB.
SimulatedDevice::Config as_of_gmlake() {
  SimulatedDevice::Config config = with_times();
  config.latency.set_access_us_per_mapping = 96;
  return config;
}

// Returns how many handles new memory of 64 MiB comes in.
std::uint64_t handles_of_64_mib(World& world) {
  const std::uint64_t before = world.count(DeviceCall::create);
  world.allocate(64 * kMiB);
  return world.count(DeviceCall::create) - before;
}

// An iteration: blocks of changing sizes, every second of which makes room for one large block.
void iterate(World& world, std::size_t round, std::int64_t work_us) {
  Program program(world);
  const Stream stream = nullptr;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 12; ++i) {
    blocks.push_back(program.allocate((2 + (i * 7 + round * 5) % 11) * kMiB, stream, work_us));
  }
  for (std::size_t i = 0; i < blocks.size(); i += 2) program.free(blocks[i]);
  void* const large = program.allocate((20 + round % 7) * kMiB, stream, work_us);
  for (std::size_t i = 1; i < blocks.size(); i += 2) program.free(blocks[i]);
  program.free(large);
}

TEST(CalibratedPages, MakeTheSamePlansAsPublishedCostsOnADriverThatHasThem) {
  std::vector<std::vector<std::pair<DeviceCall, std::uint64_t>>> calls;
  for (const char* calibrate : {"True", "False"}) {
    SimulatedDevice::Config config = with_times();
    config.log_calls = true;
    World world(config, std::string("heap:pages,calibrate:") + calibrate);
    for (std::size_t round = 0; round < 40; ++round) iterate(world, round, 100);
    calls.emplace_back();
    for (const LoggedCall& call : world.device->take_log()) calls.back().emplace_back(call.call, call.bytes);
  }
  EXPECT_EQ(calls[0], calls[1]);
}

TEST(CalibratedPages, ComeInLargerHandlesWhereEachCostsMore) {
  World published(with_times(), "heap:pages");
  World slow(as_of_gmlake(), "heap:pages");
  World fixed(as_of_gmlake(), "heap:pages,calibrate:False");
  World chosen(as_of_gmlake(), "heap:pages,page_size_mb:2");
  for (World* world : {&published, &slow, &fixed, &chosen}) {
    EXPECT_EQ(handles_of_64_mib(*world), 32u) << "nothing is known yet";
    for (int i = 0; i < 3; ++i) world->allocate(4 * kMiB);
  }
  EXPECT_EQ(handles_of_64_mib(published), 32u);
  EXPECT_EQ(handles_of_64_mib(slow), 8u);
  EXPECT_EQ(handles_of_64_mib(fixed), 32u);
  EXPECT_EQ(handles_of_64_mib(chosen), 32u);
  chosen.allocator.configure("page_size_mb:0,calibrate:False");
  EXPECT_EQ(handles_of_64_mib(chosen), 32u);
}

// Returns the driver's milliseconds for each GiB of a program's first memory.
double first_ms_per_gib(const std::string& options) {
  World world(as_of_gmlake(), options);
  for (std::size_t i = 0; i < 200; ++i) world.allocate((1 + i * 7 % 40) * kMiB);
  return world.device->driver_us() / 1000 / (static_cast<double>(world.reserved()) / static_cast<double>(kGiB));
}

TEST(CalibratedPages, BeginFasterWhereEachHandleCostsMore) {
  const double calibrated = first_ms_per_gib("heap:pages");
  const double published = first_ms_per_gib("heap:pages,calibrate:False");
  RecordProperty("calibrated_us_per_gib", static_cast<int>(calibrated * 1000));
  RecordProperty("published_us_per_gib", static_cast<int>(published * 1000));
  EXPECT_LT(calibrated, published / 2);
}

std::uint64_t remapping_calls(World& world, std::size_t rounds) {
  const std::uint64_t before = world.count(DeviceCall::map);
  for (std::size_t i = 0; i < rounds; ++i) iterate(world, i, 500);
  return world.count(DeviceCall::map) - before;
}

TEST(CalibratedPages, StayWhereTheyAreOnADriverThatWaitsForWork) {
  SimulatedDevice::Config config = with_times();
  config.mapping_waits = true;
  World calibrated(config, "heap:pages");
  World published(config, "heap:pages,calibrate:False");
  World chosen(config, "heap:pages,remap_slack:0");
  for (World* world : {&calibrated, &published, &chosen}) remapping_calls(*world, 60);
  EXPECT_EQ(remapping_calls(calibrated, 30), 0u);
  EXPECT_GT(remapping_calls(published, 30), 0u);
  EXPECT_GT(remapping_calls(chosen, 30), 0u) << "what the user chose holds";
}

TEST(CalibratedPages, MoveWhereThereIsNoOtherMemory) {
  SimulatedDevice::Config config = with_times(96 * kMiB);
  config.mapping_waits = true;
  World world(config, "heap:pages");
  for (std::size_t i = 0; i < 60; ++i) iterate(world, i, 500);
  EXPECT_GT(remapping_calls(world, 30), 0u);
}

TEST(CalibratedPages, LearnNothingFromAPlanThatFails) {
  for (const DeviceCall call : {DeviceCall::create, DeviceCall::map, DeviceCall::set_access}) {
    World world(as_of_gmlake(), "heap:pages");
    world.device->set_faults({{.call = call, .nth = 1, .out_of_memory = false, .code = 999}});
    EXPECT_TRUE(fails([&] { world.allocate(64 * kMiB); })) << to_string(call);
    EXPECT_EQ(handles_of_64_mib(world), 32u) << to_string(call);
    EXPECT_EQ(world.allocator.validate(), "");
  }
}

}  // namespace
}  // namespace cachalot
