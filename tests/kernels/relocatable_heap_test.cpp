// RelocatableHeap: what compact moves and gives back, over both heaps; that contents and order survive, and failing
// calls.
#include "cachalot/relocatable_heap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/allocator/moving_kernels.h"
#include "tests/allocator/testing.h"
#include "tests/kernels/subject.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

SimulatedDevice::Config checked_config() {
  SimulatedDevice::Config config = World::config_of(2 * kGiB);
  config.check_hazards = true;
  return config;
}

// A heap whose mover queues its copies and tells the hazard checker of them, as work of a GPU.
struct HeapWorld : World {
  explicit HeapWorld(const std::string& options = "")
      : World(checked_config(), options), mover(std::make_shared<MovingKernels>(device)), heap(allocator, 0, mover) {}

  // Full of `value`, and used for a millisecond of its stream.
  Relocatable allocate(std::size_t bytes, unsigned char value, Stream stream = nullptr) {
    Relocatable handle = heap.allocate(bytes, stream);
    device->handed_out(address(handle.data()), bytes, stream);
    device->launch(stream, 1'000'000, {{address(handle.data()), bytes}});
    const Bytes content(std::min(bytes, kEnd), value);
    device->copy_from_host(address(handle.data()), content.data(), content.size());
    device->copy_from_host(address(handle.data()) + bytes - content.size(), content.data(), content.size());
    return handle;
  }
  // The first and the last of it.
  void expect_content(const Relocatable& handle, unsigned char value) {
    Bytes held(std::min(handle.bytes(), kEnd));
    for (const Address from : {address(handle.data()), address(handle.data()) + handle.bytes() - held.size()}) {
      device->copy_to_host(held.data(), from, held.size());
      ASSERT_EQ(held, Bytes(held.size(), value));
    }
  }
  void release(Relocatable& handle) {
    device->given_back(address(handle.data()));
    handle.release();
  }
  // So many, of which every `each`-th stays; numbered by their content.
  std::vector<Relocatable> sparse(std::size_t count, std::size_t each, std::size_t bytes, Stream stream = nullptr) {
    std::vector<Relocatable> handles;
    for (std::size_t i = 0; i < count; ++i) {
      handles.push_back(allocate(bytes, static_cast<unsigned char>(i / each), stream));
    }
    std::vector<Relocatable> left;
    for (std::size_t i = 0; i < count; ++i) {
      if (i % each == 0) {
        left.push_back(std::move(handles[i]));
      } else {
        release(handles[i]);
      }
    }
    return left;
  }
  void expect_numbered(const std::vector<Relocatable>& handles) {
    for (std::size_t i = 0; i < handles.size(); ++i) expect_content(handles[i], static_cast<unsigned char>(i));
  }
  void release(std::vector<Relocatable>& handles) {
    for (Relocatable& handle : handles) release(handle);
    handles.clear();
  }

  static constexpr std::size_t kEnd = 3000;
  std::shared_ptr<MovingKernels> mover;
  RelocatableHeap heap;
};

class EveryHeap : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Heaps, EveryHeap,
                         testing::Values("heap:segments", "heap:segments,thread_cache:True", "heap:pages",
                                         "heap:pages,thread_cache:False", "heap:pages,page_size_mb:2"));

TEST_P(EveryHeap, WhatIsScatteredIsBroughtTogetherAndTheRestGivenBack) {
  for (const std::size_t bytes : {48 * kKiB, 300 * kKiB, 3 * kMiB}) {
    HeapWorld world(GetParam());
    std::vector<Relocatable> handles = world.sparse(160, 8, bytes);
    world.allocator.empty_cache();
    const std::size_t reserved = world.reserved();
    const CompactReport report = world.heap.compact();
    world.expect_numbered(handles);
    EXPECT_EQ(report.bytes_freed, reserved - world.reserved());
    EXPECT_EQ(report.bytes_moved, report.blocks_moved * bytes);
    EXPECT_EQ(report.blocks_moved, world.mover->moved());
    const std::size_t segment = bytes > kMiB ? 20 * kMiB : 2 * kMiB;
    const std::size_t in_a_segment = segment / bytes;
    EXPECT_LE(world.reserved(), (20 / in_a_segment + 2) * segment) << bytes;
    EXPECT_EQ(world.allocator.validate(), "");
    world.release(handles);
  }
}

TEST(RelocatableHeap, UnderTheGuardNothingMovesAndNothingIsLost) {
  HeapWorld world("guard:True");
  std::vector<Relocatable> handles = world.sparse(80, 8, 300 * kKiB);
  EXPECT_EQ(world.heap.compact().blocks_moved, 0u);
  world.expect_numbered(handles);
  world.release(handles);
  EXPECT_TRUE(world.allocator.check_guard().empty());
}

// Reserved when one in eight of 160 blocks is left, before and after.
TEST(RelocatableHeap, OverThePageHeapOnlyBlocksOfLessThanAPageNeedIt) {
  struct Reserved {
    std::size_t before;
    std::size_t after;
    bool operator==(const Reserved&) const = default;
  };
  const auto reserved = [](const std::string& options, std::size_t bytes) {
    HeapWorld world(options);
    std::vector<Relocatable> handles = world.sparse(160, 8, bytes);
    world.allocator.empty_cache();
    const std::size_t before = world.reserved();
    world.heap.compact();
    const Reserved both{before, world.reserved()};
    world.release(handles);
    return both;
  };
  EXPECT_EQ(reserved("heap:segments", 4 * kMiB), (Reserved{400 * kMiB, 80 * kMiB}));
  EXPECT_EQ(reserved("heap:pages", 4 * kMiB), (Reserved{80 * kMiB, 80 * kMiB}));
  EXPECT_EQ(reserved("heap:segments", 512 * kKiB), (Reserved{40 * kMiB, 10 * kMiB}));
  EXPECT_EQ(reserved("heap:pages", 512 * kKiB), (Reserved{40 * kMiB, 10 * kMiB}));
}

TEST(RelocatableHeap, NothingIsTakenFromTheDeviceForIt) {
  HeapWorld world;
  std::vector<Relocatable> handles = world.sparse(100, 5, 3 * kMiB);
  const std::size_t peak = world.allocator.max_memory_reserved();
  const std::uint64_t mallocs = world.count(DeviceCall::malloc);
  EXPECT_GT(world.heap.compact().bytes_freed, 100 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::malloc), mallocs);
  EXPECT_EQ(world.allocator.max_memory_reserved(), peak);
  world.release(handles);
}

TEST(RelocatableHeap, SegmentsWhereSomethingElseLivesStay) {
  HeapWorld world;
  std::vector<void*> others;
  std::vector<Relocatable> handles;
  for (int i = 0; i < 4; ++i) {
    handles.push_back(world.allocate(2 * kMiB, static_cast<unsigned char>(i)));
    for (int j = 0; j < 4; ++j) others.push_back(world.World::allocate(4 * kMiB));
  }
  std::vector<const void*> before;
  for (const Relocatable& handle : handles) before.push_back(handle.data());
  const CompactReport report = world.heap.compact();
  EXPECT_EQ(report.blocks_moved, 0u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(handles[i].data(), before[i]);
  for (void* other : others) world.allocator.deallocate(other);
  EXPECT_GT(world.heap.compact().blocks_moved, 0u);
  world.expect_numbered(handles);
  EXPECT_EQ(world.segments(), 1);
  world.release(handles);
}

TEST(RelocatableHeap, WhatIsTogetherAlreadyStaysWhereItIs) {
  HeapWorld world;
  std::vector<Relocatable> handles = world.sparse(40, 1, 2 * kMiB);
  EXPECT_EQ(world.heap.compact().blocks_moved, 0u);
  handles.erase(handles.begin() + 20, handles.begin() + 20);
  std::vector<Relocatable> few = world.sparse(8, 8, 2 * kMiB);
  world.heap.compact();
  const CompactReport again = world.heap.compact();
  EXPECT_EQ(again.blocks_moved + again.bytes_moved + again.bytes_freed, 0u);
  world.release(handles);
  world.release(few);
}

TEST_P(EveryHeap, EachStreamsMemoryIsMovedInItsOwnOrder) {
  HeapWorld world(GetParam());
  const Stream a = world.device->stream();
  const Stream b = world.device->stream();
  std::vector<Relocatable> of_a = world.sparse(48, 6, 3 * kMiB, a);
  std::vector<Relocatable> of_b = world.sparse(48, 6, 3 * kMiB, b);
  world.heap.compact();
  world.expect_numbered(of_a);
  world.expect_numbered(of_b);
  for (const Relocatable& handle : of_a) EXPECT_EQ(handle.stream(), a);
  world.release(of_a);
  world.release(of_b);
}

TEST(RelocatableHeap, MemoryThatAnotherStreamUsesIsNotReusedBeforeThat) {
  HeapWorld world;
  const Stream a = world.device->stream();
  const Stream b = world.device->stream();
  std::vector<Relocatable> handles = world.sparse(24, 6, 3 * kMiB, a);
  for (Relocatable& handle : handles) {
    const Event event = world.device->event_create();
    world.device->launch(b, 1'000'000, {{address(handle.data()), handle.bytes()}});
    handle.record_stream(b);
    world.device->event_record(event, b);
    world.device->stream_wait(a, event);
    world.device->event_destroy(event);
  }
  EXPECT_GT(world.heap.compact().blocks_moved, 0u);
  world.expect_numbered(handles);
  world.release(handles);
}

TEST(RelocatableHeap, MemoryOfACapturingStreamStays) {
  HeapWorld world;
  const Stream stream = world.device->stream();
  std::vector<Relocatable> handles = world.sparse(24, 6, 3 * kMiB, stream);
  const std::size_t reserved = world.reserved();
  world.device->begin_capture(stream);
  const CompactReport report = world.heap.compact();
  EXPECT_NO_THROW(world.device->end_capture(stream));
  EXPECT_EQ(report.blocks_moved, 0u);
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_GT(world.heap.compact().blocks_moved, 0u);
  world.release(handles);
}

TEST(RelocatableHeap, AHandleIsFreedOnceAndMovedAsOneLikes) {
  World world;
  auto heap = std::make_unique<RelocatableHeap>(world.allocator);
  Relocatable handle = heap->allocate(1000);
  EXPECT_EQ(handle.bytes(), 1000u);
  Relocatable moved = std::move(handle);
  EXPECT_FALSE(handle);  // NOLINT: what is moved from is empty
  EXPECT_EQ(handle.data(), nullptr);
  EXPECT_CONTAINS(refusal([&] { handle.release(); }), "release of a handle that is empty");
  EXPECT_CONTAINS(refusal([&] { static_cast<void>(handle.bytes()); }), "bytes of a handle that is empty");
  EXPECT_CONTAINS(refusal([&] { static_cast<void>(handle.stream()); }), "stream of a handle that is empty");
  EXPECT_CONTAINS(refusal([&] { Relocatable().record_stream(nullptr); }), "record_stream of a handle that is empty");
  moved = heap->allocate(2000);  // what it held is freed
  EXPECT_EQ(world.allocated(), 2048u);
  heap.reset();
  EXPECT_EQ(world.allocated(), 2048u);
  moved.release();
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(RelocatableHeap, BadInputIsRefused) {
  World world;
  EXPECT_CONTAINS(refusal([&] { RelocatableHeap(world.allocator, 3); }), "device 3 is not one of the 1 devices");
  EXPECT_CONTAINS(refusal([&] { RelocatableHeap(world.allocator, 3, host_kernels(world.device)); }), "device 3");
  RelocatableHeap heap(world.allocator);
  EXPECT_CONTAINS(refusal([&] { heap.allocate(0); }), "a relocatable allocation of 0 bytes");
  EXPECT_THROW(heap.allocate(std::size_t{1} << 59), OutOfMemory);
  EXPECT_EQ(heap.compact().blocks_moved, 0u);
}

// With the host twin, as users have it.
TEST(RelocatableHeap, TheHostTwinCopiesTheBytes) {
  World world;
  RelocatableHeap heap(world.allocator);
  std::vector<Relocatable> handles;
  for (int i = 0; i < 30; ++i) handles.push_back(heap.allocate(3 * kMiB));
  const Bytes content(3 * kMiB, 77);
  world.device->copy_from_host(address(handles[0].data()), content.data(), content.size());
  std::erase_if(handles, [i = 0](const Relocatable&) mutable { return i++ % 6 != 0; });
  const CompactReport report = heap.compact();
  EXPECT_EQ(report.blocks_moved, 4u);
  EXPECT_EQ(report.bytes_freed, 80 * kMiB);
  Bytes held(content.size());
  world.device->copy_to_host(held.data(), address(handles[0].data()), held.size());
  EXPECT_TRUE(held == content);
}

// Every device call that it makes fails once, each in its turn: the handles are whole, and the next call completes it.
TEST_P(EveryHeap, AfterAnyFailingCallEachHandleIsWholeAndTheBooksBalance) {
  std::uint64_t nth = 0;
  for (bool struck = true; struck;) {
    SCOPED_TRACE(++nth);
    HeapWorld world(GetParam());
    const Stream stream = world.device->stream();
    std::vector<Relocatable> first = world.sparse(24, 6, 3 * kMiB);
    std::vector<Relocatable> second = world.sparse(48, 8, 300 * kKiB, stream);
    world.device->set_faults({{.nth = nth, .out_of_memory = false, .code = 999}});
    try {
      world.heap.compact();
    } catch (const CudaError& error) {
      EXPECT_EQ(error.code(), 999);
    }
    struck = world.device->faults_injected() > 0;
    world.device->set_faults({});
    ASSERT_EQ(world.allocator.validate(), "");
    world.expect_numbered(first);
    world.expect_numbered(second);
    world.heap.compact();
    world.expect_numbered(first);
    world.expect_numbered(second);
    world.release(first);
    world.release(second);
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 0u);
  }
  EXPECT_GT(nth, 5u);
}

// Random work on several streams, beside other allocations; every use, and every move, is known to the checker.
TEST_P(EveryHeap, NoHazardAndNoLossInRandomPrograms) {
  const int operations = static_cast<int>(scaled(1500));
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    HeapWorld world(GetParam());
    const std::vector<Stream> streams = {nullptr, world.device->stream(), world.device->stream()};
    std::vector<std::pair<Relocatable, unsigned char>> live;
    std::vector<void*> others;
    for (int i = 0; i < operations; ++i) {
      const std::size_t dice = below(100);
      if (dice < 48 || live.empty()) {
        const std::size_t bytes = 1 + below(below(3) == 0 ? 6 * kMiB : 200 * kKiB);
        live.emplace_back(world.allocate(bytes, static_cast<unsigned char>(i), streams[below(3)]),
                          static_cast<unsigned char>(i));
      } else if (dice < 96) {
        std::swap(live[below(live.size())], live.back());
        world.expect_content(live.back().first, live.back().second);
        world.release(live.back().first);
        live.pop_back();
      } else if (dice < 98) {
        others.push_back(world.World::allocate(1 + below(2 * kMiB), streams[below(3)]));
        if (others.size() > 3) world.allocator.deallocate(std::exchange(others[below(3)], others.back()));
        if (others.size() > 3) others.pop_back();
      } else {
        world.heap.compact();
        ASSERT_EQ(world.allocator.validate(), "");
      }
    }
    for (auto& [handle, value] : live) {
      world.expect_content(handle, value);
      world.release(handle);
    }
    for (void* other : others) world.allocator.deallocate(other);
  }
}

}  // namespace
}  // namespace cachalot
