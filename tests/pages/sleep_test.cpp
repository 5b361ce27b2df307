// Pools that sleep: the memory that goes back to the device, the addresses that stay, and the content that returns.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

// Weights of one tag. The program has all of them, except while they are asleep.
struct Weights {
  explicit Weights(World& in_world, std::string of_tag = "weights") : world(in_world), tag(std::move(of_tag)) {}

  void* add(std::size_t bytes, std::string_view content = "") {
    const Region region(world, tag);
    void* ptr = world.allocate(bytes);
    world.device->handed_out(address(ptr), bytes, nullptr);
    world.device->launch(nullptr, 1000, {{address(ptr), bytes}});
    if (!content.empty()) world.device->copy_from_host(address(ptr), content.data(), content.size());
    live.push_back({ptr, bytes});
    return ptr;
  }
  void sleep(bool save = false) {
    for (const auto& each : live) world.device->given_back(address(each.ptr));
    world.allocator.release_physical(tag, save);
    EXPECT_EQ(world.allocator.validate(), "");
  }
  void wake() {
    world.allocator.restore_physical(tag);
    EXPECT_EQ(world.allocator.validate(), "");
    for (const auto& each : live) world.device->handed_out(address(each.ptr), each.bytes, nullptr);
  }
  void free_all(bool asleep = false) {
    for (const auto& each : live) {
      if (!asleep) world.device->given_back(address(each.ptr));
      world.allocator.deallocate(each.ptr);
      EXPECT_EQ(world.allocator.validate(), "");
    }
    live.clear();
  }
  std::string content(std::size_t which, std::size_t bytes) const {
    std::string text(bytes, '?');
    world.device->copy_to_host(text.data(), address(live[which].ptr), bytes);
    return text;
  }

  struct Live {
    void* ptr;
    std::size_t bytes;
  };
  World& world;
  std::string tag;
  std::vector<Live> live;
};

const std::string kZeros(5, '\0');

// --- sleeping and waking -------------------------------------------------------------------------------------------------

TEST(SleepingTags, GiveTheirMemoryBackAndKeepTheirAddresses) {
  World world(checked(), "heap:pages");
  Weights weights(world);
  for (const std::size_t bytes : {100 * kMiB, 30 * kMiB, 700 * kKiB, std::size_t{100}}) weights.add(bytes);
  const std::size_t reserved = world.reserved();
  const std::size_t allocated = world.allocated();
  for (int cycle = 0; cycle < 3; ++cycle) {
    weights.sleep();
    EXPECT_EQ(world.reserved(), 0u);
    EXPECT_EQ(world.device->used_bytes(), 0u);
    EXPECT_EQ(world.device->live_mappings(), 0u);
    EXPECT_EQ(world.allocated(), allocated);
    weights.wake();
    EXPECT_EQ(world.reserved(), reserved);
    EXPECT_EQ(world.device->used_bytes(), reserved);
  }
  weights.free_all();
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(SleepingTags, SaveWhatTheyHeldIfAsked) {
  World world(checked(), "heap:pages");
  Weights weights(world);
  weights.add(70 * kMiB, "first");
  weights.add(1000, "small");
  weights.add(40 * kMiB, "third");
  world.device->copy_from_host(address(weights.live[0].ptr) + 63 * kMiB, "far", 3);  // in another handle
  weights.sleep(/*save=*/true);
  EXPECT_GT(world.count(DeviceCall::host_malloc), 0u);
  weights.wake();
  EXPECT_EQ(weights.content(0, 5), "first");
  EXPECT_EQ(weights.content(0, 63 * kMiB + 3).substr(63 * kMiB), "far");
  EXPECT_EQ(weights.content(1, 5), "small");
  EXPECT_EQ(weights.content(2, 5), "third");
  EXPECT_EQ(world.count(DeviceCall::host_free), world.count(DeviceCall::host_malloc));

  weights.sleep(/*save=*/false);
  weights.wake();
  for (std::size_t i = 0; i < weights.live.size(); ++i) EXPECT_EQ(weights.content(i, 5), kZeros);
  weights.free_all();
}

TEST(SleepingTags, WaitForTheDevice) {
  World world(checked(), "heap:pages");
  const Stream other = world.device->new_stream();
  Weights weights(world);
  void* ptr = weights.add(8 * kMiB);
  world.device->launch(other, 5'000'000, {{address(ptr), 8 * kMiB}});  // the checker sees an unmap before its end
  weights.sleep();
  EXPECT_GE(world.device->clock_ns(), 5'000'000);
  weights.wake();
  weights.free_all();
}

TEST(SleepingTags, TakeOneCallForEachRunOfAddresses) {
  World world(checked(), "heap:pages,page_size_mb:32");
  Weights weights(world);
  for (int i = 0; i < 4; ++i) weights.add(64 * kMiB);
  const std::uint64_t accesses = world.count(DeviceCall::set_access);
  weights.sleep();
  EXPECT_EQ(world.count(DeviceCall::unmap), 1u);
  EXPECT_EQ(world.count(DeviceCall::release), 8u);
  weights.wake();
  EXPECT_EQ(world.count(DeviceCall::set_access), accesses + 1);
  weights.free_all();
}

TEST(SleepingTags, SleepAndWakeOnceHoweverOftenAsked) {
  World world(checked(), "heap:pages");
  Weights weights(world);
  weights.add(8 * kMiB, "bytes");
  world.allocator.restore_physical("weights");
  weights.sleep(/*save=*/true);
  world.allocator.release_physical("weights");
  weights.wake();
  world.allocator.restore_physical("weights");
  EXPECT_EQ(weights.content(0, 5), "bytes");
  weights.free_all();
}

TEST(SleepingTags, AreIndependentOfEachOther) {
  World world(checked(), "heap:pages");
  Weights weights(world, "weights");
  Weights cache(world, "cache");
  Program others(world);
  weights.add(50 * kMiB, "heavy");
  cache.add(20 * kMiB, "cache");
  void* untagged = others.allocate(10 * kMiB);
  weights.sleep();
  EXPECT_EQ(world.reserved(), 30 * kMiB);
  cache.sleep(/*save=*/true);
  EXPECT_EQ(world.reserved(), 10 * kMiB);
  weights.wake();
  EXPECT_EQ(world.reserved(), 60 * kMiB);
  cache.wake();
  EXPECT_EQ(cache.content(0, 5), "cache");
  weights.free_all();
  cache.free_all();
  others.free(untagged);
}

TEST(SleepingTags, AreOfTheThreadThatBeganThem) {
  World world(64 * kGiB, "heap:pages");
  const Region region(world, "weights");
  void* inside = world.allocate(10 * kMiB);
  void* outside = nullptr;
  void* beside = nullptr;
  on_another_thread([&] {
    outside = world.allocate(10 * kMiB);
    const Region theirs(world, "weights");  // now both threads are in the tag
    beside = world.allocate(10 * kMiB);
  });
  {
    const Region inner(world, "cache");
    world.allocator.deallocate(world.allocate(4 * kMiB));
  }
  world.allocator.release_physical("weights");
  EXPECT_EQ(world.reserved(), 14 * kMiB);  // `outside`, and the free memory of the tag "cache"
  world.allocator.restore_physical("weights");
  for (void* ptr : {inside, outside, beside}) world.allocator.deallocate(ptr);
}

TEST(SleepingTags, SleepOnEveryDeviceOrOne) {
  SimulatedDevice::Config config = World::config_of(kGiB);
  const auto first = std::make_shared<SimulatedDevice>(config);
  config.index = 1;
  const auto second = std::make_shared<SimulatedDevice>(config);
  CachingAllocator allocator({first, second}, parse_options("heap:pages"));
  allocator.begin_tagged("weights");
  void* on_first = allocator.allocate(8 * kMiB, 0);
  void* on_second = allocator.allocate(8 * kMiB, 1);
  allocator.end_tagged("weights");
  allocator.release_physical("weights", /*save=*/false, /*device=*/1);
  EXPECT_EQ(first->used_bytes(), 8 * kMiB);
  EXPECT_EQ(second->used_bytes(), 0u);
  EXPECT_EQ(first->count(DeviceCall::synchronize), 0u);
  allocator.release_physical("weights");
  EXPECT_EQ(first->used_bytes(), 0u);
  allocator.restore_physical("weights");
  EXPECT_EQ(second->used_bytes(), 8 * kMiB);
  EXPECT_EQ(allocator.validate(), "");
  allocator.deallocate(on_first);
  allocator.deallocate(on_second);
}

TEST(SleepingTags, SleepAlsoWithoutMemory) {
  World world(64 * kGiB, "heap:pages");
  {
    const Region region(world, "weights");
    world.allocator.deallocate(world.allocate(8 * kMiB));
  }
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  world.allocator.release_physical("weights");
  {
    const Region region(world, "weights");
    EXPECT_CONTAINS(refusal([&] { world.allocate(8 * kMiB); }), "tag 'weights' is asleep on device 0");
  }
  world.allocator.restore_physical("weights");
  const Region region(world, "weights");
  world.allocator.deallocate(world.allocate(8 * kMiB));
}

TEST(SleepingTags, SleepOnNoDeviceWhereOneMayNot) {
  TwoDevices two(kGiB, "heap:pages");
  two.allocator.begin_tagged("weights");
  void* ptr = two.allocator.allocate(8 * kMiB, 0);
  two.allocator.end_tagged("weights");
  const Stream stream = two.device[1]->new_stream();
  two.device[1]->begin_capture(stream);
  two.allocator.begin_allocate_to_pool(
      1, kPool, [](Stream) { return true; }, RedirectFor::capture);
  EXPECT_CONTAINS(refusal([&] { two.allocator.release_physical("weights"); }), "a graph is being captured on device 1");
  EXPECT_EQ(two.device[0]->used_bytes(), 8 * kMiB);
  two.allocator.end_allocate_to_pool(1, kPool);
  two.device[1]->end_capture(stream);
  two.allocator.release_physical("weights");
  EXPECT_EQ(two.device[0]->used_bytes(), 0u);
  two.allocator.restore_physical("weights");
  two.allocator.deallocate(ptr);
}

TEST(SleepingTags, AskNothingOfADeviceWithoutTheirMemory) {
  TwoDevices two(kGiB, "heap:pages");
  two.allocator.begin_tagged("weights");
  void* ptr = two.allocator.allocate(8 * kMiB, 0);
  two.allocator.end_tagged("weights");
  two.allocator.release_physical("weights");
  two.allocator.restore_physical("weights");
  for (std::size_t call = 0; call < kDeviceCallCount; ++call) {
    EXPECT_EQ(two.device[1]->count(static_cast<DeviceCall>(call)), 0u) << to_string(static_cast<DeviceCall>(call));
  }
  two.allocator.deallocate(ptr);
}

// --- while asleep -----------------------------------------------------------------------------------------------------

TEST(WhileATagIsAsleep, NothingIsAllocatedFromIt) {
  World world(64 * kGiB, "heap:pages");
  Weights weights(world);
  weights.add(8 * kMiB);
  world.allocator.deallocate(weights.add(3 * kMiB));  // a free block that would serve
  weights.live.pop_back();
  world.allocator.release_physical("weights");
  {
    const Region region(world, "weights");
    for (const std::size_t bytes : {std::size_t{100}, 2 * kMiB, 100 * kMiB}) {
      EXPECT_CONTAINS(refusal([&] { world.allocate(bytes); }),
                      "tag 'weights' is asleep on device 0: nothing can be allocated from it before restore_physical");
      EXPECT_EQ(world.allocator.validate(), "");
    }
  }
  world.allocator.deallocate(world.allocate(2 * kMiB));  // other memory is still served
  world.allocator.restore_physical("weights");
  const Region region(world, "weights");
  world.allocator.deallocate(world.allocate(2 * kMiB));
  weights.free_all();
}

TEST(WhileATagIsAsleep, WhatIsFreedNeedNotComeBack) {
  World world(checked(), "heap:pages,page_size_mb:2");
  Weights weights(world);
  for (int i = 0; i < 4; ++i) weights.add(10 * kMiB, fmt::format("no. {}", i));
  weights.sleep(/*save=*/true);
  for (const std::size_t which : {std::size_t{2}, std::size_t{0}}) {
    world.allocator.deallocate(weights.live[which].ptr);
    weights.live.erase(weights.live.begin() + static_cast<std::ptrdiff_t>(which));
    EXPECT_EQ(world.allocator.validate(), "");
  }
  EXPECT_EQ(world.allocated(), 20 * kMiB);
  weights.wake();
  EXPECT_EQ(world.reserved(), 20 * kMiB);
  EXPECT_EQ(weights.content(0, 5), "no. 1");
  EXPECT_EQ(weights.content(1, 5), "no. 3");
  EXPECT_EQ(world.count(DeviceCall::host_free), world.count(DeviceCall::host_malloc));
  weights.free_all();
}

TEST(WhileATagIsAsleep, AllOfItMayBeFreed) {
  World world(checked(), "heap:pages");
  Weights weights(world);
  weights.add(30 * kMiB);
  weights.add(1000);
  weights.sleep(/*save=*/true);
  weights.free_all(/*asleep=*/true);
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.count(DeviceCall::host_free), world.count(DeviceCall::host_malloc));
  {
    const Region region(world, "weights");
    EXPECT_CONTAINS(refusal([&] { world.allocate(kMiB); }), "tag 'weights' is asleep");
  }
  weights.wake();
  EXPECT_EQ(world.reserved(), 0u);
  weights.add(10 * kMiB);
  weights.free_all();
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(WhileATagIsAsleep, AFreeMayWaitForAnotherStream) {
  World world(64 * kGiB, "heap:pages");
  const Stream other = world.device->new_stream();
  Weights weights(world);
  void* early = weights.add(10 * kMiB);
  void* late = weights.add(10 * kMiB);
  world.allocator.record_stream(early, other);
  world.allocator.deallocate(early);
  world.allocator.record_stream(late, other);
  world.allocator.release_physical("weights");
  world.launch(other);
  world.allocator.deallocate(late);
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.active(), 10 * kMiB);
  world.allocator.empty_cache();  // waits for it
  EXPECT_EQ(world.active(), 0u);
  world.allocator.restore_physical("weights");
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(WhileATagIsAsleep, ItsMemoryServesOthers) {
  World world(checked(100 * kMiB), "heap:pages");
  Weights weights(world);
  Program others(world);
  weights.add(80 * kMiB, "bytes");
  weights.sleep(/*save=*/true);
  void* large = others.allocate(90 * kMiB);
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocator.validate(), "");
  others.free(large);
  weights.wake();  // the 90 MiB are idle, and go back to the device
  EXPECT_EQ(world.device->used_bytes(), 80 * kMiB);
  EXPECT_EQ(weights.content(0, 5), "bytes");
  weights.free_all();
}

TEST(WhileATagIsAsleep, ItsBlocksAreShownAndSaidToBeAsleep) {
  World world(64 * kGiB, "heap:pages");
  Weights weights(world);
  weights.add(10 * kMiB);
  world.allocate(4 * kMiB);
  std::int64_t mapped = 0;
  world.allocator.add_change_tracker([&](const Change& change) {
    if (change.action == Change::Action::segment_map) mapped += static_cast<std::int64_t>(change.bytes);
    if (change.action == Change::Action::segment_unmap) mapped -= static_cast<std::int64_t>(change.bytes);
  });
  world.allocator.release_physical("weights");
  EXPECT_EQ(mapped, -static_cast<std::int64_t>(10 * kMiB));
  std::size_t total = 0;
  std::size_t asleep = 0;
  for (const SegmentSnapshot& segment : world.allocator.snapshot().segments) {
    total += segment.total_size;
    asleep += segment.asleep_size;
  }
  EXPECT_EQ(total - asleep, world.reserved());
  EXPECT_EQ(asleep, 10 * kMiB);
  EXPECT_EQ(world.allocator.fragmentation().reserved_bytes, 4 * kMiB);
  world.allocator.restore_physical("weights");
  EXPECT_EQ(mapped, 0);
  EXPECT_EQ(world.allocator.snapshot().segments[0].asleep_size, 0u);
}

TEST(WhileATagIsAsleep, TheAllocatorMayGo) {
  auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  {
    CachingAllocator allocator({device}, parse_options("heap:pages"));
    allocator.begin_tagged("weights");
    allocator.allocate(80 * kMiB);
    allocator.end_tagged("weights");
    allocator.release_physical("weights", /*save=*/true);
  }
  EXPECT_EQ(device->used_bytes(), 0u);
  EXPECT_EQ(device->count(DeviceCall::host_free), device->count(DeviceCall::host_malloc));
  EXPECT_EQ(device->count(DeviceCall::unmap), 1u);
}

// --- too little memory ------------------------------------------------------------------------------------------------

TEST(WakingWithoutMemory, LeavesTheTagAsleepUntilThereIsEnough) {
  World world(checked(100 * kMiB), "heap:pages");
  Weights weights(world);
  Program others(world);
  weights.add(80 * kMiB, "bytes");
  weights.sleep(/*save=*/true);
  void* in_the_way = others.allocate(30 * kMiB);
  const std::string message = out_of_memory([&] { world.allocator.restore_physical("weights"); });
  EXPECT_CONTAINS(message, "CUDA out of memory. Tried to allocate 80.00 MiB");
  EXPECT_CONTAINS(message,
                  "80.00 MiB is asleep (80.00 MiB of tag 'weights'): it has no memory until restore_physical.");
  EXPECT_FALSE(contains(message, " 0 bytes")) << message;
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.device->used_bytes(), 30 * kMiB);
  EXPECT_EQ(world.reserved(), 30 * kMiB);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 1);
  others.free(in_the_way);
  weights.wake();
  EXPECT_EQ(weights.content(0, 5), "bytes");
  weights.free_all();
}

TEST(WakingWithoutMemory, KeepsToTheMemoryFraction) {
  World world(checked(100 * kMiB), "heap:pages");
  Weights weights(world);
  weights.add(60 * kMiB, "bytes");
  weights.sleep(/*save=*/true);
  world.allocator.set_memory_fraction(0.5);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocator.restore_physical("weights"); }), "50.00 MiB allowed");
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.set_memory_fraction(1);
  weights.wake();
  EXPECT_EQ(weights.content(0, 5), "bytes");
  weights.free_all();
}

TEST(WakingWithoutMemory, AsksTheProgramToFreeSomeFirst) {
  World world(100 * kMiB, "heap:pages");
  Weights weights(world);
  weights.add(80 * kMiB);
  world.allocator.release_physical("weights");
  void* spare = world.allocate(30 * kMiB);
  world.allocator.add_free_memory_callback([&] {
    world.allocator.deallocate(std::exchange(spare, nullptr));
    return true;
  });
  world.allocator.restore_physical("weights");
  EXPECT_EQ(world.reserved(), 80 * kMiB);
}

// The callback does what another thread may do while the lock is released.
TEST(WakingWithoutMemory, LeavesTheTagAsAnotherHasWokenItMeanwhile) {
  for (const bool frees_all : {false, true}) {
    World world(checked(64 * kMiB), "heap:pages");
    Weights weights(world);
    void* sleeper = weights.add(40 * kMiB);
    weights.sleep();
    void* in_the_way = world.allocate(40 * kMiB);
    int calls = 0;
    world.allocator.add_last_resort([&] {
      ++calls;
      world.allocator.deallocate(frees_all ? sleeper : in_the_way);
      world.allocator.restore_physical("weights");
      return false;
    });
    world.allocator.restore_physical("weights");
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(world.reserved(), 40 * kMiB);
    EXPECT_EQ(world.allocator.memory_allocated(), 40 * kMiB);
  }
}

TEST(Saving, NeedsPinnedHostMemory) {
  World world(checked(), "heap:pages,page_size_mb:32");
  Weights weights(world);
  weights.add(80 * kMiB, "bytes");
  world.device->set_faults({{.call = DeviceCall::host_malloc, .nth = 2}});
  EXPECT_CONTAINS(out_of_memory([&] { world.allocator.release_physical("weights", /*save=*/true); }),
                  "the host has no 32.00 MiB of pinned memory to save what tag 'weights' holds on device 0");
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.reserved(), 80 * kMiB);
  EXPECT_EQ(weights.content(0, 5), "bytes");
  EXPECT_EQ(world.count(DeviceCall::host_free), 1u);
  weights.add(kMiB);  // it is awake
  weights.free_all();
}

// --- pools of graphs and of users ---------------------------------------------------------------------------------------

TEST(SleepingPools, OfGraphsKeepTheAddressesOfTheirFreeMemory) {
  World world(checked(), "heap:pages");
  const Stream stream = world.device->new_stream();
  void* kept = nullptr;
  void* intermediate = nullptr;
  {
    const Capture capture(world, stream, kPool);
    kept = world.allocate(8 * kMiB, stream);
    intermediate = world.allocate(64 * kMiB, stream);
    world.allocator.deallocate(intermediate);
  }
  world.allocator.release_physical(kPool);
  EXPECT_EQ(world.device->used_bytes(), 0u);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.restore_physical(kPool);
  EXPECT_EQ(world.allocator.validate(), "");
  world.device->launch(stream, 1000, {{address(kept), 8 * kMiB}, {address(intermediate), 64 * kMiB}});  // a replay
  world.allocator.deallocate(kept);
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(SleepingPools, AreGoneWithTheirLastUserWhateverTheySaved) {
  World world(64 * kGiB, "heap:pages");
  world.allocator.create_or_retain_pool(0, kPool);
  void* ptr = nullptr;
  {
    const InPool in_pool(world.allocator, kPool);
    ptr = world.allocate(40 * kMiB);
  }
  world.allocator.release_physical(kPool, /*save=*/true);
  world.allocator.deallocate(ptr);
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache(0, kPool);
  EXPECT_EQ(world.count(DeviceCall::host_free), world.count(DeviceCall::host_malloc));
  EXPECT_EQ(world.count(DeviceCall::unreserve), world.count(DeviceCall::reserve));
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical(kPool); }), "there is no pool (1, 0)");
}

TEST(SleepingPools, DoNotReturnToACheckpoint) {
  World world(64 * kGiB, "heap:pages");
  const InPool in_pool(world.allocator, kPool);
  void* ptr = world.allocate(8 * kMiB);
  const PoolCheckpoint checkpoint = world.allocator.checkpoint_pool(0, kPool);
  world.allocator.release_physical(kPool);
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_pool(0, checkpoint); }), "pool (1, 0) is asleep on device 0");
  world.allocator.restore_physical(kPool);
  const RestoreResult result = world.allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(result.created, std::vector<void*>{ptr});
}

TEST(SleepingPools, DoNotServeOthersWhenMemoryRunsOut) {
  World world(100 * kMiB, "heap:pages");
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.create_or_retain_pool(0, kPool);
    world.allocator.deallocate(world.allocate(60 * kMiB));
  }
  world.allocator.set_use_on_oom(0, kPool, true);
  world.allocator.release_physical(kPool);
  world.allocator.deallocate(world.allocate(90 * kMiB));
  out_of_memory([&] { world.allocate(110 * kMiB); });
  void* const most = world.allocate(90 * kMiB);
  EXPECT_EQ(world.allocator.largest_available(0, /*starting_from_free_memory=*/false), 0u);
  out_of_memory([&] { world.allocate(20 * kMiB); });  // it would fit into the sleeping memory
  world.allocator.deallocate(most);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.restore_physical(kPool);
  EXPECT_EQ(world.reserved(), 60 * kMiB);
  world.allocator.release_pool(0, kPool);
}

// --- threads ------------------------------------------------------------------------------------------------------------

TEST(SleepingTags, ComeAndGoWhileOtherThreadsAllocate) {
  World world(256 * kMiB, "heap:pages,page_size_mb:2");
  std::atomic<int> running{4};
  const auto allocate_and_free = [&](std::size_t thread, bool tagged) {
    std::vector<void*> live;
    for (std::size_t i = 0; i < 1000; ++i) {
      if (tagged) world.allocator.begin_tagged("weights");
      try {
        live.push_back(world.allocate((1 + (i * 7919 + thread * 31) % 5000) * kKiB));
      } catch (const OutOfMemory&) {
      } catch (const InvalidArgument& refusal) {
        EXPECT_CONTAINS(refusal.what(), "tag 'weights' is asleep");
      }
      if (tagged) world.allocator.end_tagged("weights");
      if (live.size() > 8 || (i % 5 == 0 && !live.empty())) {
        world.allocator.deallocate(live.front());
        live.erase(live.begin());
      }
    }
    for (void* ptr : live) world.allocator.deallocate(ptr);
    --running;
  };
  { const Region region(world, "weights"); }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) threads.emplace_back(allocate_and_free, t, /*tagged=*/t % 2 == 0);
  for (int i = 0; running > 0; ++i) {
    world.allocator.release_physical("weights", /*save=*/i % 2 == 0);
    EXPECT_EQ(world.allocator.validate(), "");
    try {
      world.allocator.restore_physical("weights");
    } catch (const OutOfMemory&) {  // the other threads have all memory
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // gives the other threads a turn
  }
  for (std::thread& thread : threads) thread.join();
  world.allocator.restore_physical("weights");
  world.allocator.empty_cache();
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

// --- the list of tags -------------------------------------------------------------------------------------------------

TEST(Tags, AreListedWithTheirMemoryAndWhetherTheySleep) {
  World world(64 * kGiB, "heap:pages");
  EXPECT_TRUE(world.allocator.tags().empty());
  Weights weights(world);
  Weights cache(world, "cache");
  weights.add(8 * kMiB);
  weights.add(100);
  cache.add(40 * kMiB);
  { const Region region(world, "unused"); }
  void* const outside = world.allocate(4 * kMiB);

  auto tags = world.allocator.tags();
  ASSERT_EQ(tags.size(), 2u);
  EXPECT_EQ(tags[0].tag, "cache");
  EXPECT_EQ(tags[1].tag, "weights");
  for (const auto& each : tags) {
    EXPECT_EQ(each.device, 0);
    EXPECT_FALSE(each.is_asleep);
    EXPECT_EQ(each.asleep_bytes, 0u);
  }
  EXPECT_EQ(tags[0].allocated_bytes, 40 * kMiB);
  EXPECT_EQ(tags[1].allocated_bytes, 8 * kMiB + 512);
  EXPECT_EQ(tags[1].requested_bytes, 8 * kMiB + 100);
  EXPECT_NE(tags[0].pool, tags[1].pool);
  EXPECT_EQ(world.allocator.snapshot(tags[1].pool).segments.size(), 2u) << "small and large blocks";
  const std::size_t held = world.reserved();
  EXPECT_EQ(tags[0].reserved_bytes + tags[1].reserved_bytes + 4 * kMiB, held);
  std::size_t in_snapshot = 0;
  for (const auto& segment : world.allocator.snapshot(tags[1].pool).segments) in_snapshot += segment.allocated_size;
  EXPECT_EQ(in_snapshot, tags[1].allocated_bytes);

  weights.sleep();
  world.allocator.release_physical("unused");
  tags = world.allocator.tags();
  ASSERT_EQ(tags.size(), 3u);
  EXPECT_EQ(tags[1].tag, "unused");
  EXPECT_TRUE(tags[1].is_asleep);
  EXPECT_TRUE(tags[2].is_asleep);
  EXPECT_EQ(tags[2].allocated_bytes, 8 * kMiB + 512);
  EXPECT_EQ(tags[2].reserved_bytes, 0u);
  EXPECT_EQ(world.reserved() + tags[2].asleep_bytes, held);

  world.allocator.restore_physical("unused");
  weights.wake();
  EXPECT_EQ(world.allocator.tags().size(), 2u);
  weights.free_all();
  cache.free_all();
  world.allocator.deallocate(outside);
  world.allocator.empty_cache();
  EXPECT_TRUE(world.allocator.tags().empty());
}

TEST(Tags, SayAsJsonWhatTheyHold) {
  World world(64 * kGiB, "heap:pages");
  Weights weights(world);
  weights.add(8 * kMiB);
  weights.sleep();
  EXPECT_EQ(to_json(world.allocator.tags()),
            R"([{"tag":"weights","device":0,"is_asleep":true,"allocated_bytes":8388608,"requested_bytes":8388608,)"
            R"("reserved_bytes":0,"asleep_bytes":8388608,"is_evictable":false,"priority":0,"holds":0,"pool":[1,1]}])");
  EXPECT_CONTAINS(to_json(world.allocator.snapshot()), R"("asleep_size":8388608)");
  weights.wake();
  EXPECT_FALSE(contains(to_json(world.allocator.snapshot()), "asleep_size"));
  weights.free_all();
}

TEST(Tags, SleepAndWakeSeveralAtATime) {
  World world(checked(), "heap:pages");
  Weights weights(world);
  Weights cache(world, "cache");
  weights.add(8 * kMiB, "bytes");
  cache.add(40 * kMiB);
  for (Weights* each : {&weights, &cache}) world.device->given_back(address(each->live[0].ptr));
  EXPECT_CONTAINS(refusal([&] {
                    world.allocator.release_tags({"weights", "wieghts"});
                  }),
                  "no memory was ever tagged 'wieghts'");
  EXPECT_EQ(world.reserved(), 48 * kMiB) << "a mistake in one of them leaves all as they are";
  world.allocator.release_tags({"weights", "cache"}, /*save=*/true);
  EXPECT_EQ(world.reserved(), 0u);
  const std::vector<std::string_view> both = {"cache", "weights"};
  world.allocator.restore_tags(both);
  EXPECT_EQ(world.reserved(), 48 * kMiB);
  EXPECT_EQ(weights.content(0, 5), "bytes");
  for (Weights* each : {&weights, &cache})
    world.device->handed_out(address(each->live[0].ptr), each->live[0].bytes, nullptr);
  weights.free_all();
  cache.free_all();
}

TEST(Tags, OfWhichSeveralSleepAreToldWithTheirBytesWhereMemoryRunsOut) {
  World world(checked(100 * kMiB), "heap:pages");
  Weights weights(world);
  Weights cache(world, "cache");
  weights.add(20 * kMiB);
  cache.add(40 * kMiB);
  weights.sleep();
  cache.sleep();
  EXPECT_CONTAINS(out_of_memory([&] { world.allocate(200 * kMiB); }),
                  "60.00 MiB is asleep (20.00 MiB of tag 'weights', 40.00 MiB of tag 'cache')");
  weights.free_all(/*asleep=*/true);
  cache.free_all(/*asleep=*/true);
}

TEST(Tags, OfNestedRegionsTheInnermostHasTheMemory) {
  World world(64 * kGiB, "heap:pages");
  const Region outer(world, "outer");
  world.allocate(4 * kMiB);
  {
    const Region inner(world, "inner");
    world.allocate(8 * kMiB);
  }
  world.allocate(2 * kMiB);
  const auto tags = world.allocator.tags();
  ASSERT_EQ(tags.size(), 2u);
  EXPECT_EQ(tags[0].allocated_bytes, 8 * kMiB);
  EXPECT_EQ(tags[1].allocated_bytes, 6 * kMiB);
}

// --- mistakes -----------------------------------------------------------------------------------------------------------

TEST(AskedToSleep, WhatIsNotThereIsAMistake) {
  World world(64 * kGiB, "heap:pages");
  EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical("weights"); }), "no memory was ever tagged 'weights'");
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical("weights"); }), "no memory was ever tagged 'weights'");
  EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical(kPool); }), "there is no pool (1, 0)");
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical(kPool); }), "there is no pool (1, 0)");
  EXPECT_CONTAINS(refusal([&] { world.allocator.begin_tagged(""); }), "it must not be empty");
  EXPECT_CONTAINS(refusal([&] { world.allocator.begin_tagged("weights", 7); }), "device 7 is not one of");
  EXPECT_CONTAINS(refusal([&] { world.allocator.end_tagged("weights"); }), "no memory was ever tagged 'weights'");
  { const Region region(world, "weights"); }
  EXPECT_CONTAINS(refusal([&] { world.allocator.end_tagged("weights"); }),
                  "end_tagged: this thread is in no region of tag 'weights' on device 0");
  world.allocator.release_physical("weights");  // a tag without memory sleeps, too
  world.allocator.restore_physical("weights");
}

TEST(AskedToSleep, SegmentsCannot) {
  World world;
  EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical("weights"); }), "release_physical needs heap:pages");
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical("weights"); }), "restore_physical needs heap:pages");
  const Region region(world, "weights");
  void* ptr = world.allocate(kMiB);
  EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical("weights"); }),
                  "release_physical needs heap:pages; the heap of device 0 is 'segments'");
  EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical("weights"); }), "restore_physical needs heap:pages");
  world.allocator.deallocate(ptr);
  World async(kGiB, "heap:async");
  EXPECT_CONTAINS(refusal([&] { async.allocator.release_physical("weights"); }), "the heap of device 0 is 'async'");
}

TEST(AskedToSleep, NothingMayDuringACapture) {
  World world(64 * kGiB, "heap:pages");
  Weights weights(world);
  weights.add(8 * kMiB);
  world.allocator.release_physical("weights");
  {
    const Capture capture(world, world.device->new_stream(), kPool);
    EXPECT_CONTAINS(refusal([&] { world.allocator.release_physical("weights"); }), "a graph is being captured");
    EXPECT_CONTAINS(refusal([&] { world.allocator.restore_physical("weights"); }), "a graph is being captured");
  }
  world.allocator.restore_physical("weights");
  world.allocator.release_pool(0, kPool);
}

}  // namespace
}  // namespace cachalot
