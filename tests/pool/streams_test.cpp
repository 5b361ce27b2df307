// TensorPool and streams: what waits for what, on the GPU, and what a capture may get.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "tests/pool/testing.h"

namespace cachalot {
namespace {

TEST(PoolStreams, AnotherStreamWaitsForTheLastOneOnTheGpu) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(a);
  world.use(tensor);
  world.release_checked(tensor);
  tensor = world.acquire_checked(b);  // throws where it may still be used
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
  EXPECT_EQ(world.count(DeviceCall::event_record), 1u);
  EXPECT_EQ(world.count(DeviceCall::stream_wait), 1u);
  EXPECT_EQ(world.count(DeviceCall::synchronize) + world.count(DeviceCall::event_synchronize), 0u);
  world.release_checked(tensor);
}

TEST(PoolStreams, ATensorIsSharedBehindTheWorkOfItsStream) {
  constexpr std::int64_t kWork = 1'000'000'000;  // ns
  PoolWorld world;
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(a);
  world.device->launch(a, kWork);
  tensor.share_with(b);
  EXPECT_GT(world.device->stream_ready_ns(b) - world.device->clock_ns(), kWork / 2);
  world.use(tensor, b);
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
  world.release_checked(tensor);
}

// The checker is itself checked: without the wait it finds the hazard.
TEST(PoolStreams, AWaitThatIsMissingIsFound) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(a);
  world.use(tensor);
  world.use(tensor, world.device->new_stream());  // without a notification
  world.release_checked(tensor);
  tensor = world.pool.acquire(a);
  EXPECT_THROW(world.check(tensor), HazardError);
}

TEST(PoolStreams, TheSameStreamWaitsForNothing) {
  PoolWorld world;
  const Stream a = world.device->new_stream();
  for (int i = 0; i < 10; ++i) {
    PooledTensor tensor = world.acquire_checked(a);
    world.use(tensor);
    world.release_checked(tensor);
  }
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
  EXPECT_EQ(world.count(DeviceCall::capture_status), 0u);
}

TEST(PoolStreams, AStreamGetsWhatItUsedItselfIfThereIsSuch) {
  PoolWorld world;
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  PooledTensor of_a = world.pool.acquire(a);
  PooledTensor of_b = world.pool.acquire(b);
  void* const a_data = of_a.data();
  void* const b_data = of_b.data();
  of_a.release();
  of_b.release();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(world.pool.acquire(a).data(), a_data);
    EXPECT_EQ(world.pool.acquire(b).data(), b_data);
  }
  EXPECT_EQ(world.pool.stats().stream_waits, 0u);
}

TEST(PoolStreams, AnotherSlotIsTakenInsteadOfAWaitWhereThatIsAskedFor) {
  PoolWorld world({.max_slots = 2, .other_stream = OtherStream::other_slot});
  world.pool.acquire(world.device->new_stream());
  world.pool.acquire(world.device->new_stream());
  EXPECT_EQ(world.pool.stats().slots, 2u);
  EXPECT_EQ(world.pool.stats().stream_waits, 0u);
  world.pool.acquire(world.device->new_stream());  // no third slot
  EXPECT_EQ(world.pool.stats().slots, 2u);
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
}

TEST(PoolStreams, WhereThereIsNoMemoryForAnotherSlotItWaitsAfterAll) {
  World world(32 * kMiB);
  TensorPool pool(world.allocator, {{24 << 20}, DType::int8}, {.other_stream = OtherStream::other_slot});
  pool.acquire(world.device->new_stream());
  EXPECT_TRUE(pool.acquire(world.device->new_stream()));
  EXPECT_EQ(pool.stats().stream_waits, 1u);
  const PooledTensor held = pool.acquire();
  EXPECT_THROW(pool.acquire(), OutOfMemory);
  EXPECT_THROW(pool.try_acquire(), OutOfMemory);  // the pool may grow, so it is not merely empty
}

TEST(PoolStreams, RecordedStreamsAreWaitedForToo) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  const Stream c = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(a);
  for (const Stream other : {b, c, b, a}) {
    world.use(tensor, other);
    tensor.record_stream(other);
  }
  world.release_checked(tensor);
  tensor = world.acquire_checked(b);
  EXPECT_EQ(world.pool.stats().stream_waits, 2u);  // for a and c
  world.release_checked(tensor);
  tensor = world.acquire_checked(b);
  EXPECT_EQ(world.pool.stats().stream_waits, 2u);  // and that was all
  world.release_checked(tensor);
  tensor = world.acquire_checked(c);
  EXPECT_EQ(world.pool.stats().stream_waits, 3u);  // for b: a and c used the slot's former tensor
  world.release_checked(tensor);
}

TEST(PoolStreams, ACaptureOfAStreamThatUsedAFormerTensorDoesNotRefuseTheSlot) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  const Stream c = world.device->new_stream();
  PooledTensor tensor = world.pool.acquire(a);
  tensor.record_stream(b);
  tensor.release();
  world.pool.acquire(a).release();  // comes after b's work
  world.device->begin_capture(b);
  EXPECT_TRUE(world.pool.try_acquire(c));
  EXPECT_NO_THROW(world.device->end_capture(b));
}

TEST(PoolStreams, AWaitThatWasQueuedBeforeAFailureIsCounted) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(a);
  world.use(tensor);
  tensor.record_stream(world.device->new_stream());
  world.release_checked(tensor);
  world.device->set_faults({{.call = DeviceCall::stream_wait, .nth = 2, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(world.pool.acquire(world.device->new_stream()), CudaError);
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
  world.device->set_faults({});
  EXPECT_EQ(world.pool.validate(), "");
  EXPECT_TRUE(world.pool.acquire(a));
}

TEST(PoolStreams, WhatIsTrimmedIsNotUsedTooEarlyByTheAllocatorsOthers) {
  PoolWorld world({.stream = nullptr});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  for (const auto& [first, last] : {std::pair{a, b}, std::pair{a, Stream{nullptr}}, std::pair{Stream{nullptr}, b}}) {
    PooledTensor tensor = world.acquire_checked(first);
    world.use(tensor);
    world.release_checked(tensor);
    tensor = world.acquire_checked(last);
    world.use(tensor);
    world.release_checked(tensor);
    EXPECT_EQ(world.pool.trim(), kBytes);
    void* const others = world.allocate(kBytes, first);
    world.device->handed_out(address(others), kBytes, first);
    world.device->given_back(address(others));
    world.allocator.deallocate(others);
    world.device->synchronize();
    world.allocator.empty_cache();
  }
}

TEST(PoolStreams, ACapturingStreamGetsItsOwnSlotsOrNewMemory) {
  PoolWorld world({.max_slots = 2});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  void* const of_a = world.pool.acquire(a).data();
  world.device->begin_capture(b);
  PooledTensor captured = world.pool.acquire(b);
  EXPECT_NE(captured.data(), of_a);
  EXPECT_EQ(world.pool.stats().stream_waits, 0u);
  EXPECT_FALSE(world.pool.try_acquire(b));  // there is only a's, and an event of it would not be the graph's
  void* const of_b = captured.data();
  captured.release();
  EXPECT_EQ(world.pool.acquire(b).data(), of_b);
  EXPECT_EQ(world.pool.acquire(a).data(), of_a);
  EXPECT_NO_THROW(world.device->end_capture(b));
}

TEST(PoolStreams, SlotsOfACapturingStreamAreNobodyElses) {
  PoolWorld world({.max_slots = 1});
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  world.device->begin_capture(a);
  void* const data = world.pool.acquire(a).data();
  EXPECT_FALSE(world.pool.try_acquire(b));
  EXPECT_EQ(world.pool.validate(), "");
  EXPECT_NO_THROW(world.device->end_capture(a));
  EXPECT_EQ(world.pool.acquire(b).data(), data);
}

TEST(PoolStreams, AStreamThatEndsIsWaitedForByItsLastEvent) {
  PoolWorld world({.max_slots = 1});
  const Stream ending = world.device->new_stream();
  const Stream other = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(ending);
  world.use(tensor);
  world.release_checked(tensor);
  world.pool.stream_ends(ending);
  world.allocator.stream_ends(ending);
  world.device->stream_destroy(ending);
  tensor = world.acquire_checked(other);
  EXPECT_EQ(world.count(DeviceCall::stream_wait), 1u);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  world.release_checked(tensor);
  world.pool.trim();
  EXPECT_EQ(world.device->dead_stream_calls(), 0u);
}

// The allocator knows streams by their handles, and so cannot be told of one that has ended.
TEST(PoolStreams, TrimmingWaitsForTheWorkOfStreamsThatHaveEnded) {
  for (const bool is_declared : {true, false}) {
    PoolWorld world;
    const Stream lives = world.device->new_stream();
    const Stream ending = world.device->new_stream();
    PooledTensor tensor = world.acquire_checked(lives);
    world.release_checked(tensor);
    tensor = world.acquire_checked(ending);
    world.use(tensor);
    world.release_checked(tensor);
    if (is_declared) {
      world.pool.stream_ends(ending);
      world.allocator.stream_ends(ending);
    }
    world.device->stream_destroy(ending);
    EXPECT_EQ(world.pool.trim(), kBytes);
    EXPECT_EQ(world.count(DeviceCall::event_synchronize), is_declared ? 1u : 0u);
    EXPECT_EQ(world.count(DeviceCall::synchronize), is_declared ? 0u : 1u);
    void* const next = world.allocate(kBytes, lives);
    world.device->handed_out(address(next), kBytes, lives);  // throws where the ended stream's work may still use it
    world.device->given_back(address(next));
    world.allocator.deallocate(next);
    EXPECT_LE(world.device->dead_stream_calls(), is_declared ? 0u : 1u);
  }
}

TEST(PoolStreams, AHandleThatIsGivenAgainIsAnotherStream) {
  PoolWorld world({.max_slots = 1});
  const Stream first = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(first);
  world.use(tensor);
  world.release_checked(tensor);
  world.device->stream_destroy(first);
  ASSERT_EQ(world.device->new_stream(), first);
  tensor = world.acquire_checked(first);  // or the checker throws
  world.release_checked(tensor);
}

TEST(PoolStreams, AThousandThatEndedLeaveNothing) {
  PoolWorld world;
  const auto live = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const Stream ending = world.device->new_stream();
      PooledTensor tensor = world.acquire_checked(ending);
      world.use(tensor);
      world.release_checked(tensor);
      world.pool.stream_ends(ending);
      world.allocator.stream_ends(ending);
      world.device->stream_destroy(ending);
      world.pass(2000);
    }
  };
  live(100);
  const std::size_t bytes = world.pool.metadata_bytes();
  const std::uint64_t events = world.count(DeviceCall::event_create) - world.count(DeviceCall::event_destroy);
  live(1000);
  EXPECT_LE(world.pool.metadata_bytes(), bytes);
  EXPECT_LE(world.count(DeviceCall::event_create) - world.count(DeviceCall::event_destroy), events + 2);
  EXPECT_EQ(world.device->dead_stream_calls(), 0u);
}

TEST(PoolStreams, AStreamThatCapturesCannotEnd) {
  PoolWorld world;
  const Stream capturing = world.device->new_stream();
  world.pool.acquire(capturing).release();
  world.device->begin_capture(capturing);
  EXPECT_CONTAINS(refusal([&] { world.pool.stream_ends(capturing); }), "cannot end while it captures a graph");
  world.device->end_capture(capturing);
}

// Random work on several streams, of which every use is known to the checker.
TEST(PoolStreams, NoHazardInRandomPrograms) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    PoolWorld world({.max_slots = 12,
                     .growth_step = 1 + below(4),
                     .other_stream = below(2) == 0 ? OtherStream::wait : OtherStream::other_slot,
                     .on_reuse = below(2) == 0 ? OnReuse::keep : OnReuse::zero});
    std::vector<Stream> streams = {nullptr, world.device->new_stream(), world.device->new_stream(),
                                   world.device->new_stream()};
    std::vector<PooledTensor> live;
    for (int i = 0; i < 400; ++i) {
      if (live.size() < 12 && below(2) == 0) {
        live.push_back(world.acquire_checked(streams[below(streams.size())]));
        world.use(live.back());
      } else if (!live.empty()) {
        const std::size_t which = below(live.size());
        if (below(4) == 0) {
          const Stream other = streams[below(streams.size())];
          // Only behind what its own stream has done so far, as a program would order it.
          const Event event = world.device->event_create();
          world.device->event_record(event, live[which].stream());
          world.device->stream_wait(other, event);
          world.device->event_destroy(event);
          world.use(live[which], other);
          live[which].record_stream(other);
        }
        world.release_checked(live[which]);
        std::swap(live[which], live.back());
        live.pop_back();
      }
      if (below(50) == 0) world.pool.trim(below(6));
      ASSERT_EQ(world.pool.validate(), "");
    }
    for (PooledTensor& tensor : live) world.release_checked(tensor);
  }
}

}  // namespace
}  // namespace cachalot
