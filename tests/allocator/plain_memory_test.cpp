// Plain memory over the page heap: AllocateOptions::plain, plain pools and expandable_segments:False at run time.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cachalot/errors.h"
#include "tests/allocator/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

constexpr PoolId kPlainPool{7, 0};

class PlainMemory : public ::testing::Test {
 protected:
  void* plain(std::size_t bytes, Stream stream = nullptr) {
    return allocator.allocate(bytes, 0, stream, {.plain = true});
  }
  bool is_plain(void* ptr) const {
    const Address at = address(ptr);
    for (const SegmentSnapshot& segment : allocator.snapshot({}, /*include_traces=*/false).segments) {
      if (segment.address <= at && at < segment.address + segment.total_size) return !segment.is_expandable;
    }
    ADD_FAILURE() << ptr << " is in no segment";
    return false;
  }

  World world{kGiB, "heap:pages"};
  CachingAllocator& allocator = world.allocator;
};

TEST_F(PlainMemory, IsASegmentOfTheDevicesMallocThatLegacyIpcShares) {
  void* const usual = world.allocate(3 * kMiB);
  void* const ptr = plain(3 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
  EXPECT_TRUE(is_plain(ptr));
  EXPECT_TRUE(allocator.share(ptr).handles.empty()) << "it is shared by a cudaIpcMemHandle_t";
  EXPECT_EQ(world.segments(), 1);
  EXPECT_EQ(world.reserved(), 24 * kMiB);
  EXPECT_FALSE(is_plain(usual));
  EXPECT_FALSE(allocator.share(usual).handles.empty());
  allocator.deallocate(ptr);
  allocator.deallocate(usual);
  allocator.empty_cache();
  EXPECT_EQ(world.count(DeviceCall::free), 1u);
  EXPECT_EQ(world.reserved(), 0u);
}

TEST_F(PlainMemory, IsTheUsualMemoryOfOtherHeaps) {
  for (const char* heap : {"heap:segments", "heap:managed"}) {
    World other(kGiB, heap);
    void* const ptr = other.allocator.allocate(kMiB, 0, nullptr, {.plain = true});
    EXPECT_EQ(other.count(DeviceCall::malloc), 1u) << heap;
    other.allocator.deallocate(ptr);
    other.allocator.deallocate(other.allocate(kMiB));
    EXPECT_EQ(other.count(DeviceCall::malloc), 1u) << heap;
    EXPECT_EQ(other.count(DeviceCall::malloc_managed), heap == std::string("heap:managed") ? 1u : 0u);
  }
}

TEST_F(PlainMemory, IsWhatRequestsGetAfterExpandableSegmentsFalse) {
  void* const before = world.allocate(8 * kMiB);
  allocator.configure("expandable_segments:False");
  EXPECT_FALSE(takes_pages(allocator.options()));
  EXPECT_TRUE(uses_pages(allocator.options()));
  void* const between = world.allocate(18 * kMiB);
  void* const small = world.allocate(1000);
  EXPECT_TRUE(is_plain(between));
  EXPECT_TRUE(is_plain(small));
  EXPECT_FALSE(is_plain(before));
  allocator.configure("expandable_segments:True");
  void* const after = world.allocate(8 * kMiB);
  EXPECT_FALSE(is_plain(after)) << "no free plain memory is large enough";
  for (void* ptr : {before, between, small, after}) allocator.deallocate(ptr);
  allocator.configure("expandable_segments:False");
  allocator.configure("garbage_collection_threshold:0.5");  // names another option
  EXPECT_FALSE(takes_pages(allocator.options()));
  allocator.configure("heap:pages");
  EXPECT_TRUE(takes_pages(allocator.options()));
}

TEST_F(PlainMemory, MayBeTheStateFromTheBeginning) {
  World plain_first(kGiB, "heap:pages,expandable_segments:False");
  plain_first.allocator.deallocate(plain_first.allocate(kMiB));
  EXPECT_EQ(plain_first.count(DeviceCall::malloc), 1u);
  EXPECT_EQ(parse_options("expandable_segments:False").heap, HeapKind::segments);
  EXPECT_FALSE(parse_options("expandable_segments:False").plain);
}

TEST_F(PlainMemory, ServesPagesOnceItIsFreeBeforeNewMemoryDoes) {
  allocator.configure("expandable_segments:False");
  allocator.deallocate(world.allocate(64 * kMiB));
  allocator.configure("expandable_segments:True");
  void* const ptr = world.allocate(64 * kMiB);
  EXPECT_EQ(world.reserved(), 64 * kMiB);
  EXPECT_TRUE(is_plain(ptr));
  void* const next = world.allocate(64 * kMiB);
  EXPECT_FALSE(is_plain(next));
  allocator.deallocate(ptr);
  allocator.deallocate(next);
}

TEST_F(PlainMemory, OfAPoolInUseServesPagesAsItCannotGoBack) {
  allocator.create_or_retain_pool(0, kPlainPool);
  const InPool in_pool(allocator, kPlainPool);
  allocator.configure("expandable_segments:False");
  allocator.deallocate(world.allocate(64 * kMiB));
  allocator.configure("expandable_segments:True");
  void* const ptr = world.allocate(8 * kMiB);
  EXPECT_EQ(world.reserved(), 64 * kMiB);
  EXPECT_TRUE(is_plain(ptr));
  allocator.deallocate(ptr);
}

TEST_F(PlainMemory, OfAPoolThatLendsServesPagesBeforeMemoryRunsOut) {
  allocator.create_or_retain_pool(0, kPlainPool);
  allocator.set_use_on_oom(0, kPlainPool, true);
  allocator.configure("expandable_segments:False");
  {
    const InPool in_pool(allocator, kPlainPool);
    allocator.deallocate(world.allocate(800 * kMiB));
  }
  allocator.configure("expandable_segments:True");
  void* const ptr = world.allocate(700 * kMiB);
  EXPECT_TRUE(is_plain(ptr));
  allocator.deallocate(ptr);
  EXPECT_EQ(picture(allocator, kPlainPool), "free 838860800\n");
}

TEST_F(PlainMemory, OfTheOneKindIsGivenBackWhenTheOtherRunsOut) {
  World tight(256 * kMiB, "heap:pages");
  tight.allocator.deallocate(tight.allocate(200 * kMiB));
  void* const ptr = tight.allocator.allocate(100 * kMiB, 0, nullptr, {.plain = true});
  EXPECT_EQ(tight.reserved(), 200 * kMiB) << "as many idle pages went as the peak has no room for";
  tight.allocator.deallocate(ptr);
  void* const pages = tight.allocate(200 * kMiB);
  EXPECT_EQ(tight.reserved(), 200 * kMiB);
  EXPECT_EQ(tight.allocator.memory_stats().num_ooms, 0);
  out_of_memory([&] { tight.allocator.allocate(100 * kMiB, 0, nullptr, {.plain = true}); });
  tight.allocator.deallocate(pages);
}

TEST_F(PlainMemory, IsTrimmed) {
  void* const first = plain(64 * kMiB);
  void* const second = world.allocate(64 * kMiB);
  allocator.deallocate(first);
  allocator.deallocate(second);
  EXPECT_EQ(world.reserved(), 128 * kMiB);
  EXPECT_EQ(allocator.trim(0), 128 * kMiB);
  EXPECT_EQ(world.reserved(), 0u);
}

TEST_F(PlainMemory, DoesNotRaiseThePeakOfHeldMemoryAsLongAsPagesAreIdle) {
  allocator.deallocate(world.allocate(100 * kMiB));
  void* const first = plain(30 * kMiB);
  EXPECT_EQ(world.reserved(), 100 * kMiB);
  void* const second = plain(100 * kMiB);
  EXPECT_EQ(world.reserved(), 130 * kMiB);
  EXPECT_EQ(allocator.memory_stats().reserved_bytes.all.peak, static_cast<std::int64_t>(130 * kMiB));
  allocator.deallocate(first);
  allocator.deallocate(second);
}

TEST_F(PlainMemory, OfAPoolGoesWithThePool) {
  allocator.create_or_retain_pool(0, kPlainPool);
  allocator.set_plain(0, kPlainPool);
  {
    const InPool in_pool(allocator, kPlainPool);
    void* const ptr = world.allocate(30 * kMiB);
    EXPECT_TRUE(is_plain(ptr));
    EXPECT_EQ(picture(allocator, kPlainPool), "live 31457280\n");
    allocator.deallocate(ptr);
  }
  allocator.release_pool(0, kPlainPool);
  allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(allocator.pool_use_count(0, kPlainPool), 0);
  EXPECT_CONTAINS(refusal([&] { allocator.set_plain(0, {99, 0}); }), "(99, 0)");
}

TEST_F(PlainMemory, OfAGraphsPoolIsCheckpointed) {
  allocator.create_or_retain_pool(0, kPlainPool);
  allocator.configure("expandable_segments:False");
  const InPool in_pool(allocator, kPlainPool);
  void* const first = world.allocate(4 * kMiB);
  const PoolCheckpoint checkpoint = allocator.checkpoint_pool(0, kPlainPool);
  void* const second = world.allocate(4 * kMiB);
  allocator.deallocate(first);
  const RestoreResult result = allocator.restore_pool(0, checkpoint);
  EXPECT_EQ(result.freed, std::vector<void*>{second});
  EXPECT_EQ(result.created, std::vector<void*>{first});
  allocator.deallocate(first);
}

TEST_F(PlainMemory, OfATagCannotSleep) {
  allocator.begin_tagged("weights");
  void* const usual = world.allocate(8 * kMiB);
  allocator.configure("expandable_segments:False");
  void* const still_usual = world.allocate(8 * kMiB);
  EXPECT_FALSE(is_plain(still_usual)) << "the memory of a tag is to sleep";
  allocator.release_physical("weights", /*save=*/false);
  allocator.restore_physical("weights");
  void* const asked_for = plain(8 * kMiB);
  allocator.end_tagged("weights");
  EXPECT_TRUE(is_plain(asked_for));
  EXPECT_CONTAINS(refusal([&] { allocator.release_physical("weights", /*save=*/false); }),
                  "20.00 MiB of tag 'weights' is plain memory, which cannot sleep");
  for (void* ptr : {usual, still_usual, asked_for}) allocator.deallocate(ptr);
}

TEST_F(PlainMemory, OfATagThatIsFreeNeitherHasItsPagesNorKeepsItAwake) {
  allocator.begin_tagged("weights");
  allocator.deallocate(plain(8 * kMiB));
  void* const usual = world.allocate(8 * kMiB);
  allocator.end_tagged("weights");
  EXPECT_FALSE(is_plain(usual));
  allocator.release_physical("weights", /*save=*/false);
  EXPECT_EQ(world.reserved(), 0u);
  allocator.restore_physical("weights");
  allocator.deallocate(usual);
}

TEST_F(PlainMemory, BesideAnAllocationHasItsSizeStreamAndPool) {
  const Stream stream = world.device->new_stream();
  void* const other = world.allocate(kMiB);
  allocator.create_or_retain_pool(0, kPlainPool);
  void* ptr = nullptr;
  {
    const InPool in_pool(allocator, kPlainPool);
    ptr = world.allocate(3 * kMiB, stream);
  }
  void* const beside = allocator.allocate_plain_beside(ptr);
  EXPECT_TRUE(is_plain(beside));
  EXPECT_EQ(allocator.requested_size(beside), 3 * kMiB);
  for (const SegmentSnapshot& segment : allocator.snapshot({}, /*include_traces=*/false).segments) {
    if (segment.is_expandable) continue;
    EXPECT_EQ(segment.segment_pool_id, kPlainPool);
    EXPECT_EQ(segment.stream, stream);
  }
  EXPECT_EQ(allocator.allocate_plain_beside(beside), nullptr) << "it is plain already";
  {
    const InPool in_pool(allocator, kPlainPool);
    void* const of_default_pool = allocator.allocate_plain_beside(other);
    EXPECT_TRUE(is_plain(of_default_pool));
    EXPECT_EQ(world.count(DeviceCall::malloc), 2u) << "a segment of the pool does not serve the default pool";
    allocator.deallocate(of_default_pool);
  }
  for (void* each : {ptr, beside, other}) allocator.deallocate(each);
  EXPECT_EQ(allocator.validate(), "");
}

TEST_F(PlainMemory, BesideAnAllocationIsRecordedOnItsStreams) {
  const Stream side = world.device->new_stream();
  void* const ptr = world.allocate(30 * kMiB);
  allocator.record_stream(ptr, side);
  void* const beside = allocator.allocate_plain_beside(ptr);
  world.launch(side);
  allocator.deallocate(beside);
  void* const next = plain(30 * kMiB);
  EXPECT_NE(next, beside) << "the other stream may still use it";
  for (void* each : {ptr, next}) allocator.deallocate(each);
}

TEST_F(PlainMemory, BesideAnAllocationIsRefusedInCapturesAndSleep) {
  allocator.begin_tagged("weights");
  void* const ptr = world.allocate(8 * kMiB);
  allocator.end_tagged("weights");
  allocator.begin_capture(0);
  EXPECT_CONTAINS(refusal([&] { allocator.allocate_plain_beside(ptr); }),
                  "cannot become plain memory: a graph is being captured on device 0");
  allocator.end_capture(0);
  allocator.release_physical("weights", /*save=*/false);
  EXPECT_CONTAINS(refusal([&] { allocator.allocate_plain_beside(ptr); }), "tag 'weights' is asleep");
  allocator.restore_physical("weights");
  void* const beside = allocator.allocate_plain_beside(ptr);
  EXPECT_CONTAINS(refusal([&] { allocator.release_physical("weights", /*save=*/false); }),
                  "plain memory, which cannot sleep");
  for (void* each : {ptr, beside}) allocator.deallocate(each);
  EXPECT_CONTAINS(refusal([&] { allocator.allocate_plain_beside(ptr); }), "is not a live allocation");
}

TEST_F(PlainMemory, IsAlignedAndContiguous) {
  void* const ptr =
      allocator.allocate(3 * kMiB, 0, nullptr, {.contiguous = true, .alignment = kMaxAlignment, .plain = true});
  EXPECT_TRUE(is_plain(ptr));
  EXPECT_EQ(address(ptr) % kMaxAlignment, 0u);
  allocator.deallocate(ptr);
}

TEST_F(PlainMemory, IsNotMixedWithWhatThreadsCache) {
  std::vector<void*> cached;
  for (int i = 0; i < 100; ++i) cached.push_back(world.allocate(1024));
  for (void* ptr : cached) allocator.deallocate(ptr);
  allocator.configure("expandable_segments:False");
  void* const ptr = world.allocate(1024);
  EXPECT_TRUE(is_plain(ptr));
  allocator.configure("expandable_segments:True");
  allocator.deallocate(ptr);
  EXPECT_FALSE(is_plain(world.allocate(1024)));
}

// One segment a line: kind, pool, stream and blocks; sorted, since addresses differ.
std::vector<std::string> plain_segments(CachingAllocator& allocator) {
  std::vector<std::string> lines;
  for (const SegmentSnapshot& segment : allocator.snapshot({}, /*include_traces=*/false).segments) {
    if (segment.is_expandable) continue;
    lines.push_back(std::to_string(static_cast<int>(segment.segment_type)) + " " +
                    std::to_string(segment.segment_pool_id.first) + " " +
                    std::to_string(reinterpret_cast<Address>(segment.stream)) + ": " + blocks_of(segment));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void expect_equal(const StatArray& a, const StatArray& b) {
  for (const auto member : {&StatArray::all, &StatArray::small_pool, &StatArray::large_pool}) {
    EXPECT_EQ((a.*member).current, (b.*member).current);
    EXPECT_EQ((a.*member).peak, (b.*member).peak);
    EXPECT_EQ((a.*member).allocated, (b.*member).allocated);
    EXPECT_EQ((a.*member).freed, (b.*member).freed);
  }
}

// A program that switches at random, on pages; and on segments the same program without the requests that pages serve.
class SwitchingProgram {
 public:
  explicit SwitchingProgram(unsigned seed) : random_(seed) {
    for (World* each : {&mixed_, &plain_}) each->allocator.create_or_retain_pool(0, kPlainPool);
  }

  void step() {
    const auto dice = random_() % 100;
    if (dice < 45 || live_.empty()) return allocate();
    if (dice < 90) return deallocate();
    if (dice < 97)
      return mixed_.allocator.configure(random_() % 2 == 0 ? "expandable_segments:False" : "expandable_segments:True");
    if (dice < 99) return trim(mixed_.allocator), trim(plain_.allocator);
    mixed_.allocator.reset_peak_stats();
    plain_.allocator.reset_peak_stats();
  }
  void compare() {
    EXPECT_EQ(plain_segments(mixed_.allocator), plain_segments(plain_.allocator));
    const DeviceStats a = mixed_.allocator.memory_stats(), b = plain_.allocator.memory_stats();
    expect_equal(a.segment, b.segment);
    expect_equal(a.inactive_split, b.inactive_split);
    expect_equal(a.inactive_split_bytes, b.inactive_split_bytes);
    EXPECT_EQ(mixed_.allocator.validate(), "");
  }

 private:
  struct Live {
    void* ptr;
    void* twin;  // null: pages serve it
  };

  static void trim(CachingAllocator& allocator) { allocator.empty_cache(); }
  void allocate() {
    const std::size_t bytes = std::size_t{1} << (9 + random_() % 16);
    const auto stream = reinterpret_cast<Stream>(std::uintptr_t{random_() % 3} * 64);
    if (random_() % 4 != 0) return live_.push_back(served(bytes + random_() % bytes, stream));
    const InPool in_pool(mixed_.allocator, kPlainPool);
    const InPool in_twin(plain_.allocator, kPlainPool);
    live_.push_back(served(bytes, stream));
  }
  Live served(std::size_t bytes, Stream stream) {
    const std::vector<std::string> before = plain_segments(mixed_.allocator);
    void* const ptr = mixed_.allocate(bytes, stream);
    const bool is_plain = plain_segments(mixed_.allocator) != before;
    return {ptr, is_plain ? plain_.allocate(bytes, stream) : nullptr};
  }
  void deallocate() {
    std::swap(live_[random_() % live_.size()], live_.back());
    mixed_.allocator.deallocate(live_.back().ptr);
    plain_.allocator.deallocate(live_.back().twin);
    live_.pop_back();
  }

  std::mt19937 random_;
  World mixed_{64 * kGiB, "heap:pages,cross_stream:off"};
  World plain_{64 * kGiB, "heap:segments"};
  std::vector<Live> live_;
};

TEST(SwitchingPrograms, DecideOnPlainMemoryAsPytorchDoes) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SwitchingProgram program(seed);
    for (int i = 0; i < static_cast<int>(scaled(400)) && !::testing::Test::HasFailure(); ++i) {
      program.step();
      if (i % 20 == 0) program.compare();
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cachalot
