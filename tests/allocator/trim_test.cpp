// Cached memory that goes back without a wait for the device (trim), and that comes beforehand (reserve).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

constexpr const char* kTrimmedHeaps[] = {"heap:segments", "heap:pages", "heap:async", "heap:managed"};

const Stream kSideStream = reinterpret_cast<Stream>(std::uintptr_t{0x1000});

SimulatedDevice::Config logging_config() {
  SimulatedDevice::Config config = World::config_of(4 * kGiB);
  config.log_calls = true;
  config.check_hazards = true;
  return config;
}

// The calls since the last look.
struct Calls {
  explicit Calls(World& world) : log(world.device->take_log()) {}
  std::size_t count(DeviceCall call) const {
    return static_cast<std::size_t>(
        std::count_if(log.begin(), log.end(), [&](const LoggedCall& entry) { return entry.call == call; }));
  }
  std::vector<LoggedCall> log;
};

// --- trim ---------------------------------------------------------------------------------------------------------------

TEST(Trim, GivesCachedMemoryBackWithoutADeviceWideWait) {
  for (const char* heap : kTrimmedHeaps) {
    World world(logging_config(), heap);
    void* const live = world.allocate(40 * kMiB);
    std::vector<void*> cached;
    for (int i = 0; i < 4; ++i) cached.push_back(world.allocate(30 * kMiB));
    for (void* ptr : cached) world.allocator.deallocate(ptr);
    world.device->take_log();
    EXPECT_EQ(world.allocator.trim(0), 120 * kMiB) << heap;
    const Calls calls(world);
    EXPECT_EQ(calls.count(DeviceCall::synchronize), 0u) << heap;
    EXPECT_EQ(calls.count(DeviceCall::event_synchronize), 0u) << heap;
    EXPECT_EQ(world.reserved(), 40 * kMiB) << heap;
    EXPECT_EQ(world.device->used_bytes(), 40 * kMiB) << heap;
    world.allocator.deallocate(live);
  }
}

TEST(Trim, KeepsAtLeastWhatItIsToKeep) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, heap);
    std::vector<void*> cached;
    for (int i = 1; i <= 5; ++i) cached.push_back(world.allocate(static_cast<std::size_t>(i) * 20 * kMiB));
    for (void* ptr : cached) world.allocator.deallocate(ptr);
    EXPECT_EQ(world.allocator.trim(kGiB), 0u) << heap;
    const std::size_t given = world.allocator.trim(50 * kMiB);
    EXPECT_EQ(given + world.reserved(), 300 * kMiB) << heap;
    EXPECT_GE(world.reserved(), 50 * kMiB) << heap;
    EXPECT_LE(world.reserved(), 60 * kMiB) << heap << ": as little as the sizes of the units allow";
  }
}

TEST(GiveWay, GivesBackAtLeastTheBytesByAsLittleMoreAsPossible) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, heap);
    void* const live = world.allocate(30 * kMiB);
    std::vector<void*> cached;
    for (int i = 1; i <= 5; ++i) cached.push_back(world.allocate(static_cast<std::size_t>(i) * 20 * kMiB));
    for (void* ptr : cached) world.allocator.deallocate(ptr);
    EXPECT_EQ(world.allocator.give_way(0), 0u) << heap;
    const std::size_t given = world.allocator.give_way(230 * kMiB);
    EXPECT_EQ(given + world.reserved(), 330 * kMiB) << heap;
    EXPECT_LE(world.reserved(), 100 * kMiB) << heap;
    EXPECT_GE(world.reserved(), 80 * kMiB) << heap << ": as much as the sizes of the units allow";
    world.allocator.give_way(330 * kMiB);
    EXPECT_EQ(world.reserved(), 30 * kMiB) << heap << ": the rest is live";
    world.allocator.deallocate(live);
  }
}

TEST(Trim, LeavesLiveMemoryAlone) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, heap);
    std::vector<void*> ptrs;
    for (int i = 0; i < 64; ++i) ptrs.push_back(world.allocate(kMiB + static_cast<std::size_t>(i) * 512));
    for (std::size_t i = 0; i < ptrs.size(); i += 2) world.allocator.deallocate(ptrs[i]);
    world.allocator.trim(0);
    for (std::size_t i = 1; i < ptrs.size(); i += 2) {
      EXPECT_NO_THROW(world.device->launch(nullptr, 1, {{address(ptrs[i]), kMiB}})) << heap;
    }
  }
}

// Unmapped under running work, it would fault: the device checks that.
TEST(Trim, LeavesPagesThatQueuedWorkUsesUntilItIsDone) {
  World torch(logging_config(), "heap:pages,immortal_streams:True");
  void* const busy = torch.allocate(64 * kMiB, kSideStream);
  torch.device->handed_out(address(busy), 64 * kMiB, kSideStream);
  void* const idle = torch.allocate(32 * kMiB);
  torch.device->launch(kSideStream, 1'000'000, {{address(busy), 64 * kMiB}});
  torch.device->given_back(address(busy));
  torch.allocator.deallocate(busy);
  torch.allocator.deallocate(idle);
  EXPECT_EQ(torch.allocator.trim(0), 32 * kMiB);
  EXPECT_EQ(torch.allocator.trim(0), 0u);
  torch.pass(2000);
  EXPECT_EQ(torch.allocator.trim(0), 64 * kMiB);
  EXPECT_EQ(torch.count(DeviceCall::synchronize), 0u);
}

TEST(Trim, OfSegmentsOfThePoolGoesInStreamOrder) {
  World world(logging_config(), "heap:async");
  void* const ptr = world.allocate(64 * kMiB, kSideStream);
  world.launch(kSideStream, 1'000'000);
  world.allocator.deallocate(ptr);
  const std::int64_t before = world.device->clock_ns();
  world.device->take_log();
  EXPECT_EQ(world.allocator.trim(0), 64 * kMiB);
  EXPECT_EQ(Calls(world).count(DeviceCall::free_async), 1u);
  EXPECT_EQ(world.device->clock_ns(), before) << "nothing waits for the stream";
}

TEST(Trim, OverSegmentsWaitsInsideCudaFree) {
  World world(logging_config());
  void* const ptr = world.allocate(64 * kMiB);
  world.launch(kSideStream, 1000);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.allocator.trim(0), 64 * kMiB);
  EXPECT_GE(world.device->clock_ns(), 1'000'000) << "the documented cost: cudaFree waits for the device";
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
}

TEST(Trim, DoesNothingDuringACapture) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, heap);
    world.allocator.deallocate(world.allocate(64 * kMiB));
    const Capture capture(world, kSideStream, PoolId{7, 0});
    EXPECT_EQ(world.allocator.trim(0), 0u) << heap;
    EXPECT_CONTAINS(refusal([&] { world.allocator.reserve(kMiB); }), "captures a graph");
  }
}

TEST(Trim, GivesBackWhatThreadsHaveCached) {
  World world(4 * kGiB, "heap:pages,thread_cache:True");
  for (int i = 0; i < 100; ++i) world.allocator.deallocate(world.allocate(4096));
  EXPECT_GT(world.reserved(), 0u);
  world.allocator.trim(0);
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(Trim, KeepsWhatTheDeviceRefuses) {
  World segments(4 * kGiB);
  segments.allocator.deallocate(segments.allocate(64 * kMiB));
  segments.device->set_faults({{.call = DeviceCall::free, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(segments.allocator.trim(0), CudaError);
  EXPECT_EQ(segments.reserved(), 64 * kMiB);
  EXPECT_EQ(segments.allocator.validate(), "");
  EXPECT_EQ(segments.allocator.trim(0), 64 * kMiB);

  World pages(4 * kGiB, "heap:pages");
  pages.allocator.deallocate(pages.allocate(64 * kMiB));
  const auto refused_unmap = [](std::uint64_t nth) {
    return Fault{.call = DeviceCall::unmap, .nth = nth, .out_of_memory = false, .code = 999};
  };
  pages.device->set_faults({refused_unmap(1)});
  EXPECT_EQ(pages.allocator.trim(0), 64 * kMiB) << "what does not go at once goes view by view";
  EXPECT_EQ(pages.device->used_bytes(), 0u);

  pages.allocator.deallocate(pages.allocate(64 * kMiB));
  pages.device->set_faults({refused_unmap(1), refused_unmap(2)});
  EXPECT_THROW(pages.allocator.trim(0), CudaError);
  EXPECT_EQ(pages.allocator.validate(), "");
  pages.allocator.trim(0);
  EXPECT_EQ(pages.reserved(), 0u);
  EXPECT_EQ(pages.device->used_bytes(), 0u);
}

// --- reserve ------------------------------------------------------------------------------------------------------------

TEST(Reserve, ServesAllSizesOfAllStreamsWithoutADriverCallOnPages) {
  World world(logging_config(), "heap:pages,immortal_streams:True");
  world.allocator.reserve(kGiB);
  EXPECT_GE(world.reserved(), kGiB);
  world.device->take_log();
  std::size_t asked = 0;
  std::vector<void*> live;
  for (int i = 0; asked < 900 * kMiB; ++i) {
    const std::size_t bytes = i % 3 == 0 ? 512 : i % 3 == 1 ? 100'000 : 17 * kMiB + static_cast<std::size_t>(i) * 512;
    live.push_back(world.allocate(bytes, i % 2 == 0 ? Stream{} : kSideStream));
    world.launch(i % 2 == 0 ? Stream{} : kSideStream);
    asked += bytes;
  }
  const Calls calls(world);
  EXPECT_EQ(calls.log.size(), 0u) << "memory, events, queries: none";
  for (void* ptr : live) world.allocator.deallocate(ptr);
}

TEST(Reserve, ServesTheFirstStreamOfSegmentsWithoutADriverCall) {
  for (const char* heap : {"heap:segments", "heap:async", "heap:managed"}) {
    World world(logging_config(), heap);
    world.allocator.reserve(640 * kMiB);
    EXPECT_EQ(world.reserved(), 640 * kMiB) << heap;
    world.device->take_log();
    std::size_t large = 0;
    for (int i = 0; large < 600 * kMiB; ++i) {
      const std::size_t bytes = 2 * kMiB + static_cast<std::size_t>(i % 7) * 3 * kMiB;
      world.allocate(bytes, kSideStream);
      large += bytes;
    }
    for (std::size_t small = 0; small < 20 * kMiB; small += 64 * kKiB) world.allocate(64 * kKiB, kSideStream);
    const Calls calls(world);
    EXPECT_EQ(calls.count(DeviceCall::malloc) + calls.count(DeviceCall::malloc_async) +
                  calls.count(DeviceCall::malloc_managed),
              0u)
        << heap;
    EXPECT_EQ(world.reserved(), 640 * kMiB) << heap;
  }
}

TEST(Reserve, CountsWhatNoStreamHasUsed) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, heap);
    world.allocator.deallocate(world.allocate(100 * kMiB));
    world.allocator.reserve(320 * kMiB);
    EXPECT_EQ(world.reserved(), 420 * kMiB) << heap;
    EXPECT_EQ(world.allocator.limit_figures().reservation_bytes, 320 * kMiB) << heap;
    world.allocator.reserve(320 * kMiB);
    EXPECT_EQ(world.reserved(), 420 * kMiB) << "it is there: " << heap;
    world.allocator.reserve(0);
    EXPECT_EQ(world.reserved(), 420 * kMiB) << heap;
  }
}

TEST(Reserve, IsKeptByGarbageCollectionAndEmptyCacheAndGivenBackByTrim) {
  for (const char* heap : kTrimmedHeaps) {
    World world(4 * kGiB, std::string("garbage_collection_threshold:0.1,limit:1GiB,") + heap);
    world.allocator.reserve(320 * kMiB);
    for (std::size_t mib = 2; mib < 60; mib += 2) world.allocator.deallocate(world.allocate(mib * kMiB, kSideStream));
    EXPECT_GE(world.reserved(), 320 * kMiB) << heap;
    world.allocator.trim(100 * kMiB);
    EXPECT_LT(world.reserved(), 320 * kMiB) << heap;
    world.allocator.reserve(320 * kMiB);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 320 * kMiB) << heap;
    world.allocator.deallocate(world.allocate(20 * kMiB, kSideStream));
    world.allocator.empty_cache();
    EXPECT_LT(world.reserved(), 320 * kMiB) << heap << ": memory that a stream has used goes back";
    world.allocator.trim(0);
    EXPECT_LE(world.reserved(), 20 * kMiB) << heap;
  }
}

// The garbage of an equal program without a reservation is collected.
TEST(Reserve, IsWhatGarbageCollectionKeeps) {
  World world(4 * kGiB, "garbage_collection_threshold:0.1,limit:1GiB");
  world.allocator.deallocate(world.allocate(300 * kMiB));
  for (std::size_t mib = 310; mib < 360; mib += 10) world.allocator.deallocate(world.allocate(mib * kMiB));
  EXPECT_LT(world.reserved(), 800 * kMiB);
}

// No managed memory lies on the host.
SimulatedDevice::Config config_of_one_gib() {
  SimulatedDevice::Config config = World::config_of(kGiB);
  config.managed_host_bytes = 0;
  return config;
}

TEST(Reserve, BeyondTheLimitOrTheDeviceIsRefusedWithTheReason) {
  for (const char* heap : kTrimmedHeaps) {
    World world(config_of_one_gib(), heap);
    void* const live = world.allocate(100 * kMiB);
    world.allocator.set_limit(MemoryLimit::of_bytes(300 * kMiB));
    const std::string message = out_of_memory([&] { world.allocator.reserve(400 * kMiB); });
    EXPECT_CONTAINS(message, "Tried to reserve 400.00 MiB");
    EXPECT_CONTAINS(message, "300.00 MiB is allowed by set_limit(\"300MiB\")");
    EXPECT_EQ(world.reserved(), 100 * kMiB) << heap;
    world.allocator.set_limit({});
    EXPECT_CONTAINS(out_of_memory([&] { world.allocator.reserve(2 * kGiB); }), "total capacity of 1024.00 MiB");
    EXPECT_EQ(world.reserved(), 100 * kMiB) << heap;
    EXPECT_CONTAINS(refusal([&] { world.allocator.reserve(kMaxRequestBytes); }), "must be less than 1 EiB");
    world.allocator.deallocate(live);
  }
}

TEST(Reserve, TakesThePlaceOfWhatIsCachedForOneStream) {
  for (const char* heap : kTrimmedHeaps) {
    World world(config_of_one_gib(), heap);
    world.allocator.deallocate(world.allocate(800 * kMiB));
    EXPECT_NO_THROW(world.allocator.reserve(800 * kMiB)) << heap;
    EXPECT_LE(world.reserved(), kGiB) << heap;
  }
}

TEST(Reserve, IsOfUseWithBlocksThatAreKeptWhole) {
  World world(logging_config(), "max_split_size_mb:40");
  world.allocator.reserve(320 * kMiB);
  world.device->take_log();
  for (int i = 0; i < 7; ++i) world.allocate(30 * kMiB);
  EXPECT_EQ(Calls(world).count(DeviceCall::malloc), 0u);
}

TEST(Reserve, IsNotForPrivatePools) {
  World world(4 * kGiB, "heap:pages");
  world.allocator.reserve(100 * kMiB);
  world.allocator.begin_tagged("weights");
  world.allocate(60 * kMiB);
  world.allocator.end_tagged("weights");
  EXPECT_EQ(world.allocator.limit_figures().reservation_bytes, 100 * kMiB);
}

// --- failing calls of the device ------------------------------------------------------------------------------------------

// Reserves, allocates, crosses the soft limit, trims; frees what it has got, whatever was thrown.
void reserve_and_trim(World& world) {
  std::vector<void*> live;
  const auto free_all = [&] {
    for (void* ptr : live) world.allocator.deallocate(ptr);
  };
  try {
    world.allocator.set_soft_limit(MemoryLimit::of_bytes(90 * kMiB),
                                   [&](const SoftLimitReport&) { world.allocator.trim(0); });
    world.allocator.reserve(44 * kMiB);
    for (const std::size_t mib : {30U, 20U, 40U, 1U}) {
      live.push_back(world.allocate(mib * kMiB, mib == 20 ? kSideStream : nullptr));
    }
    world.allocator.deallocate(live.back());
    live.pop_back();
    world.allocator.trim(60 * kMiB);
    world.allocator.set_limit(MemoryLimit::parse("free-10MiB"));
    world.allocator.reserve(60 * kMiB);
    world.allocator.set_limit(MemoryLimit::of_bytes(10 * kMiB));
    world.allocator.set_limit({});
  } catch (...) {
    free_all();
    throw;
  }
  free_all();
}

// Returns true if a call failed.
bool survives_failing_call(const char* heap, std::uint64_t nth, bool out_of_memory) {
  World world(kGiB, std::string("immortal_streams:True,") + heap);
  world.device->set_faults({{.nth = nth, .out_of_memory = out_of_memory, .code = 999}});
  try {
    reserve_and_trim(world);
  } catch (const CudaError&) {
  } catch (const OutOfMemory&) {
  }
  EXPECT_EQ(world.allocator.validate(), "");
  const bool has_failed = world.device->faults_injected() != 0;
  world.device->set_faults({});
  world.allocator.set_limit({});
  EXPECT_NO_THROW(reserve_and_trim(world));
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.device->used_bytes(), 0u) << "nothing is lost";
  return has_failed;
}

TEST(TrimAndReserve, SurviveEachFailingCallOfTheDevice) {
  for (const char* heap : kTrimmedHeaps) {
    for (const bool out_of_memory : {false, true}) {
      std::uint64_t nth = 1;
      for (; !testing::Test::HasFailure(); ++nth) {
        SCOPED_TRACE(testing::Message() << heap << ", call " << nth << (out_of_memory ? ", no memory" : ", error"));
        if (!survives_failing_call(heap, nth, out_of_memory)) break;
      }
      EXPECT_GT(nth, 10u) << heap << ": calls were made to fail";
    }
  }
}

}  // namespace
}  // namespace cachalot
