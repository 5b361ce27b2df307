// The allocator over the page heap: what it asks of the driver, whom memory serves, and that nothing is lost when a call
// fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

std::uint64_t memory_calls(const World& world) {
  return world.count(DeviceCall::create) + world.count(DeviceCall::map) + world.count(DeviceCall::set_access) +
         world.count(DeviceCall::unmap) + world.count(DeviceCall::release);
}

TEST(ThePageHeap, IsChosenByEitherOption) {
  for (const char* options : {"heap:pages", "expandable_segments:True"}) {
    World world(64 * kGiB, options);
    world.allocator.deallocate(world.allocate(kMiB));
    EXPECT_EQ(world.count(DeviceCall::malloc), 0u) << options;
    EXPECT_EQ(world.count(DeviceCall::create), 1u) << options;
  }
}

TEST(ThePageHeap, CannotBeChosenAtRunTime) {
  World world;
  EXPECT_CONTAINS(refusal([&] { world.allocator.configure("heap:pages"); }), "heap:pages cannot be set at run time");
  EXPECT_CONTAINS(refusal([&] { world.allocator.configure("expandable_segments:True"); }), "the heap is 'segments'");
}

TEST(ThePageHeap, FallsBackToSegmentsAloudWithoutVirtualMemory) {
  SimulatedDevice::Config config = World::config_of(kGiB);
  config.virtual_memory = false;
  testing::internal::CaptureStderr();
  World world(config, "heap:pages");
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(), "heap:segments is used instead of heap:pages");
  world.allocator.deallocate(world.allocate(kMiB));
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
}

TEST(ThePageHeap, BringsTheFreePagesOfManyHolesTogether) {
  World world(checked(), "heap:pages,page_size_mb:2");
  Program program(world);
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(program.allocate(8 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) program.free(blocks[i]);
  const std::size_t reserved = world.reserved();
  void* large = program.allocate(64 * kMiB);  // eight holes of 8 MiB
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_EQ(world.device->used_bytes(), reserved);
  EXPECT_EQ(world.allocator.validate(), "");
  program.free(large);
  // And again without a driver call.
  const std::uint64_t calls = memory_calls(world);
  program.free(program.allocate(64 * kMiB));
  EXPECT_EQ(memory_calls(world), calls);
  for (std::size_t i = 1; i < blocks.size(); i += 2) program.free(blocks[i]);
}

TEST(ThePageHeap, AliasesPagesWhoseWorkIsNotDone) {
  World world(checked(), "heap:pages,page_size_mb:2");
  Program program(world);
  const Stream stream = world.device->new_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(program.allocate(8 * kMiB, stream, /*work_us=*/1000));
  for (std::size_t i = 0; i < blocks.size(); i += 2) program.free(blocks[i]);
  const std::uint64_t unmapped = world.count(DeviceCall::unmap);
  const std::size_t reserved = world.reserved();
  void* large = program.allocate(32 * kMiB, stream);  // the device is milliseconds behind
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_EQ(world.count(DeviceCall::unmap), unmapped);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  program.free(large);
  for (std::size_t i = 1; i < blocks.size(); i += 2) program.free(blocks[i]);
}

TEST(ThePageHeap, ReusesWithoutDriverCallsOnceAWorkloadRepeatsWithinTheSlack) {
  World world(checked(), "heap:pages,remap_slack:0.3");
  Program program(world);
  std::uint64_t before = 0;
  for (int round = 0; round < 5; ++round) {
    if (round == 3) before = memory_calls(world);
    std::vector<void*> blocks;
    for (std::size_t i = 1; i <= 20; ++i) blocks.push_back(program.allocate(i * 700 * kKiB));
    for (std::size_t i = 0; i < blocks.size(); i += 3) program.free(blocks[i]);
    void* large = program.allocate(40 * kMiB);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % 3 != 0) program.free(blocks[i]);
    }
    program.free(large);
  }
  EXPECT_EQ(memory_calls(world), before);
}

TEST(ThePageHeap, GivesARunOfIdleHandlesBackByOneUnmap) {
  World world(checked(), "heap:pages");
  std::vector<void*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(world.allocate(64 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 4) world.allocator.deallocate(blocks[i]);
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 64 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::unmap), 2u) << "on both sides of the live block";
  EXPECT_EQ(world.count(DeviceCall::release), 256u);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(ThePageHeap, GrowsRatherThanRemappingWithinTheSlack) {
  for (const bool slack : {false, true}) {
    World world(64 * kGiB, slack ? "heap:pages,page_size_mb:2,remap_slack:0.5" : "heap:pages,page_size_mb:2");
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(world.allocate(8 * kMiB));
    for (std::size_t i = 0; i < blocks.size(); i += 4) world.allocator.deallocate(blocks[i]);
    world.allocate(32 * kMiB);  // as much as is free
    EXPECT_EQ(world.reserved(), slack ? 160 * kMiB : 128 * kMiB);
  }
}

TEST(ThePageHeap, MakesSmallerHandlesTheLessMemoryIsLeft) {
  World world(checked(), "heap:pages");
  const auto handles_of = [&](std::size_t bytes, const std::string& tag) {
    const std::uint64_t before = world.count(DeviceCall::create);
    if (!tag.empty()) world.allocator.begin_tagged(tag);
    world.allocate(bytes);
    if (!tag.empty()) world.allocator.end_tagged(tag);
    return world.count(DeviceCall::create) - before;
  };
  EXPECT_EQ(handles_of(64 * kMiB, "a"), 4u) << "of 64 GiB: 16 MiB each";
  EXPECT_EQ(handles_of(64 * kMiB, ""), 32u) << "memory that may move";
  world.allocator.set_memory_fraction(0.25);
  EXPECT_EQ(handles_of(64 * kMiB, "b"), 32u);
  world.allocator.configure("page_size_mb:32");
  EXPECT_EQ(handles_of(64 * kMiB, ""), 2u);
  EXPECT_EQ(handles_of(64 * kMiB, "c"), 2u);
}

// Holes of changing sizes are filled again and again: each time pages leave mappings behind.
std::size_t mappings_after_many_moves(World& world) {
  Program program(world);
  const Stream stream = world.device->new_stream();
  for (std::size_t round = 0; round < 40; ++round) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 12; ++i) {
      blocks.push_back(program.allocate((2 + (i * 7 + round * 5) % 11) * kMiB, stream, /*work_us=*/100));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) program.free(blocks[i]);
    void* large = program.allocate((20 + round % 7) * kMiB, stream, /*work_us=*/100);
    for (std::size_t i = 1; i < blocks.size(); i += 2) program.free(blocks[i]);
    program.free(large);
    EXPECT_EQ(world.allocator.validate(), "");
  }
  return world.device->live_mappings();
}

// Blocks that begin everywhere, as of sizes that never come twice.
TEST(ThePageHeap, HoldsNoTablesForPagesThatAreGone) {
  World world(kGiB, "heap:pages,page_size_mb:2");
  std::size_t after_one = 0;
  for (std::size_t round = 0; round < 40; ++round) {
    void* const pad = world.allocate(round * 14 * kMiB + 2 * kMiB);
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 2000; ++i) blocks.push_back(world.allocate(512 * (1 + (i * 7 + round) % 13)));
    world.allocator.deallocate(pad);
    void* const large = world.allocate(round * 14 * kMiB + 2 * kMiB);
    EXPECT_EQ(world.allocator.validate(), "");
    for (void* block : blocks) world.allocator.deallocate(block);
    world.allocator.deallocate(large);
    world.allocator.empty_cache();
    if (round == 0) after_one = world.allocator.metadata_bytes();
  }
  EXPECT_LT(world.allocator.metadata_bytes(), after_one + 256 * kKiB);  // kept, 40 times 60 KiB
}

TEST(ThePageHeap, BoundsItsMappings) {
  World free_hand(checked(), "heap:pages,page_size_mb:2");
  EXPECT_GT(mappings_after_many_moves(free_hand), 150u);
  SimulatedDevice::Config config = checked();
  config.max_mappings = 120;
  World bounded(config, "heap:pages,page_size_mb:2");
  EXPECT_LE(mappings_after_many_moves(bounded), 150u);  // the bound, and what the last requests added
}

TEST(ThePageHeap, LooksForMappingsToRemoveOnlyOnceAQuarterMoreAreThere) {
  constexpr std::size_t kMost = 8192;  // with so few pages
  World world(64 * kGiB, "heap:pages");
  std::mt19937_64 random(1);
  std::vector<void*> blocks;
  const auto replace_one = [&](std::int64_t work_us) {
    if (blocks.size() == 20) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      world.allocator.deallocate(blocks.back());
      blocks.pop_back();
    }
    blocks.push_back(world.allocate((1 + random() % 64) * 4 * kMiB));
    world.launch(nullptr, work_us);
    return world.device->live_mappings();
  };
  while (replace_one(1000) <= kMost + kMost / 16) continue;  // it has looked in vain: work uses them all
  world.device->stream_synchronize(nullptr);
  std::size_t mappings = world.device->live_mappings();
  std::size_t most = mappings;
  for (; mappings > kMost - kMost / 8; mappings = replace_one(0)) most = std::max(most, mappings);
  EXPECT_GE(most, kMost + kMost / 4);
  EXPECT_LE(most, kMost + kMost / 2);
}

// Page tables take memory of the device.
TEST(ThePageHeap, TakesALackOfMemoryForMappingsForALackOfMemory) {
  for (const DeviceCall call : {DeviceCall::map, DeviceCall::set_access}) {
    SCOPED_TRACE(to_string(call));
    World world(64 * kGiB, "heap:pages");
    world.allocator.deallocate(world.allocate(256 * kMiB));
    world.device->set_faults({{.call = call}});
    world.allocator.deallocate(world.allocate(300 * kMiB));
    EXPECT_EQ(world.allocator.memory_stats().num_alloc_retries, 1) << "what was idle went back to the device";
    EXPECT_EQ(world.reserved(), 300 * kMiB);
    world.device->set_faults({{.call = call, .repeat = true}});
    EXPECT_CONTAINS(out_of_memory([&] { world.allocate(400 * kMiB); }), "CUDA out of memory");
    EXPECT_EQ(world.device->used_bytes(), 0u);
    world.device->set_faults({});
    world.allocator.deallocate(world.allocate(400 * kMiB));
  }
}

TEST(ThePageHeap, DoesNothingAtItsEndToADeviceThatItDidNotUse) {
  std::shared_ptr<SimulatedDevice> device;
  {
    const World world(64 * kGiB, "heap:pages");
    device = world.device;
  }
  EXPECT_EQ(device->count(DeviceCall::synchronize), 0u) << "it makes a context, of hundreds of MiB";
}

// --- streams ----------------------------------------------------------------------------------------------------------

struct TwoStreams {
  explicit TwoStreams(const char* options, std::size_t device_bytes = 64 * kGiB)
      : world(checked(device_bytes), std::string(options) + ",immortal_streams:True"),
        program(world),
        a(world.device->new_stream()),
        b(world.device->new_stream()) {
    program.free(program.allocate(kMiB * 64, a, /*work_us=*/500));
  }
  World world;
  Program program;
  Stream a, b;
};

TEST(OtherStreamsMemory, IsTakenAfterAWaitOnTheGpuRatherThanGrowing) {
  TwoStreams two("heap:pages,cross_stream:wait");
  two.program.free(two.program.allocate(kMiB * 2, two.b));  // records an event on the other stream
  const std::size_t reserved = two.world.reserved();
  two.program.free(two.program.allocate(kMiB * 64, two.b));
  EXPECT_EQ(two.world.reserved(), reserved);
  EXPECT_GT(two.world.count(DeviceCall::stream_wait), 0u);
  EXPECT_EQ(two.world.count(DeviceCall::synchronize), 0u);
}

// Returns the time for which the work queued on a stream so far will hold up later work.
std::int64_t held_up_us(const World& world, Stream stream) {
  return std::max<std::int64_t>(0, world.device->stream_ready_ns(stream) - world.device->clock_ns()) / 1000;
}

constexpr std::int64_t kLong = 10'000'000;  // µs of work that the other stream need not wait for: an NCCL receive

struct Waiting {
  const char* options;
  std::size_t device_bytes;
};
constexpr Waiting kWaiting[] = {{"heap:pages", 64 * kGiB},
                                {"heap:pages,cross_stream:scarce", 100 * kMiB},
                                {"heap:pages,cross_stream:wait", 64 * kGiB}};

// The end of a stream's work may depend on what the waiting stream has yet to do.
TEST(OtherStreamsMemory, IsWaitedForByAnEarlierEventAndNotByTheEndOfItsStream) {
  for (const auto& [options, device_bytes] : kWaiting) {
    SCOPED_TRACE(options);
    TwoStreams two(options, device_bytes);
    two.program.free(
        two.program.allocate(kMiB * 2, two.b));  // records an event behind 500 µs of the other stream's work
    two.world.launch(two.a, kLong);
    two.program.free(two.program.allocate(kMiB * 64, two.b));
    EXPECT_LE(held_up_us(two.world, two.b), 500);
    EXPECT_EQ(two.world.count(DeviceCall::synchronize), 0u);
  }
}

// The request wants the memory of both frees.
TEST(OtherStreamsMemory, IsWaitedForUpToTheLatestFree) {
  World world(checked(), "heap:pages,cross_stream:wait,immortal_streams:True");
  Program program(world);
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  std::vector<void*> held;
  const auto record_events = [&](std::size_t bytes) {  // by a request that can take nothing of the other stream
    const Region region(world, "elsewhere");
    held.push_back(program.allocate(bytes, b));
  };
  void* const early = program.allocate(32 * kMiB, a, kLong);
  held.push_back(program.allocate(2 * kMiB, a));
  void* const late = program.allocate(32 * kMiB, a, kLong);
  program.free(early);
  record_events(2 * kMiB);
  program.free(late);
  record_events(4 * kMiB);
  const std::size_t reserved = world.reserved();
  held.push_back(program.allocate(60 * kMiB, b));
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  for (void* ptr : held) program.free(ptr);
}

TEST(OtherStreamsMemory, IsNotWaitedForByAnEventThatIsRecordedForTheRequest) {
  for (const auto& [options, device_bytes] : kWaiting) {
    SCOPED_TRACE(options);
    TwoStreams two(options, device_bytes);
    two.world.launch(two.a, kLong);
    two.program.free(two.program.allocate(kMiB * 64, two.b));
    EXPECT_EQ(held_up_us(two.world, two.b), 0);
    EXPECT_EQ(two.world.count(DeviceCall::stream_wait), 0u);
  }
}

TEST(OtherStreamsMemory, IsWaitedForWhenMemoryIsScarce) {
  TwoStreams two("heap:pages,cross_stream:scarce", 100 * kMiB);
  two.program.free(two.program.allocate(kMiB * 2, two.b));
  two.program.free(two.program.allocate(kMiB * 20, two.b));  // there is new memory
  EXPECT_EQ(two.world.count(DeviceCall::stream_wait), 0u);
  two.program.free(two.program.allocate(kMiB * 64, two.b));
  EXPECT_GT(two.world.count(DeviceCall::stream_wait), 0u);
  EXPECT_EQ(two.world.count(DeviceCall::synchronize), 0u);
  EXPECT_EQ(two.world.reserved(), 84 * kMiB);
}

// Batches are copied on one stream while another computes: neither waits for the other by the allocator's will.
TEST(OtherStreamsMemory, OfAPrefetcherDelaysNeitherStream) {
  World world(checked(), "heap:pages");
  Program program(world);
  const Stream copy = world.device->new_stream();
  const Stream compute = world.device->new_stream();
  const std::int64_t begin = world.device->clock_ns();
  constexpr int kSteps = 100;
  for (int step = 0; step < kSteps; ++step) {
    const std::size_t bytes = kMiB * static_cast<std::size_t>(20 + 7 * step % 31);
    void* batch = program.allocate(bytes, copy, /*work_us=*/4000);
    const Event copied = world.device->event_create();
    world.device->event_record(copied, copy);
    world.device->stream_wait(compute, copied);
    world.device->event_destroy(copied);
    world.allocator.record_stream(batch, compute);
    world.device->launch(compute, 0, {{address(batch), bytes}});
    program.free(program.allocate(bytes + bytes / 2, compute, /*work_us=*/5000));
    program.free(batch);
    world.pass(5000);
  }
  const std::int64_t took = std::max(world.device->stream_ready_ns(compute), world.device->clock_ns()) - begin;
  EXPECT_LT(took, (5000 * kSteps + 4000 + 2500) * std::int64_t{1000}) << "0.5 % more than the work";
  EXPECT_EQ(world.count(DeviceCall::stream_wait), static_cast<std::uint64_t>(kSteps)) << "the program's own";
}

TEST(OtherStreamsMemory, IsTakenOnlyOnceItsWorkIsDone) {
  TwoStreams two("heap:pages,cross_stream:completed");
  const std::size_t reserved = two.world.reserved();
  two.program.free(two.program.allocate(kMiB * 32, two.b));  // grows, and leaves an event on the other stream
  EXPECT_EQ(two.world.reserved(), reserved + 32 * kMiB);
  two.world.pass(1000);
  two.program.free(two.program.allocate(kMiB * 64, two.b));
  EXPECT_EQ(two.world.reserved(), reserved + 32 * kMiB);
  EXPECT_EQ(two.world.count(DeviceCall::stream_wait), 0u);
}

// The rest of a free block that another stream took a part of is as free as before.
TEST(OtherStreamsMemory, IsTakenPieceByPieceOnceItsWorkIsDone) {
  World world(checked(), "heap:pages,immortal_streams:True");
  Program program(world);
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  program.free(program.allocate(8 * kMiB, a, /*work_us=*/500));
  program.free(program.allocate(12 * kMiB, b));  // new memory, and an event behind the other stream's work
  world.pass(1000);
  void* const kept = program.allocate(12 * kMiB, b);
  const std::uint64_t calls = memory_calls(world);
  void* const first = program.allocate(2 * kMiB, b);
  void* const rest = program.allocate(6 * kMiB, b);
  EXPECT_EQ(memory_calls(world), calls);
  EXPECT_EQ(world.count(DeviceCall::stream_wait), 0u);
  EXPECT_EQ(address(rest), address(first) + 2 * kMiB);
  for (void* ptr : {kept, first, rest}) program.free(ptr);
}

TEST(OtherStreamsMemory, IsNotTakenWhenThatIsOff) {
  TwoStreams two("heap:pages,cross_stream:off");
  two.world.pass(1000);
  two.program.free(two.program.allocate(kMiB * 64, two.b));
  EXPECT_EQ(two.world.reserved(), 128 * kMiB);
  EXPECT_EQ(two.world.count(DeviceCall::stream_wait), 0u);
}

TEST(OtherStreamsMemory, GoesBackToTheDeviceRatherThanRunningOutOfMemory) {
  TwoStreams two("heap:pages,cross_stream:off", 100 * kMiB);
  two.program.free(two.program.allocate(kMiB * 80, two.b));
  EXPECT_EQ(two.world.reserved(), 80 * kMiB);
}

TEST(OtherStreamsMemory, IsKeptWhenNothingCouldServe) {
  TwoStreams two("heap:pages,cross_stream:off", 100 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { two.world.allocate(kMiB * 128, two.b); }), "CUDA out of memory");
  EXPECT_EQ(two.world.allocator.validate(), "");
  two.program.free(two.program.allocate(kMiB * 64, two.a));
}

// --- figures ----------------------------------------------------------------------------------------------------------

TEST(ThePageHeapsFigures, CountMemoryAsPyTorchCountsExpandableSegments) {
  World world(64 * kGiB, "heap:pages");
  void* a = world.allocate(100 * kMiB);
  void* b = world.allocate(1000);
  DeviceStats stats = world.allocator.memory_stats();
  EXPECT_EQ(stats.segment.all.current, 0);
  EXPECT_EQ(stats.reserved_bytes.large_pool.current, static_cast<std::int64_t>(100 * kMiB));
  EXPECT_EQ(stats.reserved_bytes.small_pool.current, static_cast<std::int64_t>(2 * kMiB));
  EXPECT_EQ(stats.num_device_alloc, 2);
  world.allocator.deallocate(a);
  world.allocator.deallocate(b);
  EXPECT_EQ(world.allocator.memory_stats().inactive_split.all.current, 0);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.device->used_bytes(), 0u);
  EXPECT_GT(world.allocator.memory_stats().num_device_free, 0);
}

TEST(ThePageHeapsFigures, ShowOneSegmentForEachRunOfMappedMemory) {
  World world(64 * kGiB, "heap:pages,page_size_mb:2");
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(world.allocate(4 * kMiB));
  ASSERT_EQ(world.allocator.snapshot().segments.size(), 1u);
  EXPECT_TRUE(world.allocator.snapshot().segments[0].is_expandable);
  world.allocator.deallocate(blocks[2]);
  world.allocator.empty_cache();
  const Snapshot snapshot = world.allocator.snapshot();
  ASSERT_EQ(snapshot.segments.size(), 2u);
  EXPECT_EQ(snapshot.segments[0].total_size, 8 * kMiB);
  EXPECT_EQ(snapshot.segments[1].total_size, 12 * kMiB);
  EXPECT_EQ(snapshot.segments[1].address, address(blocks[3]));
}

TEST(ThePageHeapsFigures, TraceEveryPageThatComesAndGoes) {
  World world(64 * kGiB, "heap:pages,page_size_mb:2");
  std::int64_t mapped = 0;
  world.allocator.add_change_tracker([&](const Change& change) {
    if (change.action == Change::Action::segment_map) mapped += static_cast<std::int64_t>(change.bytes);
    if (change.action == Change::Action::segment_unmap) mapped -= static_cast<std::int64_t>(change.bytes);
  });
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(world.allocate(4 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) world.allocator.deallocate(blocks[i]);
  void* large = world.allocate(16 * kMiB);
  EXPECT_EQ(mapped, static_cast<std::int64_t>(world.reserved()));
  world.allocator.deallocate(large);
  world.allocator.empty_cache();
  EXPECT_EQ(mapped, static_cast<std::int64_t>(world.reserved()));
}

// --- limits -----------------------------------------------------------------------------------------------------------

TEST(ThePageHeap, KeepsToTheMemoryFraction) {
  World world(100 * kMiB, "heap:pages,per_process_memory_fraction:0.5");
  void* block = world.allocate(40 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(20 * kMiB); }), "allowed");
  world.allocator.deallocate(block);
  world.allocator.deallocate(world.allocate(48 * kMiB));
  EXPECT_LE(world.device->peak_used_bytes(), 50 * kMiB);
}

TEST(ThePageHeap, CollectsGarbageUnderAFraction) {
  World world(kGiB, "heap:pages,per_process_memory_fraction:0.5,garbage_collection_threshold:0.5");
  world.allocator.deallocate(world.allocate(300 * kMiB));
  void* small = world.allocate(1000);  // needs a page, and more than half of the limit is held
  EXPECT_LE(world.reserved(), 256 * kMiB + 2 * kMiB);
  world.allocator.deallocate(small);
}

TEST(ThePageHeap, FillsADeviceToTheLastPage) {
  World world(checked(256 * kMiB), "heap:pages");
  Program program(world);
  std::vector<void*> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(program.allocate(8 * kMiB));
  EXPECT_EQ(world.device->used_bytes(), 256 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(2 * kMiB); }), "CUDA out of memory");
  for (void* block : blocks) program.free(block);
  program.free(program.allocate(256 * kMiB));
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

// --- private pools and capture ------------------------------------------------------------------------------------------

TEST(PrivatePoolsOfPages, KeepTheirMemoryToThemselves) {
  World world(checked(), "heap:pages");
  Program program(world);
  void* inside = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    inside = program.allocate(16 * kMiB);
    program.free(program.allocate(16 * kMiB));
    const std::size_t reserved = world.reserved();
    program.free(program.allocate(16 * kMiB));
    EXPECT_EQ(world.reserved(), reserved);
  }
  const std::size_t reserved = world.reserved();
  program.free(program.allocate(16 * kMiB));
  EXPECT_EQ(world.reserved(), reserved + 16 * kMiB);
  program.free(inside);
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(PrivatePoolsOfPages, GrowDuringACaptureWithoutSpoilingIt) {
  World world(checked(), "heap:pages");
  Program program(world);
  const Stream stream = world.device->new_stream();
  program.free(program.allocate(32 * kMiB, stream, /*work_us=*/1000));
  void* kept = nullptr;
  {
    const Capture capture(world, stream, kPool);
    kept = world.allocate(8 * kMiB, stream);
    world.allocator.deallocate(world.allocate(64 * kMiB, stream));
    world.allocator.empty_cache();
  }
  world.allocator.deallocate(kept);
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(PrivatePoolsOfPages, ReturnToACheckpoint) {
  World world(64 * kGiB, "heap:pages");
  const InPool in_pool(world.allocator, kPool);
  void* a = world.allocate(4 * kMiB);
  void* b = world.allocate(600);
  void* c = world.allocate(2 * kMiB);
  world.allocator.deallocate(a);
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kPool);
  world.allocator.deallocate(b);
  void* d = world.allocate(48 * kMiB);  // the run grows after the checkpoint
  const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(std::count(result.freed.begin(), result.freed.end(), d), 1);
  ASSERT_EQ(result.created.size(), 2u);
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {b, c}));
  for (void* ptr : result.created) world.allocator.deallocate(ptr);
}

TEST(PrivatePoolsOfPages, ReturnToACheckpointThoughSmallBlocksTookAPageSince) {
  World world(64 * kGiB, "heap:pages");
  const InPool in_pool(world.allocator, kPool);
  void* first = world.allocate(20 * kMiB);
  void* kept = world.allocate(4 * kMiB);
  world.allocator.deallocate(first);
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kPool);
  world.allocate(1000);  // takes a page of the 20 MiB
  world.allocate(17 * kMiB);
  const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(result.created, std::vector<void*>{kept});
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {kept}));
  EXPECT_EQ(world.allocate(20 * kMiB), first);
}

TEST(PrivatePoolsOfPages, GetWhatIsIdleElsewhereRatherThanRunningOutOfMemory) {
  World world(100 * kMiB, "heap:pages");
  world.allocator.deallocate(world.allocate(80 * kMiB));
  const InPool in_pool(world.allocator, kPool);
  world.allocator.deallocate(world.allocate(60 * kMiB));
  EXPECT_LE(world.device->used_bytes(), 100 * kMiB);
}

// --- failures ---------------------------------------------------------------------------------------------------------

// Fragments a small heap, brings pages together, drops stale mappings and gives memory back; true if a call failed.
bool play(World& world, const std::function<void()>& after_each) {
  bool failed = false;
  std::vector<void*> live;
  const Stream streams[2] = {world.device->new_stream(), world.device->new_stream()};
  const auto attempt = [&](const std::function<void()>& action) {
    failed |= fails(action);
    after_each();
  };
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 12; ++i) {
      attempt([&] { live.push_back(world.allocate((3 + 2 * i) * 512 * kKiB, streams[i % 2])); });
    }
    if (round == 2) world.launch(streams[0], 5000);  // its freed memory is available after a wait
    for (std::size_t i = 0; i < live.size(); i += 2) {
      attempt([&] { world.allocator.deallocate(std::exchange(live[i], nullptr)); });
    }
    world.pass(1000);
    attempt([&] { live.push_back(world.allocate(21 * kMiB, streams[0])); });
    attempt([&] { live.push_back(world.allocate(13 * kMiB, streams[1])); });
    attempt([&] { world.allocator.empty_cache(); });
    attempt([&] { live.push_back(world.allocator.allocate(11 * kMiB, 0, streams[0], {.contiguous = true})); });
    for (void*& ptr : live) {
      attempt([&] { world.allocator.deallocate(std::exchange(ptr, nullptr)); });
    }
    live.clear();
    if (round == 1) attempt([&] { world.allocator.empty_cache(); });
  }
  return failed;
}

// The second is so few mappings that those which pages have left are dropped.
constexpr std::size_t kSweptMappings[] = {262144, 32};

// With a second device, which may be given access to the memory of the first.
struct SweptWorld : World {
  explicit SweptWorld(std::size_t max_mappings)
      : World(devices(max_mappings), "heap:pages,page_size_mb:4,cross_stream:wait") {}

  static std::vector<std::shared_ptr<SimulatedDevice>> devices(std::size_t max_mappings) {
    SimulatedDevice::Config config = checked();
    config.max_mappings = max_mappings;
    config.log_calls = true;
    auto used = std::make_shared<SimulatedDevice>(config);
    config.index = 1;
    return {used, std::make_shared<SimulatedDevice>(config)};
  }

  // The mappings that the allocator knows of: those that it gives the second device access to. Once.
  std::size_t known_mappings() {
    device->take_log();
    allocator.enable_peer_access(/*device=*/1, /*peer=*/0);
    std::set<std::uint64_t> mappings;
    for (const LoggedCall& call : device->take_log()) {
      if (call.call != DeviceCall::set_access) continue;
      for (Address at = call.argument; at < call.argument + call.bytes; at += 2 * kMiB) {
        mappings.insert(device->memory_at(at).value().mapping);
      }
    }
    return mappings.size();
  }
  // After a play without faults: the books are what the device has.
  void expect_nothing_lost() {
    EXPECT_GT(device->live_mappings(), 0u);
    EXPECT_EQ(known_mappings(), device->live_mappings());
    allocator.empty_cache();
    EXPECT_EQ(reserved(), 0u);
    EXPECT_EQ(device->used_bytes(), 0u);
    EXPECT_EQ(device->live_mappings(), 0u);
  }
};

class EveryCallFails : public testing::TestWithParam<FailingCall> {};

TEST_P(EveryCallFails, AndNothingIsLost) {
  const auto [call, oom] = GetParam();
  std::uint64_t injected = 0;
  for (const std::size_t max_mappings : kSweptMappings) {
    SCOPED_TRACE(max_mappings);
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("{} number {}", to_string(call), nth));
      SweptWorld world(max_mappings);
      world.device->set_faults({{.call = call, .nth = nth, .out_of_memory = oom, .code = 999}});
      // A view that is stale after the first is in the way of the second.
      for (int times = 0; times < 2; ++times) play(world, [&] { ASSERT_EQ(world.allocator.validate(), ""); });
      const bool was_injected = world.device->faults_injected() != 0;
      injected += world.device->faults_injected();
      world.device->set_faults({});
      EXPECT_FALSE(play(world, [&] { ASSERT_EQ(world.allocator.validate(), ""); }));
      world.expect_nothing_lost();
      if (!was_injected || HasFailure()) break;
    }
  }
  EXPECT_GT(injected, 0u);
  RecordProperty("faults", static_cast<int>(injected));
}

// Every call after the n-th fails as well: then not even begun changes can be undone.
TEST_P(EveryCallFails, AndGoesOnFailing) {
  const auto [call, oom] = GetParam();
  for (const std::size_t max_mappings : kSweptMappings) {
    SCOPED_TRACE(max_mappings);
    for (std::uint64_t nth = 1; nth < 60; nth += 3) {
      SCOPED_TRACE(fmt::format("{} from number {} on", to_string(call), nth));
      SweptWorld world(max_mappings);
      world.device->set_faults(
          {{.call = call, .nth = nth, .out_of_memory = oom, .code = 999, .repeat = true},
           {.call = DeviceCall::unmap, .nth = nth, .out_of_memory = false, .code = 999, .repeat = true}});
      play(world, [&] { ASSERT_EQ(world.allocator.validate(), ""); });
      world.device->set_faults({});
      play(world, [&] { ASSERT_EQ(world.allocator.validate(), ""); });
      world.expect_nothing_lost();
      if (HasFailure()) break;
    }
  }
}

// The sweeps come to where mappings are dropped for their number.
TEST(TheSweptPlay, DropsMappingsWhereFewMayBeKept) {
  std::uint64_t unmapped[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    SweptWorld world(kSweptMappings[i]);
    EXPECT_FALSE(play(world, [&] { ASSERT_EQ(world.allocator.validate(), ""); }));
    unmapped[i] = world.count(DeviceCall::unmap);
  }
  EXPECT_GT(unmapped[1], unmapped[0]);
}

INSTANTIATE_TEST_SUITE_P(
    OfTheDriver, EveryCallFails,
    testing::Values(FailingCall{DeviceCall::reserve, true}, FailingCall{DeviceCall::reserve, false},
                    FailingCall{DeviceCall::create, true}, FailingCall{DeviceCall::create, false},
                    FailingCall{DeviceCall::map, true}, FailingCall{DeviceCall::map, false},
                    FailingCall{DeviceCall::set_access, true}, FailingCall{DeviceCall::set_access, false},
                    FailingCall{DeviceCall::unmap, false}, FailingCall{DeviceCall::release, false},
                    FailingCall{DeviceCall::event_record, false}, FailingCall{DeviceCall::event_query, false},
                    FailingCall{DeviceCall::stream_wait, false}, FailingCall{DeviceCall::synchronize, false}),
    name_of);

// --- threads ----------------------------------------------------------------------------------------------------------

TEST(PageHeapThreads, AreServedSideBySide) {
  World world(256 * kMiB, "heap:pages,page_size_mb:2");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&world, t] {
      const Stream stream = world.device->new_stream();
      std::vector<void*> live;
      for (std::size_t i = 0; i < 2000; ++i) {
        const std::size_t bytes = (1 + (i * 7919 + static_cast<std::size_t>(t) * 31) % 9000) * kKiB;
        try {
          live.push_back(world.allocate(bytes, stream));
        } catch (const OutOfMemory&) {
        }
        if (live.size() > 8) {
          world.allocator.deallocate(live.front());
          live.erase(live.begin());
        }
      }
      for (void* ptr : live) world.allocator.deallocate(ptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

}  // namespace
}  // namespace cachalot
