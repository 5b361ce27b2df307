// Buffers of bytes: sizes, moves, streams, copies, and what they refuse.
#include "cachalot/buffers.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

using Bytes = std::vector<unsigned char>;

Bytes counting(std::size_t bytes) {
  Bytes content(bytes);
  std::iota(content.begin(), content.end(), static_cast<unsigned char>(1));
  return content;
}

Bytes content_of(const DeviceBuffer& buffer) {
  Bytes content(buffer.size());
  buffer.copy_to_host(content.data(), content.size());
  return content;
}

TEST(DeviceBuffer, OwnsItsMemoryUntilItGoes) {
  World world;
  {
    const DeviceBuffer buffer(world.allocator, 1000);
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.size(), 1000u);
    EXPECT_EQ(world.allocator.requested_size(buffer.data()), 1000u);
  }
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(DeviceBuffer, OfNothingHasNoMemoryAndMayGrow) {
  World world;
  DeviceBuffer buffer(world.allocator);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.is_empty());
  buffer.resize(10);
  EXPECT_NE(buffer.data(), nullptr);
  buffer.reset();
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(world.allocated(), 0u);
  buffer.resize(20);
  EXPECT_EQ(buffer.size(), 20u);
}

TEST(DeviceBuffer, ResizeKeepsWhatWasInUse) {
  World world;
  DeviceBuffer buffer(world.allocator, 5000);
  const Bytes content = counting(5000);
  buffer.copy_from_host(content.data(), content.size());
  buffer.resize(3'000'000);
  EXPECT_EQ(buffer.capacity(), 3'000'000u);
  const void* const grown = buffer.data();
  buffer.resize(5000);
  EXPECT_EQ(buffer.data(), grown) << "a smaller size moved the memory";
  EXPECT_EQ(content_of(buffer), content);
  buffer.shrink_to_fit();
  EXPECT_EQ(buffer.capacity(), 5000u);
  EXPECT_EQ(content_of(buffer), content);
  EXPECT_EQ(world.allocated(), 5120u);
}

TEST(DeviceBuffer, ReserveMakesLaterGrowthFree) {
  World world;
  DeviceBuffer buffer(world.allocator, 10);
  buffer.reserve(5000);
  EXPECT_EQ(buffer.size(), 10u);
  const auto allocations = world.allocator.memory_stats().allocation.all.allocated;
  for (std::size_t size = 10; size <= 5000; size += 10) buffer.resize(size);
  EXPECT_EQ(world.allocator.memory_stats().allocation.all.allocated, allocations);
}

TEST(DeviceBuffer, AMoveLeavesAnEmptyBufferThatRefusesAllButAnAssignment) {
  World world;
  DeviceBuffer first(world.allocator, 100);
  const DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.size(), 100u);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): it is what is tested
  EXPECT_EQ(first.size(), 0u);
  EXPECT_EQ(first.allocator(), nullptr);
  EXPECT_CONTAINS(refusal([&] { first.resize(1); }), "resize of a buffer without an allocator");
  EXPECT_CONTAINS(refusal([&] { first.reserve(1); }), "or moved from");
  EXPECT_CONTAINS(refusal([&] { first.shrink_to_fit(); }), "shrink_to_fit of a buffer");
  EXPECT_CONTAINS(refusal([&] { first.set_stream(nullptr); }), "set_stream of a buffer");
  EXPECT_CONTAINS(refusal([&] { first.clone(); }), "clone of a buffer");
  EXPECT_CONTAINS(refusal([&] { first.copy_from_host("", 0); }), "copy_from_host of a buffer");
  first.reset();
  EXPECT_EQ(first.release(), nullptr);
  first = DeviceBuffer(world.allocator, 7);
  first.resize(8);
  EXPECT_EQ(first.size(), 8u);
}

TEST(DeviceBuffer, AnAssignmentFreesWhatWasThere) {
  World world;
  DeviceBuffer buffer(world.allocator, 100);
  buffer = DeviceBuffer(world.allocator, 3000);
  EXPECT_EQ(world.allocated(), 3072u);
  DeviceBuffer& same = buffer;
  buffer = std::move(same);
  EXPECT_EQ(buffer.size(), 3000u);
  EXPECT_EQ(world.allocated(), 3072u);
}

TEST(DeviceBuffer, ReleaseHandsTheMemoryOver) {
  World world;
  DeviceBuffer buffer(world.allocator, 100);
  void* const memory = buffer.release();
  EXPECT_TRUE(buffer.is_empty());
  EXPECT_EQ(world.allocated(), 512u);
  buffer.resize(1);
  world.allocator.deallocate(memory);
}

TEST(DeviceBuffer, ACloneHasContentOfItsOwn) {
  World world;
  DeviceBuffer buffer(world.allocator, 3);
  buffer.copy_from_host("abc", 3);
  const DeviceBuffer copy = buffer.clone();
  buffer.copy_from_host("z", 1, 2);
  EXPECT_EQ(content_of(copy), (Bytes{'a', 'b', 'c'}));
  EXPECT_EQ(content_of(buffer), (Bytes{'a', 'b', 'z'}));
}

TEST(DeviceBuffer, CopiesWithinTheDevice) {
  World world;
  DeviceBuffer from(world.allocator, 4);
  from.copy_from_host("abcd", 4);
  DeviceBuffer to(world.allocator, 4);
  to.copy_from_device(after(from.data(), 1), 3, 1);
  EXPECT_EQ(content_of(to), (Bytes{0, 'b', 'c', 'd'}));
}

TEST(DeviceBuffer, RefusesCopiesBeyondItsEnd) {
  World world;
  DeviceBuffer buffer(world.allocator, 100);
  Bytes host(200);
  EXPECT_EQ(refusal([&] { buffer.copy_from_host(host.data(), 101); }),
            "copy_from_host of 101 bytes from byte 0 on: the buffer has 100 bytes");
  EXPECT_CONTAINS(refusal([&] { buffer.copy_to_host(host.data(), 1, 100); }), "from byte 100 on");
  EXPECT_CONTAINS(refusal([&] { buffer.copy_from_device(host.data(), ~std::size_t{0}, 2); }),
                  "the buffer has 100 bytes");
  buffer.copy_to_host(host.data(), 0, 100);
  EXPECT_EQ(world.count(DeviceCall::copy), 0u);
}

TEST(DeviceBuffer, ABlockingCopyWaitsForTheStreamAndAnAsynchronousOneOfPinnedMemoryDoesNot) {
  World world;
  const Stream stream = world.device->new_stream();
  DeviceBuffer buffer(world.allocator, 100, stream);
  void* const pinned = world.device->host_malloc(100);
  world.launch(stream, 1000);
  const std::int64_t before = world.device->clock_ns();
  buffer.copy_from_host_async(pinned, 100);
  buffer.copy_to_host_async(pinned, 100);
  EXPECT_EQ(world.device->clock_ns(), before);
  buffer.copy_to_host(pinned, 100);
  EXPECT_GE(world.device->clock_ns(), before + 1'000'000);
  world.device->host_free(pinned);
}

TEST(DeviceBuffer, IsFreedInTheOrderOfItsStream) {
  World world;
  const Stream stream = world.device->new_stream();
  std::optional<DeviceBuffer> buffer(std::in_place, world.allocator, 100, stream);
  void* const memory = buffer->data();
  world.launch(stream);
  buffer.reset();
  DeviceBuffer next(world.allocator, 100, stream);
  EXPECT_EQ(next.data(), memory);
}

TEST(DeviceBuffer, AChangeOfStreamOrdersTheNewStreamBehindTheOld) {
  World world;
  const Stream old = world.device->new_stream();
  const Stream other = world.device->new_stream();
  std::optional<DeviceBuffer> buffer(std::in_place, world.allocator, 100, old);
  world.launch(old, 1000);
  buffer->set_stream(other);
  EXPECT_EQ(buffer->stream(), other);
  EXPECT_EQ(world.device->stream_ready_ns(other), world.device->stream_ready_ns(old));
  world.launch(other, 1000);
  void* const memory = buffer->data();
  buffer.reset();
  const DeviceBuffer on_old(world.allocator, 100, old);
  EXPECT_NE(on_old.data(), memory) << "the old stream got memory that work of the new one uses";
  world.pass(3000);
  const DeviceBuffer later(world.allocator, 100, old);
  EXPECT_EQ(later.data(), memory);
}

TEST(DeviceBuffer, AChangeToTheSameStreamAndOfAnEmptyBufferMakesNoCall) {
  World world;
  const Stream stream = world.device->new_stream();
  DeviceBuffer buffer(world.allocator, 0, stream);
  buffer.set_stream(stream);
  buffer.set_stream(nullptr);
  EXPECT_EQ(buffer.stream(), nullptr);
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
}

TEST(DeviceBuffer, RefusesAStreamOfAnotherDevice) {
  TwoDevices world;
  const Stream foreign = world.device[1]->new_stream();
  EXPECT_CONTAINS(refusal([&] { DeviceBuffer(world.allocator, 100, foreign, 0); }),
                  "is a stream of another device: work on memory of device 0 needs a stream of device 0");
  DeviceBuffer buffer(world.allocator, 100, world.device[0]->new_stream(), 0);
  const Stream before = buffer.stream();
  EXPECT_CONTAINS(refusal([&] { buffer.set_stream(foreign); }), "is a stream of another device");
  EXPECT_EQ(buffer.stream(), before);
  const DeviceBuffer there(world.allocator, 100, foreign, 1);
  EXPECT_EQ(world.allocator.device_of(there.data()), 1);
  EXPECT_CONTAINS(refusal([&] { DeviceBuffer(world.allocator, 100, nullptr, 2); }), "2");
}

TEST(DeviceBuffer, IsAsBeforeWhenMemoryRunsOut) {
  World world(64 * kMiB);
  DeviceBuffer buffer(world.allocator, 10 * kMiB);
  const void* const memory = buffer.data();
  out_of_memory([&] { buffer.resize(kGiB); });
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_EQ(buffer.size(), 10 * kMiB);
}

TEST(DeviceBuffer, IsAsBeforeWhenACopyFails) {
  World world;
  DeviceBuffer buffer(world.allocator, 3);
  buffer.copy_from_host("abc", 3);
  world.device->set_faults({{.call = DeviceCall::copy, .nth = 1, .out_of_memory = false, .code = 700}});
  message_of<CudaError>([&] { buffer.resize(5000); });
  EXPECT_EQ(buffer.size(), 3u);
  EXPECT_EQ(world.allocated(), 512u);
  EXPECT_EQ(content_of(buffer), (Bytes{'a', 'b', 'c'}));
}

// The n-th call of the device fails, for n = 1, 2, ...: after each failure the buffer has its size and its content.
TEST(DeviceBuffer, IsAsBeforeWhicheverCallFails) {
  World world;
  const Stream first = world.device->new_stream();
  const Stream second = world.device->new_stream();
  bool has_failed = true;
  for (std::uint64_t nth = 1; has_failed && nth < 100; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    DeviceBuffer buffer(world.allocator, 3, first);
    buffer.copy_from_host("abc", 3);
    world.allocator.empty_cache();
    world.device->set_faults({{.nth = nth, .out_of_memory = false, .code = 719}});
    has_failed = false;
    std::size_t size = 3;
    try {
      buffer.resize(5'000'000);
      size = 5'000'000;
      buffer.set_stream(second);
      buffer.resize(3);
      size = 3;
      buffer.shrink_to_fit();
      const DeviceBuffer copy = buffer.clone();
    } catch (const CudaError& error) {
      EXPECT_EQ(error.code(), 719);
      has_failed = true;
    }
    world.device->set_faults({});
    EXPECT_EQ(buffer.size(), size);
    Bytes content(3);
    buffer.copy_to_host(content.data(), content.size());
    EXPECT_EQ(content, (Bytes{'a', 'b', 'c'}));
    EXPECT_EQ(world.allocator.validate(), "");
  }
  EXPECT_FALSE(has_failed) << "the calls do not come to an end";
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(DeviceBuffer, MayOutliveItsAllocator) {
  auto world = std::make_unique<World>();
  DeviceBuffer late(world->allocator, 100);
  DeviceBuffer moved(world->allocator, 100);
  world.reset();
  EXPECT_CONTAINS(refusal([&] { late.resize(200); }), "whose allocator was destroyed");
  late = std::move(moved);
}

// Objects with static storage are destroyed in the reverse order of their making: the allocator before the buffer.
TEST(DeviceBufferDeathTest, MayBeDestroyedAfterItsAllocatorAtTheExitOfTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto end_the_process = [] {
    static DeviceBuffer late;
    static CachingAllocator allocator({std::make_shared<SimulatedDevice>(World::config_of(kGiB))});
    late = DeviceBuffer(allocator, 100);
    std::exit(late.data() != nullptr ? 7 : 0);
  };
  EXPECT_EXIT(end_the_process(), testing::ExitedWithCode(7), "^$");
}

TEST(DeviceBuffer, CopiesDuringACaptureArePartOfTheGraph) {
  World world;
  const Stream stream = world.device->new_stream();
  DeviceBuffer from(world.allocator, 3, stream);
  DeviceBuffer to(world.allocator, 3, stream);
  from.copy_from_host("abc", 3);
  world.device->begin_capture(stream);
  to.copy_from_device(from.data(), 3);
  EXPECT_NO_THROW(world.device->end_capture(stream));
  EXPECT_EQ(content_of(to), (Bytes{0, 0, 0}));
}

}  // namespace
}  // namespace cachalot
