// Copies over the bus, as work of streams: their durations, overlaps, and waits.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"
#include "simulator/device/simulated_streams.h"
#include "tests/device/units.h"

namespace cachalot {
namespace {

constexpr std::int64_t kPinned = 40 * kMicrosecond;     // of one MiB
constexpr std::int64_t kPageable = 100 * kMicrosecond;  // the same
constexpr HostCopy kUp{CopyDirection::to_device, kMiB, true};
constexpr HostCopy kDown{CopyDirection::to_host, kMiB, true};
constexpr HostCopy kPageableUp{CopyDirection::to_device, kMiB, false};
constexpr HostCopy kPageableDown{CopyDirection::to_host, kMiB, false};

SimulatedDevice::Config round_figures() {
  return {.latency = LatencyModel::none(),
          .copies = {.setup_us = 0, .pinned_us_per_mib = 40, .pageable_us_per_mib = 100, .staged_bytes = 64 * kKiB}};
}

class Copies : public testing::Test {
 protected:
  SimulatedDevice device_{round_figures()};
  const Stream first_ = device_.new_stream();
  const Stream second_ = device_.new_stream();
};

TEST_F(Copies, FromPinnedMemoryTheHostGoesOnAtOnce) {
  EXPECT_EQ(device_.launch_copy(first_, kUp), kPinned);
  EXPECT_EQ(device_.launch_copy(first_, kDown), 2 * kPinned);  // in stream order
  EXPECT_EQ(device_.clock_ns(), 0);
}

TEST_F(Copies, OfOneDirectionTakeTurnsAndThoseOfTwoOverlap) {
  EXPECT_EQ(device_.launch_copy(first_, kUp), kPinned);
  EXPECT_EQ(device_.launch_copy(second_, kUp), 2 * kPinned);
  EXPECT_EQ(device_.launch_copy(device_.new_stream(), kDown), kPinned);
}

TEST_F(Copies, OverlapWithWorkOfOtherStreams) {
  device_.launch(first_, 1000 * kMicrosecond);
  EXPECT_EQ(device_.launch_copy(second_, kUp), kPinned);
  EXPECT_EQ(device_.launch_copy(first_, kUp), 1000 * kMicrosecond + kPinned);
}

TEST_F(Copies, OneThatWaitsForItsStreamHoldsUpNoOther) {
  device_.launch(first_, 1000 * kMicrosecond);
  device_.launch_copy(first_, kUp);
  EXPECT_EQ(device_.launch_copy(second_, kUp), kPinned);
}

TEST_F(Copies, FromPageableMemoryWaitForTheStreamAndReturnWhenTheLastIsStaged) {
  device_.launch(first_, 1000 * kMicrosecond);
  EXPECT_EQ(device_.launch_copy(first_, kPageableUp), 1000 * kMicrosecond + kPageable);
  EXPECT_EQ(device_.clock_ns(), 1000 * kMicrosecond + kPageable - kPinned / 16);  // 64 KiB are in the buffer
}

TEST_F(Copies, FromPageableMemoryThatFitsInTheBufferOnlyTakeTheTimeToFillIt) {
  device_.launch(first_, 1000 * kMicrosecond);
  const std::int64_t end = device_.launch_copy(first_, {CopyDirection::to_device, 64 * kKiB, false});
  EXPECT_EQ(end, 1000 * kMicrosecond + kPinned / 16);
  EXPECT_EQ(device_.clock_ns(), kPageable / 16);
}

TEST_F(Copies, ToPageableMemoryReturnWhenTheyAreDone) {
  device_.launch(first_, 1000 * kMicrosecond);
  EXPECT_EQ(device_.launch_copy(first_, kPageableDown), 1000 * kMicrosecond + kPageable);
  EXPECT_EQ(device_.clock_ns(), 1000 * kMicrosecond + kPageable);
}

TEST_F(Copies, AnEventBehindACopyIsDoneWithIt) {
  const Event event = device_.event_create();
  device_.launch_copy(first_, kUp);
  device_.event_record(event, first_);
  EXPECT_FALSE(device_.event_query(event));
  device_.event_synchronize(event);
  EXPECT_EQ(device_.clock_ns(), kPinned);
  device_.event_destroy(event);
}

TEST_F(Copies, OnACapturingStreamJoinTheGraph) {
  device_.begin_capture(first_);
  EXPECT_EQ(device_.launch_copy(first_, kUp), 0);
  EXPECT_EQ(device_.launch_copy(first_, kPageableDown), 0);
  EXPECT_EQ(device_.clock_ns(), 0);
  device_.end_capture(first_);
}

TEST_F(Copies, OfMemoryThatIsNotAccessibleAreRefusedAndTakeNoTime) {
  const Address memory = device_.malloc(kMiB).value();
  try {
    device_.launch_copy(first_, kPageableDown, {{memory, kMiB + 1}});
    FAIL();
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), 700);
  }
  EXPECT_EQ(device_.launch_copy(first_, kUp, {{memory, kMiB}}), kPinned);
}

TEST_F(Copies, WithoutAModelTakeNoTime) {
  SimulatedDevice device({.latency = LatencyModel::none(), .copies = CopyModel::none()});
  EXPECT_EQ(device.launch_copy(nullptr, kPageableUp), 0);
  EXPECT_EQ(device.clock_ns(), 0);
}

TEST(CopyModels, OnThePublishedFiguresPageableMemoryTakesMoreThanTwiceAsLong) {
  const CopyModel model = CopyModel::published();
  EXPECT_DOUBLE_EQ(model.pinned_us_per_mib, 42);
  EXPECT_DOUBLE_EQ(model.pageable_us_per_mib, 105);
  EXPECT_GT(model.engine_ns(kPageableUp), 2 * model.engine_ns(kUp));
  EXPECT_EQ(model.bytes_ns(SIZE_MAX, true), 1'000'000'000'000);  // an absurd size is not an overflow
}

TEST(HazardsOfCopies, ACopyIsAUseOfItsMemory) {
  SimulatedDevice device({.latency = LatencyModel::none(), .check_hazards = true});
  const Stream copies = device.new_stream();
  const Stream other = device.new_stream();
  const Address memory = device.malloc(kMiB).value();
  device.handed_out(memory, kMiB, copies);
  device.launch_copy(copies, kUp, {{memory, kMiB}});
  device.given_back(memory);
  EXPECT_THROW(device.handed_out(memory, kMiB, other), HazardError);
  device.handed_out(memory, kMiB, copies);
  device.launch_copy(copies, kPageableDown, {{memory, kMiB}});  // the host waits, and has seen all before it
  device.given_back(memory);
  device.handed_out(memory, kMiB, other);
}

TEST(CopyEngines, ACopyTakesTheFirstGapThatIsLongEnough) {
  CopyEngine engine;
  EXPECT_EQ(engine.take(0, 100, 50), 150);
  EXPECT_EQ(engine.take(0, 0, 90), 90);     // before it
  EXPECT_EQ(engine.take(0, 0, 20), 170);    // the gap of 10 is too short
  EXPECT_EQ(engine.take(0, 0, 10), 100);    // and not for this one
  EXPECT_EQ(engine.take(0, 0, 0), 0);       // nothing needs no engine
  EXPECT_EQ(engine.take(160, 0, 10), 180);  // a copy that has begun is not put off
  EXPECT_EQ(engine.take(500, 0, 10), 510);
}

}  // namespace
}  // namespace cachalot
