// Sizes, counts, alignments and devices that no program means, at every public entry that takes one: refused as the caller's
// mistake or as out of memory, by a message, and nothing has changed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cachalot/cub_scratch.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/pool_set.h"
#include "cachalot/slot_pool.h"
#include "tests/allocator/testing.h"
#include "tests/reliability/heaps.h"

namespace cachalot {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

// Sizes at which rounding to 512 bytes, to a page, to a segment and adding canaries would overflow, and where it would
// not quite.
constexpr std::array kHugeSizes = {kMost,
                                   kMost - 1,
                                   kMost - 511,
                                   kMost - 512,
                                   kMost - 1024,
                                   kMost - 2 * kMiB,
                                   kMost - 20 * kMiB,
                                   kMost / 2,
                                   kMost / 2 + 1,
                                   kMaxRequestBytes,
                                   kMaxRequestBytes - 1,
                                   kMaxRequestBytes - 512,
                                   kMaxRequestBytes - 513,
                                   kMaxRequestBytes - 1025,
                                   kMaxRequestBytes - 2 * kMiB,
                                   std::size_t{1} << 59,
                                   std::size_t{1} << 48,
                                   std::size_t{1} << 40};

// Returns the message of the action's refusal, as the caller's mistake or as out of memory; the test fails if it is not
// refused.
std::string refused(const std::function<void()>& action) {
  return refusal([&] {
    try {
      action();
    } catch (const OutOfMemory& error) {
      throw InvalidArgument(error.what());
    }
  });
}

class HugeSizes : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kDeviceBytes = 64 * kMiB;

  // Expects a refusal with a message; held memory stays held, and an ordinary request is served.
  void expect_refused(const std::function<void()>& action) {
    const std::size_t live = live_bytes();
    EXPECT_NE(refused(action), "");
    EXPECT_EQ(live_bytes(), live);
    EXPECT_EQ(world_.allocator.validate(), "");
    EXPECT_EQ(world_.reserved(), world_.device->used_bytes());
    void* ptr = world_.allocate(1000);
    EXPECT_NE(ptr, nullptr);
    world_.allocator.deallocate(ptr);
  }

  // The guard's quarantine is given up before memory runs out.
  std::size_t live_bytes() { return world_.allocated() - quarantined_bytes(world_.allocator); }

  const SmallQuarantine small_{2 * kMiB};
  World world_{kDeviceBytes, GetParam()};
};

std::vector<const char*> every_heap_and_the_guard() {
  std::vector<const char*> heaps(std::begin(kHeaps), std::end(kHeaps));
  heaps.insert(heaps.end(),
               {"guard:True", "heap:pages,guard:True", "roundup_power2_divisions:4", "large_segment_size_mb:32"});
  return heaps;
}
INSTANTIATE_TEST_SUITE_P(Heaps, HugeSizes, testing::ValuesIn(every_heap_and_the_guard()),
                         [](const auto& test) { return fmt::format("heap{}", test.index); });

TEST_P(HugeSizes, AreRefusedByTheAllocator) {
  void* const live = world_.allocate(5000);
  for (const std::size_t bytes : kHugeSizes) {
    SCOPED_TRACE(bytes);
    expect_refused([&] { world_.allocate(bytes); });
    expect_refused([&] { world_.allocator.allocate(bytes, 0, nullptr, {.contiguous = true}); });
    expect_refused([&] { world_.allocator.allocate(bytes, 0, nullptr, {.alignment = kMaxAlignment}); });
    expect_refused([&] { world_.allocator.allocate(512, 0, nullptr, {.alignment = bytes}); });
    expect_refused([&] { world_.allocator.deallocate(live, bytes, 0, nullptr); });
    expect_refused([&] { world_.allocator.allocate(bytes, std::numeric_limits<int>::max(), nullptr); });
    expect_refused([&] { world_.allocator.allocate(bytes, std::numeric_limits<int>::min(), nullptr); });
  }
  EXPECT_EQ(world_.allocator.device_of(live), 0);
  world_.allocator.deallocate(live);
}

TEST_P(HugeSizes, AreRefusedByTensorPools) {
  for (const std::size_t bytes : kHugeSizes) {
    SCOPED_TRACE(bytes);
    const auto extent = static_cast<std::int64_t>(bytes);  // negative from 2^63 on
    expect_refused([&] { TensorPool(world_.allocator, {{extent}, DType::uint8}).acquire(); });
    expect_refused([&] { TensorPool(world_.allocator, {{extent, 2}, DType::complex128}).acquire(); });
    expect_refused([&] { TensorPool(world_.allocator, {{8}}, {.initial_slots = bytes}); });
    expect_refused([&] { TensorPool(world_.allocator, {{8}}, {.growth_step = bytes}).acquire(); });
    expect_refused([&] { TensorPool(world_.allocator, {{8}}, {.alignment = bytes}).acquire(); });
    expect_refused([&] { PoolSet(world_.allocator, bytes).acquire({{extent}, DType::uint8}); });
    expect_refused([&] { PoolSet(world_.allocator, kMost).acquire({{extent}, DType::uint8}); });
  }
  expect_refused([&] { PoolSet(world_.allocator, 0); });
  expect_refused([&] { TensorPool(world_.allocator, {{8}, DType::float32, std::numeric_limits<int>::max()}); });
  expect_refused([&] { TensorPool(world_.allocator, {{8}, static_cast<DType>(250)}); });
}

TEST_P(HugeSizes, AreRefusedByTheKernelsMemory) {
  CubScratch scratch(world_.allocator);
  for (const std::size_t bytes : kHugeSizes) {
    SCOPED_TRACE(bytes);
    expect_refused([&] { scratch.reserve(bytes); });
    expect_refused([&] { SlotPool(world_.allocator, bytes, 1); });
    expect_refused([&] { SlotPool(world_.allocator, 1, bytes); });
    expect_refused([&] { SlotPool(world_.allocator, bytes, bytes); });
  }
}

TEST(HugeSizesOfPinnedMemory, AreRefused) {
  World world(64 * kMiB);
  PinnedHostAllocator host(world.device);
  void* const live = host.allocate(5000);
  for (const std::size_t bytes : kHugeSizes) {
    SCOPED_TRACE(bytes);
    if (bytes == std::size_t{1} << 40) continue;  // a machine might have it
    EXPECT_NE(refused([&] { host.allocate(bytes); }), "");
    EXPECT_EQ(host.cache().validate(), "");
  }
  EXPECT_EQ(host.memory_allocated(), 5120u);
  host.deallocate(live);
}

// Counts that are only limits may be anything.
TEST(HugeCounts, ThatLimitSomethingAreTaken) {
  World world;
  world.allocator.record_history({.max_entries = kMost});
  TensorPool pool(world.allocator, {{8}}, {.max_slots = kMost, .high_water = kMost});
  EXPECT_TRUE(pool.acquire());
  EXPECT_EQ(world.allocator.snapshot().device_traces.at(0).empty(), false);
  EXPECT_GT(pool.trim(), 0u);
}

// ---- Texts of options

TEST(HostileOptions, AreRefusedByOneMessageOfModestLength) {
  World world;
  const std::string megabyte(1 << 20, 'x');
  const std::vector<std::string> texts = {
      megabyte,
      "max_split_size_mb:" + megabyte,
      "max_split_size_mb:" + std::string(1 << 20, '9'),
      "max_split_size_mb:18446744073709551615",
      "max_split_size_mb:18446744073709551616",
      "max_split_size_mb:17592186044416",  // 2^64 bytes
      "max_split_size_mb:-1",
      "max_split_size_mb:+20",
      "max_split_size_mb:0x20",
      "max_split_size_mb:1e3",
      "max_split_size_mb:",
      "garbage_collection_threshold:nan",
      "garbage_collection_threshold:inf",
      "garbage_collection_threshold:-0.5",
      "garbage_collection_threshold:1e400",
      "garbage_collection_threshold:0.5.5",
      "page_size_mb:18446744073709551615",
      "pinned_limit_mb:17592186044416",
      "large_segment_size_mb:18446744073709551615",
      "roundup_power2_divisions:18446744073709551615",
      "roundup_power2_divisions:[" + std::string(1000, '[') + "]",
      "roundup_power2_divisions:[256:1,512:2",
      "per_process_memory_fraction:nan",
      "per_process_memory_fraction:2",
      std::string(1000, ','),
      ":::::",
      "heap:\xff\xfe",
      "\xc3\x28:1",
      "h\xc3\xa9"
      "ap:pages",
      "heap:pages\nheap:segments",
      "\x1b[2J:1",
  };
  const Options before = world.allocator.options();
  for (const std::string& text : texts) {
    SCOPED_TRACE(text.substr(0, 60));
    const std::string message = refused([&] { world.allocator.configure(text); });
    EXPECT_NE(message, "");
    EXPECT_LT(message.size(), 2000u);
    EXPECT_TRUE(world.allocator.options() == before);
    EXPECT_NE(refused([&] { parse_options(text); }), "");
  }
}

}  // namespace
}  // namespace cachalot
