#include "heap/pending_frees.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"
#include "tests/allocator/forwarding_device.h"

namespace cachalot {
namespace {

SimulatedDevice::Config quick(bool completion_hints) {
  SimulatedDevice::Config config;
  config.latency = LatencyModel::none();
  config.completion_hints = completion_hints;
  return config;
}

// A device that does something when it is next asked about an event.
class AskedDevice;
struct Asking {
  explicit Asking(const AskedDevice&) {}
};
class AskedDevice : public ForwardingDevice<AskedDevice, Asking> {
 public:
  using ForwardingDevice::ForwardingDevice;
  bool event_query(Event event) override {
    if (const std::function<void()> action = std::exchange(when_asked, nullptr)) action();
    return ForwardingDevice::event_query(event);
  }
  std::function<void()> when_asked;
};

// Both kinds of device: one that can tell that something completed, and one that has to be asked.
class DeferredFreesTest : public ::testing::TestWithParam<bool> {
 protected:
  Block& block() {
    blocks.push_back({static_cast<Address>(blocks.size() + 1) << 20,
                      512 | Block::kAllocated,
                      512,
                      0,
                      nullptr,
                      nullptr,
                      nullptr,
                      {}});
    return blocks.back();
  }
  // A block freed while `streams` still use it.
  Block& free_in_use(const std::vector<Stream>& streams) {
    Block& freed = block();
    const DeviceLock lock(mutex);
    for (Stream stream : streams) frees.add_use(freed, identify(device, stream, /*immortal=*/false));
    frees.wait_for_uses(freed, lock);
    return freed;
  }
  std::size_t reclaim() {
    const std::size_t before = done.size();
    const DeviceLock lock(mutex);
    frees.reclaim(lock);
    return done.size() - before;
  }
  bool is_empty() {
    const DeviceLock lock(mutex);
    return frees.empty();
  }
  std::size_t metadata_bytes() {
    const DeviceLock lock(mutex);
    return frees.metadata_bytes();
  }
  std::uint64_t queries() const { return device.count(DeviceCall::event_query); }

  SimulatedDevice device{quick(GetParam())};
  AskedDevice asked_device{std::shared_ptr<Device>(std::shared_ptr<void>(), &device)};
  Stream a = device.new_stream(), b = device.new_stream();
  Mutex mutex;
  std::deque<Block> blocks;
  Vector<Block*> done;
  DeferredFrees frees{asked_device, [this](Block& block, Held&) { done.push_back(&block); }};
};
INSTANTIATE_TEST_SUITE_P(Hints, DeferredFreesTest, ::testing::Values(true, false));

TEST_P(DeferredFreesTest, ABlockIsDoneWhenTheWorkBeforeItsFreeIs) {
  device.launch(a, 1000);
  Block& freed = free_in_use({a});
  EXPECT_EQ(reclaim(), 0u);
  device.advance(999);
  EXPECT_EQ(reclaim(), 0u);
  device.advance(1);
  EXPECT_EQ(reclaim(), 1u);
  EXPECT_EQ(done, Vector<Block*>{&freed});
  EXPECT_TRUE(is_empty());
}

TEST_P(DeferredFreesTest, ABlockOfTwoStreamsWaitsForBoth) {
  device.launch(a, 1000);
  device.launch(b, 5000);
  free_in_use({a, b, a});
  EXPECT_EQ(device.count(DeviceCall::event_record), 2u);
  device.advance(1000);
  EXPECT_EQ(reclaim(), 0u);
  device.advance(4000);
  EXPECT_EQ(reclaim(), 1u);
}

TEST_P(DeferredFreesTest, EverythingDoneOnAStreamIsReclaimedAtOnce) {
  for (int i = 0; i < 100; ++i) {
    device.launch(a, 10);
    free_in_use({a});
  }
  device.advance(500);
  EXPECT_EQ(reclaim(), 50u);
  device.advance(500);
  EXPECT_EQ(reclaim(), 50u);
}

TEST_P(DeferredFreesTest, TheOldestEventIsAskedFirstAgainWhenItWasNotDone) {
  device.launch(a, 1000);
  Block& oldest = free_in_use({a});
  device.launch(a, 1000);
  free_in_use({a});
  EXPECT_EQ(reclaim(), 0u);
  device.advance(1000);
  EXPECT_EQ(reclaim(), 1u);
  EXPECT_EQ(done, Vector<Block*>{&oldest});
}

TEST_P(DeferredFreesTest, AStreamWithNothingNewIsNotAskedAgain) {
  if (!GetParam()) GTEST_SKIP() << "this device has to be asked every time";
  device.launch(a, 1000);
  device.launch(b, 1000);
  free_in_use({a, b});
  reclaim();
  const std::uint64_t asked = queries();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(reclaim(), 0u);
  EXPECT_EQ(queries(), asked);
  free_in_use({a});  // not the oldest of its stream
  reclaim();
  EXPECT_EQ(queries(), asked);
  device.advance(1000);
  EXPECT_EQ(reclaim(), 2u);
}

TEST_P(DeferredFreesTest, AnIdleDeviceReclaimsAtTheNextLook) {
  free_in_use({a});
  EXPECT_EQ(reclaim(), 1u);
}

TEST_P(DeferredFreesTest, SynchronizeWaitsForTheSelectedOnly) {
  device.launch(a, 1000);
  Block& first = free_in_use({a});
  Block& second = free_in_use({a});
  const DeviceLock lock(mutex);
  frees.synchronize([&](const Block& block) { return &block == &second; }, lock);
  EXPECT_EQ(done, Vector<Block*>{&second});
  frees.synchronize([](const Block&) { return true; }, lock);
  EXPECT_EQ(done, (Vector<Block*>{&second, &first}));
  EXPECT_TRUE(frees.empty());
}

TEST_P(DeferredFreesTest, AFailedRecordLeavesTheUsesAsTheyWere) {
  Block& freed = block();
  const DeviceLock lock(mutex);
  frees.add_use(freed, identify(device, a, /*immortal=*/false));
  frees.add_use(freed, identify(device, b, /*immortal=*/false));
  device.set_faults({{.call = DeviceCall::event_record, .nth = 2, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(frees.wait_for_uses(freed, lock), CudaError);
  EXPECT_TRUE(frees.empty());
  frees.wait_for_uses(freed, lock);
  EXPECT_EQ(freed.uses.pending_events, 2u);
  frees.reclaim(lock);
  EXPECT_EQ(done, Vector<Block*>{&freed});
}

TEST_P(DeferredFreesTest, AFailedQueryLosesNothing) {
  free_in_use({a});
  device.set_faults({{.call = DeviceCall::event_query, .nth = 1, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(reclaim(), CudaError);
  EXPECT_FALSE(is_empty());
  EXPECT_EQ(reclaim(), 1u);
}

TEST_P(DeferredFreesTest, AFailedSynchronizationLosesNothing) {
  free_in_use({a});
  const DeviceLock lock(mutex);
  device.set_faults({{.call = DeviceCall::event_synchronize, .nth = 1, .out_of_memory = false, .code = 700}});
  EXPECT_THROW(frees.synchronize([](const Block&) { return true; }, lock), CudaError);
  frees.synchronize([](const Block&) { return true; }, lock);
  EXPECT_EQ(done.size(), 1u);
}

TEST_P(DeferredFreesTest, EventsAndQueuesAreReused) {
  for (int round = 0; round < 1000; ++round) {
    free_in_use({device.new_stream()});  // a stream of its own each time
    EXPECT_EQ(reclaim(), 1u);
  }
  EXPECT_EQ(device.count(DeviceCall::event_create), 1u);
  const std::size_t bytes = metadata_bytes();
  for (int round = 0; round < 1000; ++round) {
    free_in_use({device.new_stream()});
    reclaim();
  }
  EXPECT_EQ(metadata_bytes(), bytes);
}

TEST_P(DeferredFreesTest, AQueueIsNotTakenOverWhileItsOnlyEventIsBeingAsked) {
  std::vector<Stream> streams(32);  // from this number of queues on, unused ones are taken over
  for (Stream& stream : streams) {
    stream = device.new_stream();
    free_in_use({stream});
  }
  EXPECT_EQ(reclaim(), streams.size());
  device.launch(streams.front(), 5000);
  device.launch(a, 1000);
  Block* const first = &free_in_use({streams.front()});
  Block* other = nullptr;
  asked_device.when_asked = [&] {
    reclaim();  // another thread's: it finds the queue empty
    other = &free_in_use({a});
  };
  EXPECT_EQ(reclaim(), 0u);
  ASSERT_NE(other, nullptr);
  device.launch(streams.front(), 1000);
  Block* const last = &free_in_use({streams.front()});
  done.clear();
  device.advance(1000);
  EXPECT_EQ(reclaim(), 1u);  // it is not behind what the other stream waits for
  device.advance(4000);
  EXPECT_EQ(reclaim(), 1u);
  device.advance(1000);
  EXPECT_EQ(reclaim(), 1u);
  EXPECT_EQ(done, (Vector<Block*>{other, first, last}));
  EXPECT_TRUE(is_empty());
}

}  // namespace
}  // namespace cachalot
