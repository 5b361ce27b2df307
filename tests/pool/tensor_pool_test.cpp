// TensorPool by one thread: handed-out tensors, growth, memory given back, and bad input.
#include "cachalot/tensor_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "tests/pool/testing.h"

namespace cachalot {
namespace {

using namespace std::chrono_literals;

std::vector<PooledTensor> acquire_many(TensorPool& pool, std::size_t count, Stream stream = nullptr) {
  std::vector<PooledTensor> tensors;
  for (std::size_t i = 0; i < count; ++i) tensors.push_back(pool.acquire(stream));
  return tensors;
}

TEST(TensorPool, ATensorSaysWhatItIs) {
  PoolWorld world;
  const Stream stream = world.device->new_stream();
  const PooledTensor tensor = world.pool.acquire(stream);
  EXPECT_TRUE(tensor);
  EXPECT_EQ(tensor.shape(), (std::vector<std::int64_t>{256, 256}));
  EXPECT_EQ(tensor.dtype(), DType::float32);
  EXPECT_EQ(tensor.bytes(), kBytes);
  EXPECT_EQ(tensor.stream(), stream);
  EXPECT_EQ(world.allocator.device_of(tensor.data()), 0);
}

TEST(TensorPool, WhatIsReturnedIsHandedOutAgain) {
  PoolWorld world;
  void* first = nullptr;
  for (int i = 0; i < 100; ++i) {
    const PooledTensor tensor = world.pool.acquire();
    if (i == 0) first = tensor.data();
    EXPECT_EQ(tensor.data(), first);
  }
  const PoolStats stats = world.pool.stats();
  EXPECT_EQ(stats.acquires, 100u);
  EXPECT_EQ(stats.hits, 99u);
  EXPECT_DOUBLE_EQ(stats.reuse_rate(), 0.99);
  EXPECT_EQ(stats.allocations, 1u);
  EXPECT_EQ(stats.allocations_avoided(), 99);
  EXPECT_EQ(stats.live, 0u);
  EXPECT_EQ(stats.peak_live, 1u);
  EXPECT_EQ(stats.slots, 1u);
  EXPECT_EQ(stats.bytes, kBytes);
  EXPECT_EQ(stats.stream_waits, 0u);
}

TEST(TensorPool, LiveTensorsDoNotOverlapAndAreAligned) {
  for (const std::size_t alignment : {std::size_t{1}, std::size_t{512}, 4 * kKiB, 2 * kMiB}) {
    PoolWorld world({.growth_step = 3, .alignment = alignment}, {{1000}, DType::int8});
    std::vector<PooledTensor> tensors = acquire_many(world.pool, 10);
    std::vector<Address> addresses;
    for (const PooledTensor& tensor : tensors) addresses.push_back(address(tensor.data()));
    std::ranges::sort(addresses);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      EXPECT_EQ(addresses[i] % alignment, 0u);
      EXPECT_TRUE(i == 0 || addresses[i] - addresses[i - 1] >= 1000);
    }
    EXPECT_EQ(world.pool.stats().peak_live, 10u);
    EXPECT_EQ(world.pool.stats().slots, 12u);
  }
}

TEST(TensorPool, ItGrowsByStepsAndNeverBeyondItsLimit) {
  PoolWorld world({.initial_slots = 2, .max_slots = 6, .growth_step = 3});
  EXPECT_EQ(world.pool.stats().slots, 2u);
  std::vector<PooledTensor> tensors = acquire_many(world.pool, 3);
  EXPECT_EQ(world.pool.stats().slots, 5u);
  for (PooledTensor& tensor : acquire_many(world.pool, 3)) tensors.push_back(std::move(tensor));
  EXPECT_EQ(world.pool.stats().slots, 6u);
  EXPECT_EQ(world.pool.stats().allocations, 3u);
  EXPECT_CONTAINS(out_of_memory([&] { world.pool.acquire(); }), "max_slots 6");
  EXPECT_FALSE(world.pool.try_acquire());
  EXPECT_EQ(world.pool.stats().live, 6u);
  tensors.pop_back();
  EXPECT_TRUE(world.pool.acquire());
}

TEST(TensorPool, APoolThatFailsWhenEmptyNeverGrows) {
  PoolWorld world({.initial_slots = 1, .when_empty = WhenEmpty::fail});
  const PooledTensor tensor = world.pool.acquire();
  EXPECT_CONTAINS(out_of_memory([&] { world.pool.acquire(); }), "it fails when it is empty");
  EXPECT_EQ(world.pool.stats().slots, 1u);
}

TEST(TensorPool, ATensorMayBeReturnedOnceAndMovedAsOneLikes) {
  PoolWorld world;
  PooledTensor tensor = world.pool.acquire();
  PooledTensor moved = std::move(tensor);
  EXPECT_FALSE(tensor);  // NOLINT: what is moved from is empty
  EXPECT_CONTAINS(refusal([&] { tensor.release(); }), "returned to its pool already, or moved from");
  moved.release();
  EXPECT_FALSE(moved);
  EXPECT_EQ(moved.data(), nullptr);
  EXPECT_CONTAINS(refusal([&] { moved.release(); }), "release of a tensor that is empty");
  EXPECT_CONTAINS(refusal([&] { moved.record_stream(nullptr); }), "record_stream of a tensor that is empty");
  EXPECT_CONTAINS(refusal([&] { static_cast<void>(moved.shape()); }), "spec of a tensor that is empty");
  EXPECT_CONTAINS(refusal([&] { static_cast<void>(moved.bytes()); }), "bytes of a tensor that is empty");
  moved = world.pool.acquire();
  moved = world.pool.acquire();  // its slot comes back
  EXPECT_EQ(world.pool.stats().live, 1u);
  PooledTensor& same = moved;
  const void* const data = moved.data();
  moved = std::move(same);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(world.pool.stats().live, 1u);
}

TEST(TensorPool, BadInputIsRefusedAndNothingIsLost) {
  PoolWorld world;
  const auto make = [&](const TensorPoolOptions& options, const TensorSpec& spec = kSpec) {
    return refusal([&] { const TensorPool pool(world.allocator, spec, options); });
  };
  EXPECT_CONTAINS(make({}, {{0}}), "an extent of 0");
  EXPECT_CONTAINS(make({}, {{1}, DType::int8, 7}), "device 7 is not one of the 1 devices");
  EXPECT_CONTAINS(make({.growth_step = 0}), "growth_step is 0");
  EXPECT_CONTAINS(make({.alignment = 0}), "alignment is 0");
  EXPECT_CONTAINS(make({.alignment = 48}), "alignment is 48");
  EXPECT_CONTAINS(make({.initial_slots = 3, .max_slots = 2}), "initial_slots is 3: it is at most max_slots, 2");
  EXPECT_CONTAINS(make({.when_empty = WhenEmpty::fail}), "initial_slots is 0");
  EXPECT_CONTAINS(make({.when_empty = WhenEmpty::wait}), "initial_slots is 0");
  EXPECT_CONTAINS(make({.initial_slots = std::size_t{1} << 50}), "less than 1 EiB");
  EXPECT_CONTAINS(refusal([] { const TensorPool pool(std::shared_ptr<CachingAllocator>(), kSpec); }),
                  "the allocator of a pool is null");
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(TensorPool, InitialSlotsThatDoNotFitAreTheAllocatorsOutOfMemory) {
  World world(64 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { const TensorPool pool(world.allocator, kSpec, {.initial_slots = 1000}); }),
                  "MiB");
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(TensorPool, OfManagedMemoryMayBeLargerThanTheDevice) {
  World world(64 * kMiB, "heap:managed");
  {
    const TensorPool pool(world.allocator, {{kMiB}, DType::int8}, {.initial_slots = 100});
    EXPECT_EQ(world.allocated(), 100 * kMiB);
  }
  EXPECT_CONTAINS(out_of_memory([&] {
                    const TensorPool pool(world.allocator, {{kMiB}, DType::int8}, {.initial_slots = kMiB});
                  }),
                  "more than device 0 has");
}

TEST(TensorPool, TrimGivesBackWhatIsWhollyFreeAndNoMore) {
  PoolWorld world({.growth_step = 4});
  std::vector<PooledTensor> tensors = acquire_many(world.pool, 12);
  const std::size_t all = world.allocated();
  std::erase_if(tensors, [&, i = 0](const PooledTensor&) mutable { return i++ != 5; });
  EXPECT_EQ(world.pool.trim(8), 0u);
  EXPECT_EQ(world.pool.trim(7), kBytes * 4);
  EXPECT_EQ(world.pool.trim(), kBytes * 4);
  EXPECT_EQ(world.pool.trim(), 0u);
  EXPECT_EQ(world.pool.stats().slots, 4u);
  EXPECT_EQ(world.allocated(), all / 3);
  EXPECT_EQ(world.pool.validate(), "");
  tensors.clear();
  EXPECT_EQ(world.pool.trim(), kBytes * 4);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.pool.stats().peak_bytes, 12 * kBytes);
  EXPECT_TRUE(world.pool.acquire());
}

TEST(TensorPool, APoolThatNeverGrowsKeepsWhatItHas) {
  PoolWorld world({.initial_slots = 4, .when_empty = WhenEmpty::fail, .high_water = 0});
  acquire_many(world.pool, 4).clear();
  EXPECT_EQ(world.pool.trim(), 0u);
  EXPECT_EQ(acquire_many(world.pool, 4).size(), 4u);
}

TEST(TensorPool, SlotsBeyondTheHighWaterMarkGoBackByThemselves) {
  for (const std::size_t high_water : {std::size_t{0}, std::size_t{3}, std::size_t{50}}) {
    PoolWorld world({.high_water = high_water});
    acquire_many(world.pool, 100).clear();
    const PoolStats stats = world.pool.stats();
    EXPECT_LE(stats.slots, high_water);
    EXPECT_EQ(world.allocated(), stats.bytes);
    EXPECT_EQ(stats.peak_bytes, 100 * kBytes);
  }
}

TEST(TensorPool, ATensorHoldsZerosOrPoisonWhereThatIsAskedFor) {
  for (const auto& [on_reuse, value] : {std::pair{OnReuse::zero, 0}, std::pair{OnReuse::poison, int{kPoisonByte}}}) {
    PoolWorld world({.on_reuse = on_reuse}, {{1000}, DType::int8});
    for (int i = 0; i < 3; ++i) {
      const PooledTensor tensor = world.pool.acquire();
      std::vector<unsigned char> content(1000, 7);
      world.device->copy_to_host(content.data(), address(tensor.data()), content.size());
      EXPECT_EQ(std::ranges::count(content, value), 1000);
      std::ranges::fill(content, static_cast<unsigned char>(42));
      world.device->copy_from_host(address(tensor.data()), content.data(), content.size());
    }
    EXPECT_EQ(world.count(DeviceCall::fill), 3u);
  }
}

TEST(TensorPool, WhatIsKeptIsNotWritten) {
  PoolWorld world;
  for (int i = 0; i < 3; ++i) world.pool.acquire();
  EXPECT_EQ(world.count(DeviceCall::fill), 0u);
}

TEST(TensorPool, FiguresAreAJsonObjectOfTheirNames) {
  PoolWorld world;
  const PooledTensor kept = world.pool.acquire();
  world.pool.acquire().release();
  const auto json = nlohmann::json::parse(to_json(world.pool.stats()));
  const nlohmann::json expected = {
      {"acquires", 2}, {"hits", 0},  {"allocations", 2}, {"host_waits", 0},     {"stream_waits", 0},
      {"live", 1},     {"slots", 2}, {"peak_live", 2},   {"bytes", 2 * kBytes}, {"peak_bytes", 2 * kBytes}};
  EXPECT_EQ(json, expected);
}

TEST(TensorPool, APoolThatIsGoneKeepsItsMemoryUntilTheLastTensorComesBack) {
  World world;
  auto pool = std::make_unique<TensorPool>(world.allocator, kSpec, TensorPoolOptions{.growth_step = 4});
  std::vector<PooledTensor> tensors = acquire_many(*pool, 6);
  const std::size_t held = world.allocated();
  pool.reset();
  EXPECT_EQ(world.allocated(), held);
  EXPECT_EQ(tensors[0].bytes(), kBytes);
  while (tensors.size() > 1) tensors.pop_back();
  EXPECT_EQ(world.allocated(), held);
  on_another_thread([&] { tensors.clear(); });
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(TensorPool, AnAllocatorThatIsGoneIsNoticed) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  auto allocator = std::make_unique<CachingAllocator>(std::vector<std::shared_ptr<Device>>{device});
  TensorPool pool(*allocator, kSpec);
  PooledTensor kept = pool.acquire();
  pool.acquire();
  allocator.reset();
  EXPECT_CONTAINS(refusal([&] { pool.acquire(); }), "the pool's allocator is gone");
  EXPECT_CONTAINS(refusal([&] { pool.try_acquire(); }), "the pool's allocator is gone");
  EXPECT_CONTAINS(refusal([&] { pool.acquire_for(1ms); }), "the pool's allocator is gone");
  EXPECT_CONTAINS(refusal([&] { pool.trim(); }), "the pool's allocator is gone");
  kept.release();
  EXPECT_EQ(pool.validate(), "");
  EXPECT_EQ(pool.stats().live, 0u);
}

TEST(TensorPool, ASharedAllocatorLivesAsLongAsItsPoolAndItsTensors) {
  auto allocator = std::make_shared<CachingAllocator>(
      std::vector<std::shared_ptr<Device>>{std::make_shared<SimulatedDevice>(World::config_of(kGiB))});
  const std::weak_ptr<CachingAllocator> seen = allocator;
  auto pool = std::make_unique<TensorPool>(std::move(allocator), kSpec);
  PooledTensor tensor = pool->acquire();
  pool.reset();
  EXPECT_FALSE(seen.expired());
  tensor.release();
  EXPECT_TRUE(seen.expired());
}

TEST(TensorPool, ASlotCostsAtMost64Bytes) {
  PoolWorld world({.initial_slots = 10'000, .growth_step = 64}, {{1}, DType::int8});
  EXPECT_LE(world.pool.metadata_bytes(), 64 * 10'000u);
  const std::vector<PooledTensor> tensors = acquire_many(world.pool, 15'000);
  EXPECT_LE(world.pool.metadata_bytes(), 64 * world.pool.stats().slots);
}

// Every device call that a program of a pool makes fails once, each in its turn.
TEST(TensorPool, AfterAnyFailingCallTheBooksBalanceAndItGoesOn) {
  const auto program = [](PoolWorld& world) {
    const Stream a = world.device->new_stream();
    const Stream b = world.device->new_stream();
    std::vector<PooledTensor> tensors = acquire_many(world.pool, 3, a);
    tensors[0].record_stream(b);
    tensors.clear();
    tensors = acquire_many(world.pool, 4, b);
    tensors.clear();
    tensors = acquire_many(world.pool, 4, nullptr);
    tensors.clear();
    world.pool.trim();
  };
  std::uint64_t nth = 0;
  bool struck = true;
  while (struck) {
    PoolWorld world({.growth_step = 2, .on_reuse = OnReuse::zero});
    world.device->set_faults({{.nth = ++nth, .out_of_memory = false, .code = 999}});
    try {
      program(world);
    } catch (const CudaError& error) {
      EXPECT_EQ(error.code(), 999);
    }
    struck = world.device->faults_injected() > 0;
    EXPECT_EQ(world.pool.validate(), "") << "call " << nth;
    EXPECT_EQ(world.pool.stats().live, 0u) << "call " << nth;
    world.device->set_faults({});
    program(world);
    EXPECT_EQ(world.allocated(), 0u) << "call " << nth;
  }
  EXPECT_GT(nth, 20u);
}

}  // namespace
}  // namespace cachalot
