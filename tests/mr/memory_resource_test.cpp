// MemoryResource over the simulated CUDA runtime: the calls, the order of streams, alignment, mistakes.
#include <gmock/gmock.h>

#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/mr/testing.h"

namespace cachalot {
namespace {

using testing::HasSubstr;

class AMemoryResource : public ResourceTest {};

TEST_F(AMemoryResource, ServesEachCallFromItsAllocator) {
  for (const std::size_t bytes : {std::size_t{1}, kKiB, kMiB, kGiB}) {
    void* const ordered = allocate(resource, bytes, stream);
    void* const synchronous = allocate_sync(resource, bytes);
    EXPECT_EQ(address(ordered) % 256, 0U);
    EXPECT_NE(ordered, synchronous);
    EXPECT_EQ(allocator->requested_size(ordered), bytes);
    EXPECT_EQ(allocator->requested_size(synchronous), bytes);
    cudaPointerAttributes attributes = {};
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, ordered), cudaSuccess);
    EXPECT_EQ(attributes.devicePointer, ordered);
    deallocate(resource, ordered, bytes, stream);
    deallocate_sync(resource, synchronous, bytes);
  }
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(AMemoryResource, ReturnsNullForNoBytesAndTakesItBack) {
  EXPECT_EQ(allocate(resource, 0, stream), nullptr);
  EXPECT_EQ(allocate_sync(resource, 0), nullptr);
  deallocate(resource, nullptr, 0, stream);
  deallocate_sync(resource, nullptr, 0);
}

TEST_F(AMemoryResource, KeepsAlignmentsUpToTwoMebibytes) {
  std::vector<std::pair<void*, std::size_t>> live;
  for (std::size_t alignment = 1; alignment <= kMaxAlignment; alignment *= 2) {
    live.emplace_back(allocate(resource, 3 * kMiB, stream, alignment), alignment);
    EXPECT_EQ(address(live.back().first) % alignment, 0U) << alignment;
    live.emplace_back(allocate_sync(resource, 700, alignment), 0);
    EXPECT_EQ(address(live.back().first) % alignment, 0U) << alignment;
  }
  for (const auto& [ptr, alignment] : live) {
    if (alignment != 0) deallocate(resource, ptr, 3 * kMiB, stream, alignment);
    if (alignment == 0) deallocate_sync(resource, ptr, 700);
  }
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

TEST_F(AMemoryResource, RefusesAnAlignmentThatIsNone) {
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{384}, 4 * kMiB}) {
    EXPECT_THAT(message_of<InvalidArgument>([&] { allocate(resource, 100, stream, alignment); }),
                HasSubstr("an alignment of " + std::to_string(alignment) + " bytes: it must be a power of two"));
    EXPECT_THROW(allocate_sync(resource, 100, alignment), InvalidArgument);
  }
  EXPECT_EQ(allocator->memory_reserved(), 0U);
}

TEST_F(AMemoryResource, ThrowsBadAllocWhenMemoryIsOut) {
  EXPECT_THROW(allocate(resource, std::size_t{1} << 50, stream), std::bad_alloc);
  EXPECT_THROW(allocate(resource, SIZE_MAX, stream), std::bad_alloc);
  EXPECT_THROW(allocate_sync(resource, std::size_t{1} << 50), OutOfMemory);
  EXPECT_NE(allocate(resource, kMiB, stream), nullptr);
}

TEST_F(AMemoryResource, ReusesMemoryOnTheStreamOfItsFreeAtOnce) {
  void* const first = allocate(resource, 30 * kMiB, stream);
  launch(stream);
  deallocate(resource, first, 30 * kMiB, stream);
  EXPECT_EQ(allocate(resource, 30 * kMiB, stream), first);
}

TEST_F(AMemoryResource, WaitsForTheWorkOfTheStreamThatFreed) {
  void* const first = allocate(resource, 30 * kMiB, stream);
  launch(other);
  deallocate(resource, first, 30 * kMiB, other);
  void* const second = allocate(resource, 30 * kMiB, stream);
  EXPECT_NE(second, first);
  ASSERT_EQ(cachalot_sim_advance(2 * kMillisecond), 0);
  EXPECT_EQ(allocate(resource, 30 * kMiB, stream), first);
}

// The memory was freed with work queued; a caller that gets it without a stream may use it anywhere.
TEST_F(AMemoryResource, GivesMemoryWithoutAStreamOnceItIsIdle) {
  void* const first = allocate(resource, 30 * kMiB, nullptr);
  launch(nullptr);
  deallocate(resource, first, 30 * kMiB, nullptr);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(allocate_sync(resource, 30 * kMiB), first);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaSuccess);
}

// The page heap makes the default stream wait for the stream whose memory it takes; the host waits for both.
TEST_F(AMemoryResource, GivesMemoryOfAnotherStreamWithoutAStreamOnceItIsIdle) {
  const auto pages = std::make_shared<CachingAllocator>(
      cuda_devices(), parse_options("heap:pages,cross_stream:wait,immortal_streams:True"));
  const MemoryResource crossing(pages);
  void* const first = allocate(crossing, 64 * kMiB, stream);
  launch(stream);
  deallocate(crossing, first, 64 * kMiB, stream);
  deallocate(crossing, allocate(crossing, 2 * kMiB, nullptr), 2 * kMiB, nullptr);  // records an event behind the work
  const std::size_t held = pages->memory_reserved();
  const std::int64_t waits = cachalot_sim_calls(0, "stream_wait");
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  static_cast<void>(cudaGetLastError());
  void* const second = allocate_sync(crossing, 64 * kMiB);
  EXPECT_EQ(pages->memory_reserved(), held);
  EXPECT_GT(cachalot_sim_calls(0, "stream_wait"), waits);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  deallocate_sync(crossing, second, 64 * kMiB);
}

TEST_F(AMemoryResource, AllocatesNothingWithoutAStreamIfTheWaitFails) {
  for (const char* fault : {"event_create:1", "event_record:1", "event_synchronize:1", "event_destroy:1",
                            "event_record:1,event_destroy:1"}) {
    ASSERT_EQ(cachalot_sim_set_faults(0, fault), 0);
    EXPECT_THROW(allocate_sync(resource, kMiB), CudaError) << fault;
    ASSERT_EQ(cachalot_sim_set_faults(0, ""), 0);
    EXPECT_EQ(allocator->memory_allocated(), 0U) << fault;
  }
}

TEST_F(AMemoryResource, IsAHandle) {
  const MemoryResource copy = resource;
  EXPECT_TRUE(copy == resource);
  EXPECT_FALSE(copy != resource);
  EXPECT_TRUE(MemoryResource(*allocator) == resource);
  EXPECT_TRUE(MemoryResource(allocator, 1) != resource);
  EXPECT_EQ(&copy.allocator(), allocator.get());
  EXPECT_EQ(MemoryResource(allocator, 1).device(), 1);
  void* const ptr = allocate(copy, kMiB, stream);
  deallocate(resource, ptr, kMiB, stream);
}

TEST_F(AMemoryResource, ServesAfterItWasMovedFrom) {
  MemoryResource moved = std::move(resource);
  void* const ptr = allocate(resource, kMiB, stream);  // NOLINT(bugprone-use-after-move): that is what is tested
  deallocate(moved, ptr, kMiB, stream);
  EXPECT_TRUE(moved == resource);
}

TEST_F(AMemoryResource, AllocatesOnItsDevice) {
  void* const ptr = allocate(MemoryResource(allocator, 1), kMiB, nullptr);
  EXPECT_EQ(allocator->device_of(ptr), 1);
  EXPECT_EQ(allocator->memory_allocated(0), 0U);
}

TEST(MemoryResources, KeepTheirAllocatorAlive) {
  auto allocator = std::make_shared<CachingAllocator>(cuda_devices());
  const std::weak_ptr<CachingAllocator> watched = allocator;
  {
    const MemoryResource resource(std::move(allocator));
    const MemoryResource copy = resource;
    deallocate(copy, allocate(resource, kMiB, nullptr), kMiB, nullptr);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(AMemoryResource, IsRefusedWithoutAnAllocatorOrADevice) {
  EXPECT_THAT(message_of<InvalidArgument>([] { MemoryResource(std::shared_ptr<CachingAllocator>()); }),
              HasSubstr("the allocator of a MemoryResource is null"));
  EXPECT_THROW(MemoryResource(allocator, 2), InvalidArgument);
  EXPECT_THROW(MemoryResource(*allocator, -1), InvalidArgument);
}

TEST_F(AMemoryResource, RefusesAStreamOfAnotherDevice) {
  const MemoryResource there(allocator, 1);
  const auto refusal = [&] { return message_of<InvalidArgument>([&] { allocate(there, kMiB, stream); }); };
  EXPECT_THAT(refusal(),
              HasSubstr("is a stream of another device: work on memory of device 1 needs a stream of device 1"));
  deallocate(resource, allocate(resource, kMiB, stream), kMiB, stream);  // the thread's stream by now
  EXPECT_THAT(refusal(), HasSubstr("is a stream of another device"));
  EXPECT_EQ(allocator->memory_allocated(1), 0U);
}

TEST_F(AMemoryResource, EndsTheProcessForAFreeThatIsAMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child could not use CUDA
  void* const ptr = allocate(resource, kMiB, stream);
  EXPECT_DEATH(deallocate(resource, ptr, 100, stream), "size 100 does not match the allocation");
  EXPECT_DEATH(deallocate_sync(resource, this, 100), "is not a live allocation");
  EXPECT_DEATH(deallocate(MemoryResource(allocator, 1), ptr, kMiB, stream), "is an allocation of device 0");
  deallocate(resource, ptr, kMiB, stream);
}

TEST_F(AMemoryResource, RetriesAFreeThatTheDeviceRefuses) {
  void* const ptr = allocate(resource, 30 * kMiB, stream);
  ASSERT_EQ(cachalot_sim_set_faults(0, "event_record:1+"), 0);
  deallocate(resource, ptr, 30 * kMiB, other);
  ASSERT_EQ(cachalot_sim_set_faults(0, ""), 0);
  allocator->empty_cache();
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

// Random calls of four threads, each with a stream of its own and some without.
TEST_F(AMemoryResource, ServesThreadsConcurrently) {
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    cudaStream_t own = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
    std::vector<ResourceRequest> live;
    std::vector<void*> pointers;
    for (int i = 0; i < 500; ++i) {
      if (random() % 100 < 53 || live.empty()) {
        live.push_back({1 + random() % (5 * kMiB), std::size_t{1} << random() % 16, own, false});
        pointers.push_back(allocate_from(resource, live.back()));
        ASSERT_EQ(address(pointers.back()) % live.back().alignment, 0U);
      } else {
        deallocate_to(resource, pointers.back(), live.back());
        live.pop_back();
        pointers.pop_back();
      }
    }
    while (!live.empty()) {
      deallocate_to(resource, pointers.back(), live.back());
      live.pop_back();
      pointers.pop_back();
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator->memory_allocated(), 0U);
}

}  // namespace
}  // namespace cachalot
