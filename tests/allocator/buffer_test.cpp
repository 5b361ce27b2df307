// Arrays and single values in device memory, and owners of arrays.
#include "cachalot/buffers.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

TEST(Buffer, CountsElements) {
  World world;
  Buffer<double> buffer(world.allocator, 100);
  EXPECT_EQ(buffer.size(), 100u);
  EXPECT_EQ(buffer.size_bytes(), 800u);
  EXPECT_EQ(world.allocator.requested_size(buffer.data()), 800u);
  EXPECT_EQ(buffer.device_span().size(), 100u);
  EXPECT_EQ(buffer.device_span().data(), buffer.data());
  buffer.reserve(200);
  EXPECT_EQ(buffer.capacity(), 200u);
  buffer.shrink_to_fit();
  EXPECT_EQ(buffer.capacity(), 100u);
}

TEST(Buffer, CopiesElementsToAndFromTheHost) {
  World world;
  const std::vector<int> values = {1, 2, 3, 4};
  Buffer<int> buffer(world.allocator, values);
  EXPECT_EQ(buffer.to_host(), values);
  buffer.copy_from_host({{7, 8}}, 1);
  EXPECT_EQ(buffer.to_host(), (std::vector<int>{1, 7, 8, 4}));
  std::array<int, 2> last{};
  buffer.copy_to_host(last, 2);
  EXPECT_EQ(last, (std::array<int, 2>{8, 4}));
  buffer.set_element(0, 9);
  EXPECT_EQ(buffer.element(0), 9);
  EXPECT_EQ(buffer.element(3), 4);
}

TEST(Buffer, KeepsElementsWhenItGrowsAndIsCloned) {
  World world;
  Buffer<short> buffer(world.allocator, std::vector<short>{1, 2, 3});
  const Buffer<short> copy = buffer.clone();
  buffer.resize(5);
  buffer.copy_from_device(copy.device_span(), 2);
  EXPECT_EQ(buffer.to_host(), (std::vector<short>{1, 2, 1, 2, 3}));
}

TEST(Buffer, RefusesElementsThatItDoesNotHave) {
  World world;
  Buffer<int> buffer(world.allocator, 3);
  EXPECT_EQ(refusal([&] { buffer.element(3); }), "copy_to_host of 4 bytes from byte 12 on: the buffer has 12 bytes");
  EXPECT_CONTAINS(refusal([&] { buffer.set_element(std::numeric_limits<std::size_t>::max(), 1); }),
                  "an array of 18446744073709551615 elements of 4 bytes");
}

TEST(Buffer, RefusesSizesWhoseBytesOverflow) {
  World world;
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(refusal([&] { Buffer<double>(world.allocator, most / 8 + 1); }),
            "an array of 2305843009213693952 elements of 8 bytes has more bytes than a std::size_t can hold");
  Buffer<double> buffer(world.allocator, 10);
  EXPECT_CONTAINS(refusal([&] { buffer.resize(most / 2); }), "elements of 8 bytes");
  EXPECT_CONTAINS(refusal([&] { buffer.reserve(most); }), "elements of 8 bytes");
  EXPECT_CONTAINS(refusal([&] { allocate_array<double>(world.allocator, most); }), "elements of 8 bytes");
  EXPECT_EQ(buffer.size(), 10u);
  out_of_memory([&] { Buffer<double>(world.allocator, most / 8); });  // it does not overflow, and no device has it
}

TEST(Buffer, AMoveAndAReleaseLeaveItEmpty) {
  World world;
  Buffer<int> first(world.allocator, 3);
  Buffer<int> second = std::move(first);
  EXPECT_TRUE(first.is_empty());  // NOLINT(bugprone-use-after-move): it is what is tested
  EXPECT_CONTAINS(refusal([&] { first.resize(1); }), "moved from");
  EXPECT_CONTAINS(refusal([&] { first.element(0); }), "moved from");
  int* const memory = second.release();
  EXPECT_EQ(second.size(), 0u);
  world.allocator.deallocate(memory);
  DeviceBuffer bytes = Buffer<int>(world.allocator, 5).release_buffer();
  EXPECT_EQ(bytes.size(), 20u);
}

TEST(Buffer, FollowsItsStream) {
  World world;
  const Stream stream = world.device->new_stream();
  Buffer<int> buffer(world.allocator, 5);
  buffer.set_stream(stream);
  EXPECT_EQ(buffer.stream(), stream);
  EXPECT_EQ(buffer.device(), 0);
  EXPECT_EQ(buffer.allocator(), &world.allocator);
}

TEST(Scalar, HoldsAValue) {
  World world;
  const Stream stream = world.device->new_stream();
  Scalar<std::int64_t> total(world.allocator, 42, stream);
  EXPECT_EQ(total.value(), 42);
  total.set_value(-1);
  EXPECT_EQ(total.value(), -1);
  EXPECT_EQ(world.allocated(), 512u);
  Scalar<std::int64_t> moved = std::move(total);
  EXPECT_EQ(total.data(), nullptr);  // NOLINT(bugprone-use-after-move): it is what is tested
  EXPECT_CONTAINS(refusal([&] { total.value(); }), "moved from");
  EXPECT_EQ(moved.stream(), stream);
}

TEST(Scalar, WaitsForItsStreamAndDoesNotForPinnedValues) {
  World world;
  const Stream stream = world.device->new_stream();
  Scalar<int> scalar(world.allocator, stream);
  int* const pinned = static_cast<int*>(world.device->host_malloc(sizeof(int)));
  *pinned = 5;
  world.launch(stream, 1000);
  scalar.set_value_async(*pinned);
  scalar.value_async(*pinned);
  EXPECT_EQ(world.device->clock_ns(), 0);
  EXPECT_EQ(scalar.value(), 5);
  EXPECT_GE(world.device->clock_ns(), 1'000'000);
  world.device->host_free(pinned);
}

TEST(Aliases, AreTheNamesOfRmm) {
  World world;
  const buffer<int> array(world.allocator, 3);
  const scalar<int> value(world.allocator);
  const device_buffer bytes(world.allocator, 3);
  EXPECT_EQ(array.size(), bytes.size());
  EXPECT_NE(value.data(), nullptr);
}

TEST(OwnedArray, FreesItsElements) {
  World world;
  {
    const OwnedArray<float> weights = allocate_array<float>(world.allocator, 100);
    EXPECT_EQ(world.allocator.requested_size(weights.get()), 400u);
    EXPECT_EQ(allocate_array<float>(world.allocator, 0).get(), nullptr);
  }
  EXPECT_EQ(world.allocated(), 0u);
}

}  // namespace
}  // namespace cachalot
