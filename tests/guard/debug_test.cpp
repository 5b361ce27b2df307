// debug:True: mistakes of callers are reported, with the known facts of the block and with stacks.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <latch>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "diagnostics/guard_books.h"
#include "tests/guard/testing.h"

// Places that stacks must name. Outside of the library's namespace, whose frames are left out at the inner end.
using Allocator = cachalot::CachingAllocator*;
[[gnu::noinline]] void* place_of_allocation(void* allocator) {
  void* volatile block = static_cast<Allocator>(allocator)->allocate(1000);
  return block;
}
[[gnu::noinline]] void place_of_free(void* allocator, void* block) {
  static_cast<Allocator>(allocator)->deallocate(block);
  asm volatile("");  // no tail call
}

namespace cachalot {
namespace {

using Kind = GuardReport::Kind;

struct DebugWorld : GuardedWorld {
  explicit DebugWorld(std::string_view options = "heap:segments")
      : GuardedWorld("debug:True," + std::string(options)) {}
};

// With the guard's canaries, with the quarantine too small for anything, and without a guard; on both heaps.
class Debug : public testing::TestWithParam<std::string> {
 protected:
  explicit Debug() : world_("debug:True," + GetParam(), 0) {}

  struct PlainWorld : World {
    PlainWorld(std::string_view options, int) : World(64 * kGiB, options) {
      AllocatorGuard(allocator).set_handler([this](const GuardReport& report) { heard.push_back(report); });
    }
    ~PlainWorld() { EXPECT_TRUE(heard.empty()) << to_string(heard.front()); }
    std::vector<GuardReport> heard;
  };

  // Returns the one report of the refused action.
  GuardReport reported(const std::function<void()>& action) {
    message_ = refusal(action);
    EXPECT_EQ(world_.heard.size(), 1u);
    if (world_.heard.empty()) return {};
    EXPECT_EQ(world_.allocator.validate(), "");
    const GuardReport report = world_.heard.back();
    world_.heard.clear();
    EXPECT_TRUE(is_mistake(report.kind));
    EXPECT_TRUE(report.mistake.has_value());
    const bool says_more = report.kind == Kind::released_pool;
    EXPECT_TRUE(says_more ? report.message.starts_with(message_) : message_.starts_with(report.message)) << message_;
    return report;
  }

  PlainWorld world_;
  CachingAllocator& allocator_ = world_.allocator;
  std::string message_;
};

INSTANTIATE_TEST_SUITE_P(Heaps, Debug,
                         testing::Values("heap:segments", "heap:pages", "heap:segments,guard:False",
                                         "heap:pages,guard:False", "heap:segments,thread_cache:True,guard:False"));

// ---- Frees ---------------------------------------------------------------------------------------------------------

TEST_P(Debug, NothingIsReportedOfWhatIsRight) {
  const Stream other = world_.device->new_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{512}, 70'000 * std::size_t{1}, 3 * kMiB}) {
    void* const block = world_.allocate(bytes);
    EXPECT_EQ(allocator_.requested_size(block), bytes);
    allocator_.record_stream(block, other);
    allocator_.deallocate(block);
    allocator_.deallocate(world_.allocate(bytes), bytes, 0, other);
  }
  EXPECT_TRUE(AllocatorGuard(allocator_).check().empty());
  allocator_.empty_cache();
  EXPECT_EQ(allocator_.memory_reserved(), 0u);
}

TEST_P(Debug, ADoubleFreeNamesTheAllocationAndTheFirstFree) {
  void* const block = place_of_allocation(&allocator_);
  place_of_free(&allocator_, block);
  const GuardReport report = reported([&] { place_of_free(&allocator_, block); });
  EXPECT_EQ(report.kind, Kind::double_free);
  EXPECT_EQ(report.address, address(block));
  EXPECT_EQ(report.offset, 0);
  EXPECT_EQ(report.device, 0);
  EXPECT_EQ(report.requested_bytes, 1000u);
  ASSERT_TRUE(report.allocated && report.freed);
  EXPECT_EQ(report.allocated->number, 1u);
  EXPECT_EQ(report.freed->number, 2u);
  EXPECT_EQ(report.mistake->number, 2u);
  EXPECT_EQ(report.mistake->thread, static_cast<std::uint64_t>(::gettid()));
  EXPECT_CONTAINS(message_, "the block of 1000 bytes at");
  EXPECT_CONTAINS(message_, "which was already freed (allocated as call 1 by thread");
  EXPECT_CONTAINS(to_string(report.allocated->stack), "place_of_allocation");
  EXPECT_CONTAINS(to_string(report.freed->stack), "place_of_free");
  EXPECT_CONTAINS(to_string(report.mistake->stack), "place_of_free");
}

TEST_P(Debug, ADoubleFreeIsKnownLongAfterTheFirst) {
  std::vector<void*> others;
  for (int i = 0; i < 1000; ++i) others.push_back(world_.allocate(1000));
  void* const block = world_.allocate(5 * kMiB);
  allocator_.deallocate(block);
  for (void* other : others) allocator_.deallocate(other);
  allocator_.empty_cache();  // not even the memory is there any more
  const GuardReport report = reported([&] { allocator_.deallocate(block, 5 * kMiB, 0, nullptr); });
  EXPECT_EQ(report.kind, Kind::double_free);
  EXPECT_EQ(report.requested_bytes, 5 * kMiB);
  EXPECT_EQ(report.freed->number, 1002u);
}

TEST_P(Debug, AFreeInsideABlockSaysHowFarBehindItsBeginning) {
  auto* const block = static_cast<char*>(world_.allocate(4096));
  const GuardReport live = reported([&] { allocator_.deallocate(block + 1024); });
  EXPECT_EQ(live.kind, Kind::invalid_free);
  EXPECT_EQ(live.address, address(block));
  EXPECT_EQ(live.offset, 1024);
  EXPECT_FALSE(live.freed.has_value());
  EXPECT_CONTAINS(message_, "it lies inside the allocation of 4096 bytes at");
  EXPECT_CONTAINS(message_, "1024 bytes behind its beginning");
  allocator_.deallocate(block);
  const GuardReport freed = reported([&] { allocator_.deallocate(block + 1024); });
  EXPECT_EQ(freed.kind, Kind::invalid_free);
  EXPECT_EQ(freed.offset, 1024);
  EXPECT_TRUE(freed.freed.has_value());
  EXPECT_CONTAINS(message_, "1024 bytes behind its beginning, which was already freed");
}

TEST_P(Debug, AFreeOfWhatWasNeverOursSaysSo) {
  int host = 0;
  const GuardReport report = reported([&] { allocator_.deallocate(&host); });
  EXPECT_EQ(report.kind, Kind::invalid_free);
  EXPECT_EQ(report.device, -1);
  EXPECT_EQ(report.address, address(&host));
  EXPECT_EQ(report.requested_bytes, 0u);
  EXPECT_FALSE(report.allocated.has_value());
  EXPECT_FALSE(report.freed.has_value());
  EXPECT_CONTAINS(message_, "this allocator does not hold it");
}

TEST_P(Debug, AWrongSizeIsReportedAndTheBlockStays) {
  void* const block = world_.allocate(1000);
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{999}, std::size_t{1024}}) {
    const GuardReport report = reported([&] { allocator_.deallocate(block, wrong, 0, nullptr); });
    EXPECT_EQ(report.kind, Kind::wrong_size);
    EXPECT_EQ(report.requested_bytes, 1000u);
    EXPECT_FALSE(report.freed.has_value());
    EXPECT_CONTAINS(report.message, fmt::format("size {} does not match", wrong));
  }
  allocator_.deallocate(block, 1000, 0, nullptr);
}

TEST(DebugOfTwoDevices, AFreeOnTheOtherOneIsReported) {
  TwoDevices world(kGiB, "debug:True");
  std::vector<GuardReport> heard;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) { heard.push_back(report); });
  void* const block = world.allocator.allocate(1000, 1);
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(block, 1000, 0, nullptr); }), "not of device 0");
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].kind, Kind::wrong_device);
  EXPECT_EQ(heard[0].device, 1);
  EXPECT_EQ(heard[0].address, address(block));
  world.allocator.deallocate(block, 1000, 1, nullptr);
  EXPECT_THROW(world.allocator.deallocate(block), InvalidArgument);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(heard[1].kind, Kind::double_free);
  EXPECT_EQ(heard[1].device, 1);
}

// ---- Other calls ---------------------------------------------------------------------------------------------------

TEST_P(Debug, AnyOtherUseOfAFreedBlockIsReported) {
  auto* const block = static_cast<char*>(world_.allocate(1000));
  allocator_.deallocate(block);
  const Stream stream = world_.device->new_stream();
  const std::vector<std::function<void()>> uses = {
      [&] { allocator_.record_stream(block, stream); }, [&] { allocator_.record_stream(block + 8, stream); },
      [&] { allocator_.base_allocation(block); },       [&] { allocator_.requested_size(block); },
      [&] { allocator_.allocated_size(block); },        [&] { allocator_.share(block); },
      [&] { allocator_.handle_count(block); },          [&] { allocator_.allocate_plain_beside(block); },
  };
  for (const auto& use : uses) {
    const GuardReport report = reported(use);
    EXPECT_EQ(report.kind, Kind::use_after_free);
    EXPECT_EQ(report.address, address(block));
    EXPECT_TRUE(report.freed.has_value());
  }
  EXPECT_EQ(allocator_.device_of(block), -1);  // a question, and no mistake
}

TEST_P(Debug, AUseOfWhatIsNoAllocationIsReported) {
  auto* const block = static_cast<char*>(world_.allocate(1000));
  const GuardReport report = reported([&] { allocator_.record_stream(block + 1, world_.device->new_stream()); });
  EXPECT_EQ(report.kind, Kind::invalid_use);
  EXPECT_EQ(report.offset, 1);
  allocator_.deallocate(block);
}

TEST_P(Debug, WhatIsAllocatedWithCachingOffIsKnownToo) {
  allocator_.set_caching_enabled(false);
  void* const block = world_.allocate(1000);
  EXPECT_EQ(allocator_.device_of(block), 0);
  EXPECT_EQ(reported([&] { allocator_.deallocate(block, 1, 0, nullptr); }).kind, Kind::wrong_size);
  allocator_.deallocate(block);
  allocator_.empty_cache();
  EXPECT_EQ(allocator_.device_of(block), -1);
  EXPECT_EQ(reported([&] { allocator_.deallocate(block); }).kind, Kind::double_free);
}

// ---- Private pools -------------------------------------------------------------------------------------------------

TEST_P(Debug, AReleasedPoolIsReportedWhereItIsUsedAgain) {
  allocator_.create_or_retain_pool(0, kPool);
  { const InPool in_pool(allocator_, kPool); }
  allocator_.release_pool(0, kPool);
  const GuardReport released = reported([&] { allocator_.release_pool(0, kPool); });
  EXPECT_EQ(released.kind, Kind::released_pool);
  EXPECT_CONTAINS(message_, "releasePool");
  EXPECT_TRUE(released.freed.has_value());
  EXPECT_EQ(reported([&] { allocator_.checkpoint_pool(0, kPool); }).kind, Kind::released_pool);
  EXPECT_EQ(reported([&] { allocator_.end_allocate_to_pool(0, kPool); }).kind, Kind::released_pool);
  // PyTorch refuses this; here it makes the pool anew.
  { const InPool in_pool(allocator_, kPool); }
  ASSERT_EQ(world_.heard.size(), 1u);
  EXPECT_EQ(world_.heard[0].kind, Kind::released_pool);
  EXPECT_CONTAINS(to_string(world_.heard[0]),
                  "begin_allocate_to_pool: pool (0, 7) was released by all its users. The last of them did by thread");
  world_.heard.clear();
}

TEST_P(Debug, APoolThatIsMadeAgainIsNoMistake) {
  allocator_.create_or_retain_pool(0, kPool);
  allocator_.release_pool(0, kPool);
  allocator_.create_or_retain_pool(0, kPool);
  { const InPool in_pool(allocator_, kPool); }
  allocator_.release_pool(0, kPool);
  EXPECT_THROW(allocator_.release_pool(0, {0, 8}), InvalidArgument);  // never was one
  EXPECT_TRUE(world_.heard.empty());
}

// ---- The text of reports -------------------------------------------------------------------------------------------

TEST(DebugReports, AreAParagraphAndAStackForEachCall) {
  DebugWorld world;
  const Stream stream = world.device->new_stream();
  void* const block = place_of_allocation(&world.allocator);
  world.allocator.record_stream(block, stream);
  world.pass(1'500'000);
  place_of_free(&world.allocator, block);
  EXPECT_THROW(place_of_free(&world.allocator, block), InvalidArgument);
  const std::string text = to_string(world.take_one());
  const auto self = ::gettid();
  EXPECT_TRUE(text.starts_with(fmt::format(
      "double free by thread {} at 1.500000 s: invalid device pointer: {} is not a live allocation: it is the block of "
      "1000 bytes at {}, which was already freed. It was allocated as call 1 by thread {} at 0.000000 s for stream "
      "0x0, "
      "used on {}, and freed as call 2 by thread {} at 1.500000 s.\n  here:\n    #0 ",
      self, block, block, self, static_cast<void*>(stream), self)))
      << text;
  const std::size_t freed = text.find("\n  freed:\n    #0 place_of_free");
  const std::size_t allocated = text.find("\n  allocated:\n    #0 place_of_allocation");
  EXPECT_LT(freed, allocated) << text;
  EXPECT_NE(allocated, std::string::npos) << text;
  EXPECT_FALSE(text.ends_with('\n'));
}

TEST(DebugReports, OfMemoryHaveTheStacksOfTheBlock) {
  DebugWorld world;
  void* const block = place_of_allocation(&world.allocator);
  smash(world, block, 1000);
  place_of_free(&world.allocator, block);
  const GuardReport report = world.take_one();
  EXPECT_EQ(report.kind, Kind::back_canary);
  EXPECT_FALSE(report.mistake.has_value());
  EXPECT_CONTAINS(to_string(report), "\n  freed:\n    #0 place_of_free");
  EXPECT_CONTAINS(to_string(report), "\n  allocated:\n    #0 place_of_allocation");
}

// A file's or a function's name may have any bytes.
TEST(GuardReports, AreJsonWhateverTheTextsInThemHold) {
  GuardReport report;
  report.kind = GuardReport::Kind::invalid_free;
  report.message = "freed in caf\xe9.py";
  const auto json = nlohmann::json::parse(to_json(std::vector<GuardReport>{report})).at(0);
  EXPECT_EQ(json.at("message"), "freed in caf\xef\xbf\xbd.py");
}

TEST(DebugReports, AreJsonWithAListOfFramesForEachCall) {
  DebugWorld world;
  void* const block = place_of_allocation(&world.allocator);
  EXPECT_THROW(world.allocator.deallocate(block, 1, 0, nullptr), InvalidArgument);
  const auto json = nlohmann::json::parse(to_json(world.take())).at(0);
  EXPECT_EQ(json.at("kind"), "wrong_size");
  EXPECT_EQ(json.at("freed"), nullptr);
  EXPECT_CONTAINS(json.at("message").get<std::string>(), "size 1 does not match");
  EXPECT_CONTAINS(json.at("allocated").at("stack").at(0).get<std::string>(), "place_of_allocation");
  EXPECT_GT(json.at("mistake").at("stack").size(), 1u);
  world.allocator.deallocate(block);
}

TEST(DebugReports, ComeToTheListAndToStderrToo) {
  DebugWorld world;
  AllocatorGuard(world.allocator).set_handler(nullptr);
  testing::internal::CaptureStderr();
  EXPECT_THROW(world.allocator.deallocate(&world), InvalidArgument);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("cachalot guard: free of what is not allocated by thread")) << text;
  const std::vector<GuardReport> reports = AllocatorGuard(world.allocator).check();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].kind, Kind::invalid_free);
  EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 1u);
}

TEST(DebugReports, OfADestructorsMistakeComeBeforeTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a forked child a free does nothing
  World world(64 * kGiB, "debug:True");
  void* const block = world.allocate(1000);
  world.allocator.deallocate(block);
  EXPECT_DEATH(world.allocator.deallocate_when_possible(block), "cachalot guard: double free by thread");
}

TEST(DebugReports, AHandlerMayUseTheAllocatorAndThrowAnErrorOfItsOwn) {
  DebugWorld world;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) {
    world.allocator.deallocate(world.allocate(100));
    EXPECT_EQ(world.allocator.validate(), "");
    throw std::runtime_error(to_string(report.kind));
  });
  void* const block = world.allocate(100);
  EXPECT_EQ(message_of<std::runtime_error>([&] { world.allocator.deallocate(block, 99, 0, nullptr); }), "wrong_size");
  world.allocator.deallocate(block);
  EXPECT_EQ(message_of<std::runtime_error>([&] { world.allocator.deallocate(block); }), "double_free");
}

TEST(DebugReports, EachKindHasAName) {
  constexpr std::array kNames = {"front_canary", "back_canary",  "write_after_free", "double_free", "invalid_free",
                                 "wrong_size",   "wrong_device", "use_after_free",   "invalid_use", "released_pool"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    const auto kind = static_cast<Kind>(i);
    EXPECT_STREQ(to_string(kind), kNames[i]);
    EXPECT_EQ(is_mistake(kind), i >= 3);
  }
}

// ---- Blocks that were freed ------------------------------------------------------------------------------------------

GuardedBlock block_at(Address begin, std::size_t bytes) {
  GuardedBlock block;
  block.address = begin;
  block.bytes = bytes;
  return block;
}

void add(FreedBlocks& blocks, Address begin, std::size_t bytes, std::uint64_t number) {
  blocks.add(block_at(begin, bytes), GuardCall{number, 0, 0});
}

TEST(FreedBlocks, AreForgottenWhereAByteOfThemIsAllocated) {
  FreedBlocks blocks;
  for (std::uint64_t i = 0; i < 4; ++i) add(blocks, 1000 + 100 * i, 100, i + 1);
  EXPECT_EQ(blocks.validate(), "");
  blocks.forget(block_at(1199, 2));  // the last byte of the second, the first of the third
  EXPECT_EQ(blocks.validate(), "");
  EXPECT_EQ(blocks.find(1199), nullptr);
  EXPECT_EQ(blocks.find(1250), nullptr);
  ASSERT_NE(blocks.find(1099), nullptr);
  EXPECT_EQ(blocks.find(1099)->address, 1000u);
  ASSERT_NE(blocks.find(1300), nullptr);
  EXPECT_EQ(blocks.find(1300)->address, 1300u);
  EXPECT_EQ(blocks.find(999), nullptr);
  EXPECT_EQ(blocks.find(1400), nullptr);
}

TEST(FreedBlocks, KeepTheLast) {
  FreedBlocks blocks;
  constexpr std::uint64_t kMore = 10;
  for (std::uint64_t i = 0; i < FreedBlocks::kKept + kMore; ++i) add(blocks, 1000 + 100 * i, 100, i + 1);
  EXPECT_EQ(blocks.validate(), "");
  EXPECT_EQ(blocks.find(1000 + 100 * (kMore - 1)), nullptr);
  EXPECT_NE(blocks.find(1000 + 100 * kMore), nullptr);
}

// ---- Threads, and programs at random ---------------------------------------------------------------------------------

TEST(DebugThreads, EachMistakeIsReportedOnceWhoeverMakesIt) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  for (const char* options : {"debug:True", "debug:True,guard:False,heap:pages"}) {
    const SmallQuarantine small;
    World world(64 * kGiB, options);
    std::atomic<int> heard = 0;
    AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) {
      EXPECT_TRUE(is_mistake(report.kind));
      ++heard;
    });
    std::latch begin(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        std::minstd_rand random(static_cast<unsigned>(i) + 1);
        begin.arrive_and_wait();
        for (int round = 0; round < kRounds; ++round) {
          void* const block = world.allocate(1 + random() % 100'000);
          EXPECT_THROW(world.allocator.deallocate(block, 0, 0, nullptr), InvalidArgument);
          EXPECT_THROW(world.allocator.record_stream(after(block, 1), world.device->new_stream()), InvalidArgument);
          world.allocator.deallocate(block);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(heard, 2 * kThreads * kRounds);
    EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 2u * kThreads * kRounds);
  }
}

TEST(DebugThreads, OneOfTwoFreesAtOnceIsTheDoubleOne) {
  World world(64 * kGiB, "debug:True");
  std::atomic<int> refused = 0;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) {
    EXPECT_EQ(report.kind, Kind::double_free);
    ++refused;
  });
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    void* const block = world.allocate(1000);
    std::latch begin(2);
    const auto free = [&] {
      begin.arrive_and_wait();
      try {
        world.allocator.deallocate(block);
      } catch (const InvalidArgument&) {
      }
    };
    std::thread other(free);
    free();
    other.join();
  }
  EXPECT_EQ(refused, kRounds);
}

TEST_P(Debug, WhateverIsFreedTwiceIsKnownAsLongAsItsMemoryIsNobodyElses) {
  constexpr unsigned kSeed = 20261122;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937 random(kSeed);
  struct Freed {
    char* begin;
    std::size_t bytes;
  };
  std::vector<Freed> live, freed;
  for (int step = 0; step < 2000; ++step) {
    SCOPED_TRACE(fmt::format("step {}", step));
    if (live.size() < 20 || random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 3'000'000 : 10'000);
      auto* const begin = static_cast<char*>(world_.allocate(bytes));
      live.push_back({begin, bytes});
      std::erase_if(freed, [&](const Freed& f) {  // generously: the heap's blocks are larger than the user's
        return f.begin < begin + bytes + 4 * kMiB && begin < f.begin + f.bytes + 4 * kMiB;
      });
    } else {
      std::swap(live[random() % live.size()], live.back());
      allocator_.deallocate(live.back().begin);
      freed.push_back(live.back());
      live.pop_back();
    }
    if (!freed.empty() && random() % 4 == 0) {
      const Freed& again = freed[random() % freed.size()];
      const GuardReport report = reported([&] { allocator_.deallocate(again.begin); });
      ASSERT_EQ(report.kind, Kind::double_free);
      ASSERT_EQ(report.requested_bytes, again.bytes);
    }
    if (random() % 50 == 0) allocator_.empty_cache();
  }
  for (const Freed& block : live) allocator_.deallocate(block.begin);
}

// ---- Options -------------------------------------------------------------------------------------------------------

TEST(DebugOption, TurnsTheGuardOnUnlessThatIsSaidToBeOff) {
  World world(64 * kGiB, "debug:True");
  EXPECT_EQ(offset_in_segment(world.allocator, world.allocate(1000)), 512u);
  World books(64 * kGiB, "debug:True,guard:False");
  void* const block = books.allocate(1000);
  EXPECT_EQ(offset_in_segment(books.allocator, block), 0u);
  const Stream other = books.device->new_stream();
  books.allocator.record_stream(block, other);
  books.launch(other);
  const std::int64_t before = books.device->clock_ns();
  books.allocator.deallocate(block);
  EXPECT_EQ(books.device->clock_ns(), before);  // a free does not wait
  EXPECT_EQ(AllocatorGuard(books.allocator).quarantine_bytes(), 0u);
  EXPECT_TRUE(AllocatorGuard(books.allocator).check().empty());
  for (const DeviceCall call : {DeviceCall::copy_from_host, DeviceCall::copy_to_host}) EXPECT_EQ(books.count(call), 0u);
}

TEST(DebugOption, IsOffByDefaultAndStaysWhatItIs) {
  World world;
  EXPECT_EQ(refusal([&] { world.allocator.configure("debug:True"); }),
            "debug:True cannot be set at run time: the debug is off since the allocator was made");
  World debugged(64 * kGiB, "debug:True");
  EXPECT_CONTAINS(refusal([&] { debugged.allocator.configure("debug:False"); }), "the debug is on");
  EXPECT_CONTAINS(refusal([&] { debugged.allocator.configure("guard:False"); }), "the guard is on");
  debugged.allocator.configure("guard:True");
}

TEST(DebugOption, TheGuardAloneReportsNoMistakesAndTakesNoStacks) {
  GuardedWorld world;
  void* const block = world.allocate(1000);
  smash(world, block, 1000);
  world.allocator.deallocate(block);
  EXPECT_TRUE(world.take_one().allocated->stack.empty());
  EXPECT_THROW(world.allocator.deallocate(block), InvalidArgument);
  EXPECT_THROW(world.allocator.deallocate(&world), InvalidArgument);
}

}  // namespace
}  // namespace cachalot
