// Tests of the guard's findings and reports.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "tests/guard/testing.h"

namespace cachalot {
namespace {

using Kind = GuardReport::Kind;

class GuardFinds : public testing::TestWithParam<std::string> {
 protected:
  GuardedWorld world_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Heaps, GuardFinds,
                         testing::Values("heap:segments", "heap:segments,thread_cache:True", "heap:pages",
                                         "heap:pages,thread_cache:False"));

TEST_P(GuardFinds, NothingWhereEachWritesToWhatIsItsOwn) {
  for (const std::size_t bytes : {1u, 511u, 512u, 513u, 4096u, 70'000u, 3'000'000u}) {
    void* const block = world_.allocate(bytes);
    EXPECT_EQ(address(block) % 512, 0u);
    const std::vector<unsigned char> data(bytes, 0xab);
    world_.device->copy_from_host(address(block), data.data(), bytes);
    world_.allocator.deallocate(block);
  }
  EXPECT_TRUE(AllocatorGuard(world_.allocator).check().empty());
  EXPECT_EQ(AllocatorGuard(world_.allocator).reports(), 0u);
}

TEST_P(GuardFinds, EveryKindOfByteBeforeABlock) {
  for (const std::ptrdiff_t offset : {-512, -300, -1}) {
    void* const block = world_.allocate(1000);
    smash(world_, block, offset);
    world_.allocator.deallocate(block);
    const GuardReport report = world_.take_one();
    EXPECT_EQ(report.kind, Kind::front_canary);
    EXPECT_EQ(report.offset, offset);
    EXPECT_EQ(report.address, address(block));
  }
}

TEST_P(GuardFinds, TheFirstAndTheLastByteBehindABlock) {
  for (const std::size_t bytes : {1u, 768u, 1000u, 1024u, 100'000u}) {
    const std::size_t end = world_.allocator.allocated_size(world_.allocate(bytes)) - GuardedBlock::kFront;
    const std::size_t last = std::min(end, bytes + GuardedBlock::kMostBack) - 1;
    EXPECT_GE(last, bytes + GuardedBlock::kLeastBack - 1);
    for (const std::size_t offset : {bytes, bytes + 255, last}) {
      void* const block = world_.allocate(bytes);
      smash(world_, block, as_signed(offset));
      world_.allocator.deallocate(block);
      const GuardReport report = world_.take_one();
      EXPECT_EQ(report.kind, Kind::back_canary);
      EXPECT_EQ(report.offset, as_signed(offset));
      EXPECT_EQ(report.requested_bytes, bytes);
    }
  }
}

TEST_P(GuardFinds, BothCanariesOfABlock) {
  void* const block = world_.allocate(1000);
  smash(world_, block, -1);
  smash(world_, block, 1000);
  EXPECT_EQ(AllocatorGuard(world_.allocator).check().size(), 2u);
  EXPECT_EQ(world_.take().size(), 2u);
  world_.allocator.deallocate(block);  // a reported mistake is not reported again
  EXPECT_TRUE(AllocatorGuard(world_.allocator).check().empty());
}

TEST(Guard, FindsAWriteAfterFreeWhereverItIs) {
  GuardedWorld world;
  for (const std::ptrdiff_t offset : {-512, 0, 500, 999, 1000, 1255}) {
    void* const block = world.allocate(1000);
    world.allocator.deallocate(block);
    smash(world, block, offset);
    EXPECT_EQ(AllocatorGuard(world.allocator).check().size(), 1u);
    const GuardReport report = world.take_one();
    EXPECT_EQ(report.kind, Kind::write_after_free);
    EXPECT_EQ(report.offset, offset);
  }
  world.allocator.empty_cache();
  EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 6u);
}

TEST(Guard, FindsAWriteAfterFreeWhenTheBlockLeavesTheQuarantine) {
  const SmallQuarantine small;
  GuardedWorld world;
  void* const block = world.allocate(500'000);
  world.allocator.deallocate(block);
  smash(world, block, 4711);
  world.allocator.deallocate(world.allocate(400'000));
  EXPECT_TRUE(world.heard.empty());
  world.allocator.deallocate(world.allocate(400'000));
  EXPECT_EQ(world.take_one().offset, 4711);
  EXPECT_LE(AllocatorGuard(world.allocator).quarantine_bytes(), kMiB);
}

// Writes to memory that was freed, over kernels that copy through the host: of blocks above a mebibyte only parts are looked
// at.
class LateWrite : public testing::TestWithParam<std::size_t> {
 protected:
  // Frees a block and writes to `bytes` of it.
  std::vector<GuardReport> found(std::size_t offset, std::size_t bytes) {
    const Address freed = free_a_block();
    const std::vector<unsigned char> data(bytes, 0xab);
    world_.device->copy_from_host(freed + offset, data.data(), bytes);
    AllocatorGuard(world_.allocator).check();
    return world_.take();
  }
  Address free_a_block() {
    void* const block = world_.allocate(size_);
    world_.allocator.deallocate(block);
    return address(block);
  }

  const std::size_t size_ = GetParam();
  GuardedWorld world_;
};

INSTANTIATE_TEST_SUITE_P(Sizes, LateWrite, testing::Values(1000u, kMiB - 1000, 2 * kMiB, 20 * kMiB + 7));

TEST_P(LateWrite, IsFoundAtTheStartAndAtTheEnd) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{500}, size_ - 1, size_ - 500}) {
    const std::vector<GuardReport> reports = found(offset, 1);
    ASSERT_EQ(reports.size(), 1u) << offset;
    EXPECT_EQ(reports[0].kind, Kind::write_after_free);
    EXPECT_EQ(reports[0].offset, as_signed(offset));
  }
}

TEST_P(LateWrite, IsOneReportForAllOfABlock) {
  const std::vector<GuardReport> reports = found(0, size_);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].offset, 0);
}

TEST_P(LateWrite, IsFoundWhereverItCoversTheDistanceOfTwoLines) {
  constexpr std::size_t kBytes =
      GuardedBlock::kSampleDistance - GuardedBlock::kSampleLine + 8;  // a byte is equal by chance
  for (std::size_t part = 0; part < 8; ++part) {
    const std::size_t offset = size_ > kBytes ? (size_ - kBytes) / 7 * part : 0;
    EXPECT_EQ(found(offset, std::min(kBytes, size_)).size(), 1u) << offset;
  }
}

TEST_P(LateWrite, IsFoundWhereItIsAColumn) {
  const Address freed = free_a_block();
  for (std::size_t row = 100; row + 8 < size_; row += 3000) world_.device->fill(freed + row, 0xab, 8, nullptr);
  EXPECT_EQ(AllocatorGuard(world_.allocator).check().size(), 1u);
  EXPECT_EQ(world_.take().size(), 1u);
}

TEST_P(LateWrite, IsFoundBeforeLongWhereItComesAgainAndAgain) {
  for (const std::size_t offset : {size_ / 2, size_ / 3, size_ / 10}) {
    std::size_t times = 1;
    while (times < 40 && found(offset, 8).empty()) ++times;
    EXPECT_LT(times, 40u) << offset;
  }
}

// OnTheGpu counts as kernels of a GPU, which write memory where it is.
class OnTheGpu final : public Kernels {
 public:
  explicit OnTheGpu(std::shared_ptr<Device> device) : host_(host_kernels(std::move(device))) {}

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override { host_->fill_pattern(stream, spans); }
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override {
    return host_->verify_pattern(stream, spans);
  }
  void move(Stream stream, Span<const BlockMove> moves) override { host_->move_blocks(stream, moves); }

  const std::unique_ptr<Kernels> host_;
};

TEST(Guard, FindsALateWriteOfAByteInALargeBlockByTheKernelsOfAGpu) {
  World world;
  CachingAllocator allocator(
      {world.device}, parse_options("guard:True"),
      guard_factory([](std::shared_ptr<Device> device) { return std::make_unique<OnTheGpu>(std::move(device)); }));
  AllocatorGuard(allocator).set_handler([](const GuardReport&) {});
  void* const block = allocator.allocate(20 * kMiB);
  allocator.deallocate(block);
  smash(world, block, 7'654'321);
  const std::vector<GuardReport> reports = AllocatorGuard(allocator).check();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].offset, 7'654'321);
}

TEST(Guard, TellsTheHistoryOfABlock) {
  GuardedWorld world;
  const Stream stream = world.device->new_stream();
  const Stream other = world.device->new_stream();
  world.allocator.deallocate(world.allocate(1));  // calls 1 and 2
  world.pass(1'500'000);
  void* const block = world.allocate(1000, stream);
  world.allocator.record_stream(block, other);
  world.allocator.record_stream(block, other);
  world.allocator.record_stream(block, stream);
  std::uint64_t freer = 0;
  on_another_thread([&] {
    freer = static_cast<std::uint64_t>(::gettid());
    world.allocator.deallocate(block);
  });
  smash(world, block, 7);
  EXPECT_EQ(AllocatorGuard(world.allocator).check().size(), 1u);
  const GuardReport report = world.take_one();
  const auto self = static_cast<std::uint64_t>(::gettid());
  EXPECT_EQ(report.allocated, (GuardCall{3, self, 1'500'000}));
  ASSERT_TRUE(report.freed.has_value());
  EXPECT_EQ(*report.freed, (GuardCall{4, freer, 1'500'000}));
  EXPECT_EQ(report.stream, stream);
  EXPECT_EQ(report.recorded, std::vector<Stream>{other});
  EXPECT_EQ(
      to_string(report),
      fmt::format("the block of 1000 bytes at {} on device 0: somebody wrote to it after it was freed: byte 7 is the "
                  "first that was overwritten. It was allocated as call 3 by thread {} at 1.500000 s for stream {}, "
                  "used on {}, and freed as call 4 by thread {} at 1.500000 s. "
                  "debug:True (CACHALOT_DEBUG=1) adds stacks.",
                  block, self, static_cast<void*>(stream), static_cast<void*>(other), freer));
}

TEST(Guard, SaysHowFarBehindABlockSomebodyWrote) {
  GuardedWorld world;
  void* const block = world.allocate(1000);
  smash(world, block, 1003);
  EXPECT_CONTAINS(to_string(AllocatorGuard(world.allocator).check().at(0)),
                  "byte 1003 is the first that was overwritten, 3 behind");
  EXPECT_FALSE(world.take_one().freed.has_value());
  world.allocator.deallocate(block);
}

TEST(Guard, ReportsAreJsonToo) {
  const GuardReport live{.kind = Kind::back_canary, .device = 1, .address = 512, .requested_bytes = 3, .offset = 4};
  GuardReport freed = live;
  freed.allocated = GuardCall{1, 2, 3};
  freed.freed = GuardCall{9, 8, 7};
  freed.recorded = {reinterpret_cast<Stream>(5)};
  const std::vector<GuardReport> reports = {live, freed};
  EXPECT_EQ(
      to_json(reports),
      R"([{"kind":"back_canary","device":1,"address":512,"requested_bytes":3,"offset":4,"stream":0,"recorded":[],)"
      R"("allocated":null,"freed":null,"mistake":null,"message":""},)"
      R"({"kind":"back_canary","device":1,"address":512,"requested_bytes":3,"offset":4,"stream":0,"recorded":[5],)"
      R"("allocated":{"number":1,"thread":2,"clock_us":3,"stack":[]},)"
      R"("freed":{"number":9,"thread":8,"clock_us":7,"stack":[]},"mistake":null,"message":""}])");
}

TEST(Guard, HandsReportsOutOnceAndKeepsTheNewest) {
  GuardedWorld world;
  for (int i = 0; i < 1003; ++i) {
    void* const block = world.allocate(100);
    smash(world, block, 100 + i % 200);
    world.allocator.deallocate(block);
  }
  EXPECT_EQ(world.take().size(), 1003u);
  EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 1003u);
  const std::vector<GuardReport> reports = AllocatorGuard(world.allocator).check();
  ASSERT_EQ(reports.size(), 1000u);
  EXPECT_EQ(reports.front().offset, 103);
  EXPECT_TRUE(AllocatorGuard(world.allocator).check().empty());
}

TEST(Guard, WithoutAHandlerReportsGoToStderr) {
  GuardedWorld world;
  AllocatorGuard(world.allocator).set_handler(nullptr);
  void* const block = world.allocate(100);
  smash(world, block, -3);
  testing::internal::CaptureStderr();
  world.allocator.deallocate(block);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("cachalot guard: the block of 100 bytes at")) << text;
  EXPECT_CONTAINS(text, "byte -3");
  EXPECT_TRUE(text.ends_with(" debug:True (CACHALOT_DEBUG=1) adds stacks.\n")) << text;
}

TEST(Guard, AHandlerMayUseTheAllocatorAndItsErrorsComeOutOfACallThatIsDone) {
  GuardedWorld world;
  AllocatorGuard(world.allocator).set_handler([&](const GuardReport& report) {
    world.allocator.deallocate(world.allocate(100));
    world.allocator.empty_cache();
    throw std::runtime_error(to_string(report));
  });
  void* const block = world.allocate(100);
  smash(world, block, 100);
  EXPECT_THROW(world.allocator.deallocate(block), std::runtime_error);
  EXPECT_EQ(world.allocated(), 0u);
  EXPECT_THROW(world.allocator.deallocate(block), InvalidArgument);
}

// Worlds in which every check of the quarantine finds a write to it, and gets an error for it.
class GuardThrows : public testing::TestWithParam<std::string> {
 protected:
  struct Heard : std::exception {};

  explicit GuardThrows(std::size_t device_bytes = 64 * kGiB) : world_(GetParam(), device_bytes) {
    AllocatorGuard(world_.allocator).set_handler([this](const GuardReport&) {
      ++heard_;
      throw Heard();
    });
  }

  void write_after_free(std::size_t bytes = 1000) {
    void* const block = world_.allocate(bytes);
    world_.allocator.deallocate(block);
    smash(world_, block, 7);
  }

  GuardedWorld world_;
  CachingAllocator& allocator_ = world_.allocator;
  int heard_ = 0;
};

class GuardThrowsOnASmallDevice : public GuardThrows {
 protected:
  GuardThrowsOnASmallDevice() : GuardThrows(64 * kMiB) {}
};

INSTANTIATE_TEST_SUITE_P(Heaps, GuardThrows, testing::Values("heap:segments", "heap:pages"));
INSTANTIATE_TEST_SUITE_P(Heaps, GuardThrowsOnASmallDevice, testing::Values("heap:segments", "heap:pages"));

TEST_P(GuardThrows, WhenTheCacheIsEmptyAndAllIsTold) {
  write_after_free();
  write_after_free(5000);
  EXPECT_THROW(allocator_.empty_cache(), Heard);
  EXPECT_EQ(heard_, 2);
  EXPECT_EQ(allocator_.memory_reserved(), 0u);
  EXPECT_EQ(AllocatorGuard(allocator_).check().size(), 2u);
}

TEST_P(GuardThrows, WhenEveryDeviceWasLookedAt) {
  write_after_free();
  EXPECT_THROW(AllocatorGuard(allocator_).check(), Heard);
  EXPECT_EQ(heard_, 1);
  EXPECT_EQ(AllocatorGuard(allocator_).check().size(), 1u);
}

TEST_P(GuardThrows, NothingOutOfADestructor) {
  void* const block = world_.allocate(1000);
  smash(world_, block, 1000);
  allocator_.deallocate_when_possible(block);
  EXPECT_EQ(heard_, 1);
  EXPECT_THROW(allocator_.requested_size(block), InvalidArgument);
}

TEST_P(GuardThrows, BeforeACallWhoseResultWouldBeLost) {
  allocator_.create_or_retain_pool(0, {1, 0});
  const PoolCheckpoint empty = allocator_.checkpoint_pool(0, {1, 0});
  void* block = nullptr;
  {
    const InPool in_pool(allocator_, {1, 0});
    block = world_.allocate(1000);
    write_after_free();
  }
  EXPECT_THROW(allocator_.restore_pool(0, empty), Heard);
  EXPECT_EQ(allocator_.requested_size(block), 1000u);
  EXPECT_EQ(allocator_.restore_pool(0, empty).freed, std::vector<void*>{block});
  allocator_.release_pool(0, {1, 0});
}

TEST_P(GuardThrowsOnASmallDevice, OutOfAnAllocationWhichIsThenNotMade) {
  write_after_free(40 * kMiB);
  EXPECT_THROW(world_.allocate(50 * kMiB), Heard);
  EXPECT_EQ(heard_, 1);
  allocator_.empty_cache();
  EXPECT_EQ(allocator_.memory_allocated(), 0u);
  allocator_.deallocate(world_.allocate(50 * kMiB));
}

TEST_P(GuardThrowsOnASmallDevice, OutOfAnAllocationThatTheDeviceRefusesToUndo) {
  for (std::uint64_t nth = 1; nth <= 12; ++nth) {
    write_after_free(40 * kMiB);
    world_.device->set_faults({Fault{.nth = nth, .out_of_memory = false, .code = 700}});
    EXPECT_ANY_THROW(world_.allocate(50 * kMiB)) << nth;
    world_.device->set_faults({});
    try {
      allocator_.empty_cache();
    } catch (const Heard&) {  // the device had refused to look
    }
    EXPECT_EQ(allocator_.memory_allocated(), 0u) << nth;
    EXPECT_EQ(allocator_.validate(), "") << nth;
  }
}

TEST(GuardThrowsOfASleeper, WhenItSleepsAndWhenItIsAwake) {
  GuardedWorld world("heap:pages");
  AllocatorGuard(world.allocator).set_handler([](const GuardReport&) { throw std::runtime_error("heard"); });
  const auto write_after_free = [&] {
    void* const block = world.allocate(1000);
    world.allocator.deallocate(block);
    smash(world, block, 7);
  };
  world.allocator.begin_tagged("weights");
  void* const block = world.allocate(30 * kMiB);
  world.allocator.end_tagged("weights");
  const std::size_t awake = world.device->used_bytes();
  write_after_free();
  EXPECT_THROW(world.allocator.release_physical("weights", /*save=*/true), std::runtime_error);
  EXPECT_LE(world.device->used_bytes(), awake - 30 * kMiB);
  write_after_free();
  EXPECT_THROW(world.allocator.restore_physical("weights"), std::runtime_error);
  EXPECT_GE(world.device->used_bytes(), awake);
  world.allocator.deallocate(block);
}

// ---- Invalid frees -------------------------------------------------------------------------------------------------

TEST(Guard, ASecondFreeIsRefusedWithTheHistoryOfTheFirst) {
  GuardedWorld world;
  void* const block = world.allocate(1000);
  world.allocator.deallocate(block);
  const auto self = ::gettid();
  EXPECT_EQ(
      refusal([&] { world.allocator.deallocate(block); }),
      fmt::format("invalid device pointer: {} is not a live allocation: it is the block of 1000 bytes at {}, which "
                  "was already freed (allocated as call 1 by thread {}, freed as call 2 by thread {})",
                  block, block, self, self));
  EXPECT_CONTAINS(refusal([&] { world.allocator.record_stream(after(block, 8), world.device->new_stream()); }),
                  "it lies inside the block of 1000 bytes");
}

TEST(Guard, OnlyWhatTheUserWasGivenIsAnAddress) {
  GuardedWorld world;
  auto* const block = static_cast<char*>(world.allocate(1000));
  for (void* const wrong : {block - 512, block + 512, block - 1}) {
    EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(wrong); }), "it lies inside the allocation of 1000 bytes");
    EXPECT_THROW(world.allocator.deallocate(wrong, 1000, 0, nullptr), InvalidArgument);
    EXPECT_THROW(world.allocator.base_allocation(wrong), InvalidArgument);
    EXPECT_EQ(world.allocator.device_of(wrong), -1);
  }
  EXPECT_CONTAINS(refusal([&] { world.allocator.deallocate(&world); }), "this allocator does not hold it");
  world.allocator.deallocate(block);
}

TEST(Guard, ASizedFreeIsHeldAgainstWhatWasAskedFor) {
  GuardedWorld world;
  const Stream stream = world.device->new_stream();
  void* const block = world.allocate(1000);
  EXPECT_EQ(refusal([&] { world.allocator.deallocate(block, 1768, 0, nullptr); }),
            fmt::format("size 1768 does not match the allocation at {}: 1000 bytes were asked for", block));
  EXPECT_THROW(world.allocator.deallocate(block, 1000, 1, nullptr), InvalidArgument);
  world.allocator.deallocate(block, 1000, 0, stream);
  smash(world, block, 1);
  EXPECT_EQ(AllocatorGuard(world.allocator).check().at(0).recorded, std::vector<Stream>{stream});
  world.take();
}

// ---- Off -----------------------------------------------------------------------------------------------------------

TEST(Guard, IsOffByDefaultAndStaysWhatItIs) {
  World world;
  EXPECT_CONTAINS(refusal([&] { AllocatorGuard(world.allocator).check(); }), "the guard is off");
  EXPECT_EQ(refusal([&] { world.allocator.configure("guard:True"); }),
            "guard:True cannot be set at run time: the guard is off since the allocator was made");
  EXPECT_EQ(AllocatorGuard(world.allocator).reports(), 0u);
  EXPECT_EQ(AllocatorGuard(world.allocator).quarantine_bytes(), 0u);
  void* const block = world.allocate(1000);
  EXPECT_EQ(offset_in_segment(world.allocator, block), 0u);
  world.allocator.deallocate(block);
  for (const DeviceCall call : {DeviceCall::copy_from_host, DeviceCall::copy_to_host, DeviceCall::event_create})
    EXPECT_EQ(world.count(call), 0u);
}

TEST(Guard, IsRefusedWhereNobodyMakesIt) {
  const auto device = std::make_shared<SimulatedDevice>();
  for (const char* option : {"guard:True", "debug:True"}) {
    EXPECT_CONTAINS(refusal([&] { CachingAllocator({device}, parse_options(option)); }),
                    fmt::format("{}: the allocator is made without a guard; pass guard_factory()", option));
  }
}

TEST(Guard, GivesNoAllocationAGivenAddress) {
  GuardedWorld world;
  EXPECT_THROW(world.allocator.allocate_at(512, 0, nullptr, nullptr), InvalidArgument);
}

TEST(Guard, IsNotTurnedOffAtRunTime) {
  GuardedWorld world;
  world.allocator.configure("guard:True");
  EXPECT_CONTAINS(refusal([&] { world.allocator.configure("guard:False"); }), "the guard is on");
}

TEST(Guard, KeepsAtMost256MiBInQuarantine) {
  GuardedWorld world;
  for (int i = 0; i < 5; ++i) world.allocator.deallocate(world.allocate(60 * kMiB));
  EXPECT_GT(AllocatorGuard(world.allocator).quarantine_bytes(), 240 * kMiB);
  EXPECT_LE(AllocatorGuard(world.allocator).quarantine_bytes(), 256 * kMiB);
}

}  // namespace
}  // namespace cachalot
