// Streams that come and go: a driver gives their handles again at once, and does not say what it does with dead ones.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachalot/errors.h"
#include "tests/allocator/forwarding_device.h"
#include "tests/pages/testing.h"
#include "tests/sanitizers.h"

namespace cachalot {
namespace {

constexpr std::int64_t kLongWork = 10'000'000;  // µs
constexpr std::size_t kSizes[] = {512, 64 * kMiB};

struct Life;

// Over each heap, with and without caches of the threads. When it ends, nothing has used a dead stream.
class StreamLifetimes : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override { EXPECT_EQ(world.device->dead_stream_calls(), 0u); }
  Stream stream() { return world.device->new_stream(); }
  void live(std::size_t count, const Life* life);
  void destroy(Stream stream) { world.device->stream_destroy(stream); }
  bool is_paged() const { return std::string(GetParam()).find("pages") != std::string::npos; }

  World world{checked(), GetParam()};
  Program program{world};
};

TEST_P(StreamLifetimes, AHandleThatIsGivenAgainIsAnotherStream) {
  for (const std::size_t bytes : kSizes) {
    const Stream first = stream();
    void* const before = program.allocate(bytes, first, kLongWork);
    program.free(before);
    destroy(first);
    const Stream second = stream();
    ASSERT_EQ(first, second);
    void* const after = program.allocate(bytes, second);  // or the checker of hazards throws
    EXPECT_NE(after, before);
    program.free(after);
    destroy(second);
    world.pass(kLongWork);
  }
}

TEST_P(StreamLifetimes, ABlockMayBeFreedAfterItsStreamWasDestroyed) {
  for (const std::size_t bytes : kSizes) {
    const Stream first = stream();
    void* const before = program.allocate(bytes, first, kLongWork);
    destroy(first);
    const Stream second = stream();
    program.free(program.allocate(bytes, second));
    program.free(before);
    void* const after = program.allocate(bytes, second);
    EXPECT_NE(after, before);
    program.free(after);
    destroy(second);
    world.pass(kLongWork);
  }
}

// Frees that wait are for the work of the stream that was recorded, not for that of the next one with its handle.
TEST_P(StreamLifetimes, AnEventIsNotRecordedOnTheNextStreamWithTheHandle) {
  const Stream own = stream();
  const Stream other = stream();
  void* const block = program.allocate(8 * kMiB, own);
  world.allocator.record_stream(block, other);
  world.device->launch(other, kLongWork * 1000, {{address(block), 8 * kMiB}});
  destroy(other);
  ASSERT_EQ(stream(), other);
  program.free(block);
  program.free(program.allocate(8 * kMiB, own));
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
}

TEST_P(StreamLifetimes, NothingIsAskedOfAStreamThatWasDestroyed) {
  const Stream gone = stream();
  const Stream other = stream();
  program.free(program.allocate(64 * kMiB, gone));
  destroy(gone);
  std::vector<void*> blocks;
  for (std::size_t i = 1; i < 4; ++i) blocks.push_back(program.allocate(i * 100 * kMiB, other));
  for (void* block : blocks) program.free(block);
}

// The stream is like PyTorch's ExternalStream: the option says that streams stay, and yet one is destroyed.
TEST(AnImmortalStreamThatIsDestroyed, CostsItsOwnIdleMemoryAtMost) {
  for (const char* heap : {"heap:segments,immortal_streams:True", "heap:pages,immortal_streams:True",
                           "heap:pages,immortal_streams:True,cross_stream:wait"}) {
    SCOPED_TRACE(heap);
    World world(checked(), heap);
    Program program{world};
    const Stream gone = world.device->new_stream();
    const Stream other = world.device->new_stream();
    program.free(program.allocate(64 * kMiB, gone));
    world.device->stream_destroy(gone);
    std::vector<void*> blocks;
    for (std::size_t i = 1; i <= 40; ++i) blocks.push_back(program.allocate(i * 4 * kMiB, other));
    for (void* block : blocks) program.free(block);
    EXPECT_NO_THROW(world.allocator.deallocate(world.allocator.allocate(500 * kMiB, 0, gone)));
    EXPECT_EQ(world.allocator.validate(), "");
    world.allocator.empty_cache();
    EXPECT_EQ(world.device->used_bytes(), 0u);
  }
}

TEST_P(StreamLifetimes, RequestsOfOthersRecordNothingOnTheLegacyDefaultStream) {
  program.free(program.allocate(64 * kMiB, nullptr));
  const Stream other = stream();
  world.device->launch(nullptr, kLongWork * 1000);
  world.device->take_log();
  std::vector<void*> blocks;
  for (std::size_t i = 1; i < 4; ++i) blocks.push_back(program.allocate(i * 100 * kMiB, other));
  for (const LoggedCall& call : world.device->take_log()) EXPECT_NE(call.call, DeviceCall::event_synchronize);
  EXPECT_LE(world.count(DeviceCall::event_record), is_paged() ? 3u : 0u) << "on its own stream";
  EXPECT_EQ(world.device->stream_ready_ns(other), 0);
  for (void* block : blocks) program.free(block);
}

TEST_P(StreamLifetimes, TheMemoryOfAStreamThatEndsServesOthersWhenItsWorkIsDone) {
  const Stream ending = stream();
  const Stream other = stream();
  void* const block = program.allocate(64 * kMiB, ending, 500);
  void* const late = program.allocate(32 * kMiB, ending, 500);
  program.free(block);
  world.allocator.stream_ends(ending);
  destroy(ending);
  program.free(late);
  const std::size_t reserved = world.reserved();
  world.pass(1000);
  void* const again = program.allocate(64 * kMiB, other);
  void* const late_again = program.allocate(32 * kMiB, other);
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  program.free(again);
  program.free(late_again);
}

TEST_P(StreamLifetimes, TheMemoryOfAStreamThatEndsDoesNotServeOthersBeforeItsWorkIsDone) {
  const Stream ending = stream();
  program.free(program.allocate(64 * kMiB, ending, kLongWork));
  world.allocator.stream_ends(ending);
  destroy(ending);
  for (int i = 0; i < 3; ++i) program.free(program.allocate(64 * kMiB, stream()));  // or the checker throws
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
}

TEST_P(StreamLifetimes, SmallBlocksOfAStreamThatEndsLeaveTheCaches) {
  const Stream ending = stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(program.allocate(4096, ending));
  void* const kept = program.allocate(4096, ending);
  for (void* block : blocks) program.free(block);
  std::thread([&] {
    for (int i = 0; i < 3; ++i) program.free(program.allocate(4096, ending));
  }).join();
  world.allocator.stream_ends(ending);
  EXPECT_EQ(world.allocator.validate(), "");
  destroy(ending);
  const Stream next = stream();
  for (void*& block : blocks) block = program.allocate(4096, next);
  program.free(kept);
  for (void* block : blocks) program.free(block);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST_P(StreamLifetimes, AFreeWaitsForARecordedStreamThatHasEnded) {
  const Stream own = stream();
  const Stream ending = stream();
  void* const block = program.allocate(8 * kMiB, own);
  world.allocator.record_stream(block, ending);
  world.device->launch(ending, 500'000, {{address(block), 8 * kMiB}});
  world.allocator.stream_ends(ending);
  destroy(ending);
  program.free(block);
  void* const other = program.allocate(8 * kMiB, own);
  EXPECT_NE(other, block);
  world.pass(1000);
  EXPECT_EQ(program.allocate(8 * kMiB, own), block);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  program.free(other);
  program.free(block);
}

TEST(AStreamThatEnds, LeavesNoEventBehind) {
  for (const char* options : {"heap:segments", "heap:pages", "heap:segments,guard:True"}) {
    SCOPED_TRACE(options);
    const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
    {
      CachingAllocator allocator({device}, parse_guarded(options), guard_if_built());
      const Stream ending = device->new_stream();
      void* const own = allocator.allocate(kMiB, 0, ending);
      void* const recorded = allocator.allocate(kMiB);
      allocator.record_stream(recorded, ending);
      allocator.stream_ends(ending);
      device->stream_destroy(ending);
      allocator.deallocate(own);  // the other lives until the end
    }
    EXPECT_EQ(device->count(DeviceCall::event_create), device->count(DeviceCall::event_destroy));
    EXPECT_EQ(device->dead_stream_calls(), 0u);
  }
}

TEST_P(StreamLifetimes, AStreamMayEndTwiceAndWithoutEverBeingUsed) {
  const Stream ending = stream();
  world.allocator.stream_ends(ending);
  void* const block = program.allocate(8 * kMiB, ending);
  world.allocator.stream_ends(ending);
  world.allocator.stream_ends(ending);
  world.allocator.stream_ends(nullptr);
  program.free(block);
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST_P(StreamLifetimes, AStreamThatCapturesCannotEnd) {
  const Stream capturing = stream();
  program.free(program.allocate(8 * kMiB, capturing));
  world.device->begin_capture(capturing);
  EXPECT_CONTAINS(refusal([&] { world.allocator.stream_ends(capturing); }), "cannot end while it captures a graph");
  world.device->end_capture(capturing);
  world.allocator.stream_ends(capturing);
}

// Streams of requests: one at a time, all of them at once, ended with a notice or not. They leave memory at most.
struct Life {
  const char* name;
  bool at_once;  // all live at the same time; otherwise one after the other
  bool says_so;  // they end by stream_ends
};
constexpr Life kLives[] = {
    {"one at a time, destroyed", false, false},
    {"one at a time, ended", false, true},
    {"at once, destroyed", true, false},
    {"at once, ended", true, true},
};

// Each of `count` streams uses some memory; or the default stream does all of it. Nothing is left in the cache.
void StreamLifetimes::live(std::size_t count, const Life* life) {
  std::vector<Stream> streams;
  const auto end = [&] {
    for (const Stream each : streams) {
      if (life->says_so) world.allocator.stream_ends(each);
      destroy(each);
    }
    streams.clear();
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (life != nullptr) streams.push_back(stream());
    const Stream own = life != nullptr ? streams.back() : nullptr;
    void* const small = program.allocate(4096, own);
    void* const large = program.allocate(30 * kMiB, own);
    program.free(small);
    program.free(large);
    if (life != nullptr && !life->at_once) end();
  }
  end();
  world.allocator.empty_cache();
}

constexpr std::size_t kManyStreams = kSanitized ? 200 : 1000;  // the time grows with the square

// Streams of requests come and go. They leave memory at most, and none here.
TEST_P(StreamLifetimes, AThousandLeaveNoCostInASlowMallocAndSixtyFourBytesEachAtMost) {
  const auto growth = [&](const Life* life) {
    live(1, life);
    const std::size_t before = world.allocator.metadata_bytes();
    live(kManyStreams, life);
    live(1, life);  // a thread's part of ended caches goes when it next needs a cache
    return world.allocator.metadata_bytes() - before;
  };
  for (const Life& life : kLives) {
    SCOPED_TRACE(life.name);
    live(kManyStreams * 3 / 2, &life);                 // tables of blocks keep the size that the most blocks needed
    const std::size_t of_addresses = growth(nullptr);  // the map of addresses, which never come again here
    EXPECT_LE(growth(&life), of_addresses + kManyStreams * 64);
    const std::uint64_t records = world.count(DeviceCall::event_record);
    const std::uint64_t queries = world.count(DeviceCall::event_query);
    const Stream own = stream();
    program.free(program.allocate(20 * kMiB, own));
    program.free(program.allocate(40 * kMiB, own));
    EXPECT_LE(world.count(DeviceCall::event_record) - records, 2u);
    EXPECT_LE(world.count(DeviceCall::event_query) - queries, 2u);
    EXPECT_EQ(world.allocator.validate(), "");
  }
}

TEST_P(StreamLifetimes, AnotherThreadsFreeGoesToTheStreamThatAllocatedIt) {
  const Stream first = stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(program.allocate(2048, first, kLongWork));
  std::thread warm([&] {
    program.free(blocks.back());  // this thread's cache is of the first stream now
    blocks.pop_back();
    destroy(first);
    const Stream second = stream();
    std::vector<void*> theirs;
    for (int i = 0; i < 50; ++i) theirs.push_back(program.allocate(2048, second));  // or the checker throws
    for (void* block : blocks) program.free(block);
    for (int i = 0; i < 50; ++i) theirs.push_back(program.allocate(2048, second));
    for (void* block : theirs) program.free(block);
  });
  warm.join();
  EXPECT_EQ(world.allocator.validate(), "");
  world.pass(kLongWork);
}

INSTANTIATE_TEST_SUITE_P(Heaps, StreamLifetimes,
                         testing::Values("heap:segments", "heap:segments,thread_cache:True", "heap:pages",
                                         "heap:pages,thread_cache:False"),
                         [](const auto& heap) {
                           const std::string options = heap.param;
                           std::string name = options.find("pages") != std::string::npos ? "pages" : "segments";
                           if (options.find("True") != std::string::npos) name += "_with_caches";
                           if (options.find("False") != std::string::npos) name += "_without_caches";
                           return name;
                         });

// A program may capture a graph in which it allocates nothing, and has no reason to announce it.
TEST(ACaptureThatNobodyAnnounced, IsNotSpoiltByTheGrowthOfOthers) {
  for (const char* options : {"heap:pages", "heap:pages,immortal_streams:True"}) {
    World world(64 * kGiB, options);
    const Stream capturing = world.device->new_stream();
    const Stream other = world.device->new_stream();
    world.allocator.deallocate(world.allocate(64 * kMiB, capturing));
    world.allocator.deallocate(world.allocate(32 * kMiB, other));
    world.device->begin_capture(capturing);
    world.allocator.deallocate(world.allocate(256 * kMiB, other));
    world.allocator.deallocate(world.allocate(512 * kMiB, capturing));
    world.allocator.deallocate(world.allocate(1 * kGiB, other));
    EXPECT_FALSE(world.device->is_capture_spoilt(capturing)) << options;
    world.device->end_capture(capturing);
  }
}

// --- bad input ----------------------------------------------------------------------------------------------------------

TEST(ADestroyedStream, IsRefusedAndNothingHasChanged) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    World world(64 * kGiB, options);
    const Stream gone = world.device->new_stream();
    void* const block = world.allocate(4096);
    world.device->stream_destroy(gone);
    for (const std::size_t bytes : kSizes)
      EXPECT_CONTAINS(refusal([&] { world.allocate(bytes, gone); }), "is not a stream of this process");
    EXPECT_CONTAINS(refusal([&] { world.allocator.record_stream(block, gone); }), "is not a stream of this process");
    EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(block, 4096, 0, gone); }),
                    "is not a stream of this process");
    EXPECT_CONTAINS(refusal([&] { world.allocator.stream_ends(gone); }), "is not a stream of this process");
    EXPECT_EQ(world.allocated(), 4096u);
    world.allocator.deallocate(block);
  }
}

TEST(ImmortalStreams, AreKnownByTheirHandles) {
  World world(64 * kGiB, "heap:segments,immortal_streams:True");
  const Stream stream = world.device->new_stream();
  void* const block = world.allocate(4096, stream);
  world.allocator.deallocate(block);
  world.allocator.stream_ends(stream);
  EXPECT_EQ(world.allocate(4096, stream), block);
  world.allocator.deallocate(block);
}

// --- cudaStreamPerThread ------------------------------------------------------------------------------------------------

const Stream kPerThread = reinterpret_cast<Stream>(2);

struct Nothing {
  explicit Nothing(const Device&) {}
};

// A device that has such a stream in each thread: it goes by this name only in its own.
class WithStreamsOfThreads final : public ForwardingDevice<WithStreamsOfThreads, Nothing> {
 public:
  explicit WithStreamsOfThreads(std::shared_ptr<SimulatedDevice> device)
      : ForwardingDevice(device), simulated_(std::move(device)) {}

  Stream own(Stream stream) {
    if (stream != kPerThread) return stream;
    static thread_local std::map<std::weak_ptr<SimulatedDevice>, Stream, std::owner_less<>> of_this_thread;
    const auto [at, is_new] = of_this_thread.try_emplace(simulated_);
    if (is_new) at->second = simulated_->new_stream();
    return at->second;
  }
  std::uint64_t stream_id(Stream stream) override { return simulated_->stream_id(own(stream)); }
  void event_record(Event event, Stream stream) override { simulated_->event_record(event, own(stream)); }
  void stream_wait(Stream stream, Event event) override { simulated_->stream_wait(own(stream), event); }
  CaptureStatus capture_status(Stream stream) override { return simulated_->capture_status(own(stream)); }

 private:
  std::shared_ptr<SimulatedDevice> simulated_;
};

TEST(CudaStreamPerThread, IsAStreamOfItsOwnInEachThread) {
  for (const char* options : {"heap:segments", "heap:pages", "heap:pages,immortal_streams:True"}) {
    SCOPED_TRACE(options);
    const auto simulated = std::make_shared<SimulatedDevice>(checked());
    const auto device = std::make_shared<WithStreamsOfThreads>(simulated);
    CachingAllocator allocator({device}, parse_options(options));
    for (const std::size_t bytes : kSizes) {
      void* const mine = allocator.allocate(bytes, 0, kPerThread);
      simulated->launch(device->own(kPerThread), kLongWork * 1000, {{address(mine), bytes}});
      allocator.deallocate(mine);
      EXPECT_EQ(allocator.allocate(bytes, 0, kPerThread), mine);
      allocator.deallocate(mine);
      std::thread([&] {
        void* const theirs = allocator.allocate(bytes, 0, kPerThread);
        EXPECT_NE(theirs, mine);
        allocator.deallocate(theirs);
        allocator.stream_ends(kPerThread);
      }).join();
    }
    EXPECT_EQ(allocator.validate(), "");
  }
}

TEST(CudaStreamPerThread, IsNotTakenForTheFreeingThreadsOwn) {
  const auto simulated = std::make_shared<SimulatedDevice>(checked());
  const auto device = std::make_shared<WithStreamsOfThreads>(simulated);
  CachingAllocator allocator({device}, {});
  void* const block = allocator.allocate(8 * kMiB);
  allocator.record_stream(block, kPerThread);
  const Stream mine = device->own(kPerThread);
  simulated->launch(mine, kLongWork * 1000, {{address(block), 8 * kMiB}});
  std::thread([&] { allocator.deallocate(block); }).join();
  EXPECT_TRUE(simulated->stream_query(mine)) << "its thread alone can record an event on it: the free has waited";
}

}  // namespace
}  // namespace cachalot
