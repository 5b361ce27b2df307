// Allocations of the page heap in one handle, and memory that other processes open.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"

namespace cachalot {
namespace {

constexpr AllocateOptions kContiguous{.contiguous = true};

// The handles mapped at an allocation's addresses, as the device knows them; it maps in units of 2 MiB.
std::set<MemoryHandle> handles_of(const World& world, void* ptr, std::size_t bytes) {
  std::set<MemoryHandle> handles;
  for (Address at = address(ptr); at < address(ptr) + bytes; at = round_down(at, 2 * kMiB) + 2 * kMiB) {
    handles.insert(world.device->memory_at(at).value().handle);
  }
  return handles;
}

void* allocate_contiguous(World& world, std::size_t bytes, Stream stream = nullptr) {
  void* ptr = world.allocator.allocate(bytes, 0, stream, kContiguous);
  EXPECT_EQ(handles_of(world, ptr, bytes).size(), 1u);
  EXPECT_EQ(world.allocator.handle_count(ptr), 1u);
  EXPECT_EQ(world.allocator.validate(), "");
  return ptr;
}

// Eight blocks of 8 MiB side by side in handles of 2 MiB; every second one free.
std::vector<void*> scatter(World& world) {
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(world.allocate(8 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) world.allocator.deallocate(blocks[i]);
  return blocks;
}

// --- in one handle ----------------------------------------------------------------------------------------------------

TEST(ContiguousAllocations, LieInOneHandleThatIsMadeForThem) {
  World world(checked(), "heap:pages");
  void* large = allocate_contiguous(world, 100 * kMiB + 1000);  // more than the usual handle
  EXPECT_EQ(world.count(DeviceCall::create), 1u);
  EXPECT_EQ(world.reserved(), 102 * kMiB);
  void* ordinary = world.allocate(100 * kMiB);
  EXPECT_GT(world.allocator.handle_count(ordinary), 1u);
  world.allocator.deallocate(large);
  world.allocator.deallocate(ordinary);
}

TEST(ContiguousAllocations, AreNotPutTogetherOfPagesOfManyHandles) {
  World world(checked(), "heap:pages,page_size_mb:2");
  scatter(world);
  const std::size_t reserved = world.reserved();
  allocate_contiguous(world, 8 * kMiB);
  EXPECT_EQ(world.reserved(), reserved + 8 * kMiB);
}

TEST(ContiguousAllocations, TakeThePartOfAFreeBlockThatLiesInOneHandle) {
  World world(checked(), "heap:pages,page_size_mb:2");
  world.allocator.deallocate(world.allocate(3 * kMiB));  // a handle of 2 MiB, another of 2 MiB
  void* first = world.allocate(1536 * kKiB);             // leaves 512 KiB of the first handle
  const std::uint64_t created = world.count(DeviceCall::create);
  void* second = allocate_contiguous(world, 1536 * kKiB);  // fits into the second, not across both
  EXPECT_EQ(address(second), address(first) + 2 * kMiB);
  EXPECT_EQ(world.count(DeviceCall::create), created);
  world.allocator.deallocate(second);
  world.allocator.deallocate(first);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(ContiguousAllocations, ReuseTheirHandleOnceTheyAreFree) {
  World world(checked(), "heap:pages");
  world.allocator.deallocate(allocate_contiguous(world, 64 * kMiB));
  const std::uint64_t created = world.count(DeviceCall::create);
  world.allocator.deallocate(allocate_contiguous(world, 64 * kMiB));
  world.allocator.deallocate(world.allocate(50 * kMiB));  // ordinary memory from then on
  EXPECT_EQ(world.count(DeviceCall::create), created);
}

TEST(ContiguousAllocations, UseAddressesAgainWhoseMemoryHasGone) {
  World world(checked(kGiB), "heap:pages");
  void* between = nullptr;
  for (int i = 0; i < 20; ++i) {
    void* ptr = allocate_contiguous(world, 600 * kMiB);
    if (between == nullptr) between = allocate_contiguous(world, 100 * kMiB);
    world.allocator.deallocate(ptr);
    world.allocator.empty_cache();
  }
  EXPECT_EQ(world.count(DeviceCall::reserve), 1u);
  world.allocator.deallocate(between);
}

TEST(ContiguousAllocations, TakeWholeBlocksOfAPoolThatDoesNotSplit) {
  World world(checked(), "heap:pages");
  world.allocator.create_or_retain_pool(0, kPool);
  world.allocator.set_no_split(0, kPool);
  const InPool in_pool(world.allocator, kPool);
  world.allocator.deallocate(allocate_contiguous(world, 8 * kMiB));
  void* ptr = allocate_contiguous(world, 2 * kMiB);
  EXPECT_EQ(world.allocator.allocated_size(ptr), 8 * kMiB);
  void* other = allocate_contiguous(world, 2 * kMiB);
  EXPECT_EQ(world.allocator.allocated_size(other), 2 * kMiB);
  world.allocator.deallocate(ptr);
  world.allocator.deallocate(other);
}

TEST(ContiguousAllocations, MayBeSmall) {
  World world(checked(), "heap:pages");
  std::vector<void*> live;
  for (std::size_t i = 0; i < 40; ++i) {
    live.push_back(allocate_contiguous(world, (1 + i * 37 % 1024) * kKiB));
    live.push_back(world.allocate((1 + i * 53 % 700) * kKiB));
    if (i % 3 == 0) world.allocator.deallocate(std::exchange(live[i], nullptr));
  }
  for (void* ptr : live) world.allocator.deallocate(ptr);
}

TEST(ContiguousAllocations, StayInTheirHandleWhilePagesMoveAroundThem) {
  World world(checked(), "heap:pages,page_size_mb:4");
  std::vector<std::pair<void*, std::size_t>> kept;
  for (std::size_t round = 0; round < 20; ++round) {
    const std::size_t bytes = (1 + round % 7) * 1500 * kKiB;
    kept.emplace_back(allocate_contiguous(world, bytes), bytes);
    const std::vector<void*> blocks = scatter(world);
    void* gathered = world.allocate(24 * kMiB);
    for (const auto& [ptr, size] : kept) ASSERT_EQ(handles_of(world, ptr, size).size(), 1u) << round;
    world.allocator.deallocate(gathered);
    for (std::size_t i = 1; i < blocks.size(); i += 2) world.allocator.deallocate(blocks[i]);
    if (round % 4 == 3) {
      world.allocator.deallocate(kept.front().first);
      kept.erase(kept.begin());
    }
  }
}

TEST(ContiguousAllocations, OverSegmentsAreAllAllocations) {
  World world;
  void* ptr = world.allocator.allocate(30 * kMiB, 0, nullptr, kContiguous);
  EXPECT_EQ(world.allocator.handle_count(ptr), 1u);
  EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
  world.allocator.deallocate(ptr);
}

TEST(ContiguousAllocations, OfNothingAreNull) {
  World world(checked(), "heap:pages");
  EXPECT_EQ(world.allocator.allocate(0, 0, nullptr, kContiguous), nullptr);
}

TEST(ContiguousAllocations, WaitForAnotherStreamRatherThanGrowing) {
  World world(checked(), "heap:pages,cross_stream:wait,immortal_streams:True");
  const Stream a = world.device->new_stream();
  const Stream b = world.device->new_stream();
  void* first = allocate_contiguous(world, 64 * kMiB, a);
  world.device->launch(a, 1'000'000, {{address(first), 64 * kMiB}});
  world.allocator.deallocate(first);
  world.allocator.deallocate(world.allocate(kMiB, b));
  const std::size_t reserved = world.reserved();
  void* second = allocate_contiguous(world, 64 * kMiB, b);
  world.device->handed_out(address(second), 64 * kMiB, b);
  EXPECT_EQ(world.reserved(), reserved);
  EXPECT_EQ(world.count(DeviceCall::synchronize), 0u);
  world.device->given_back(address(second));
  world.allocator.deallocate(second);
}

TEST(ContiguousAllocations, GiveBackIdleMemoryBeforeTheyFail) {
  World world(checked(100 * kMiB), "heap:pages,page_size_mb:2");
  world.allocator.deallocate(world.allocate(80 * kMiB));
  world.allocator.deallocate(allocate_contiguous(world, 60 * kMiB));
  EXPECT_LE(world.device->peak_used_bytes(), 100 * kMiB);
  void* kept = world.allocate(60 * kMiB);
  EXPECT_CONTAINS(out_of_memory([&] { world.allocator.allocate(60 * kMiB, 0, nullptr, kContiguous); }),
                  "in one handle");
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocator.deallocate(kept);
}

TEST(ContiguousAllocations, KeepToTheMemoryFraction) {
  World world(checked(100 * kMiB), "heap:pages,per_process_memory_fraction:0.5");
  EXPECT_CONTAINS(out_of_memory([&] { world.allocator.allocate(60 * kMiB, 0, nullptr, kContiguous); }), "allowed");
  world.allocator.deallocate(allocate_contiguous(world, 48 * kMiB));
}

TEST(ContiguousAllocations, BorrowFromPoolsThatLend) {
  World world(checked(64 * kMiB), "heap:pages");
  world.allocator.create_or_retain_pool(0, kPool);
  {
    const InPool in_pool(world.allocator, kPool);
    world.allocator.deallocate(allocate_contiguous(world, 60 * kMiB));
  }
  const auto request = [&] { return world.allocator.allocate(30 * kMiB, 0, nullptr, kContiguous); };
  EXPECT_CONTAINS(out_of_memory(request), "in one handle");
  world.allocator.set_use_on_oom(0, kPool, true);
  world.allocator.deallocate(allocate_contiguous(world, 30 * kMiB));
  EXPECT_EQ(world.reserved(), 60 * kMiB);
}

TEST(ContiguousAllocations, OfAPoolStayInThePoolAlsoDuringACapture) {
  World world(checked(), "heap:pages");
  const Stream stream = world.device->new_stream();
  void* kept = nullptr;
  {
    const Capture capture(world, stream, kPool);
    kept = allocate_contiguous(world, 40 * kMiB, stream);
    world.allocator.deallocate(allocate_contiguous(world, 20 * kMiB, stream));
  }
  EXPECT_TRUE(world.allocator.pool_has_exactly(0, kPool, {kept}));
  world.allocator.deallocate(kept);
  world.allocator.release_pool(0, kPool);
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

// The rest of a large block's last page is smaller than a page and may lie across the border of two handles.
TEST(ContiguousAllocations, DoNotTakeALeftoverAcrossTwoHandles) {
  World world(checked(4 * kGiB), "heap:pages");
  const auto freed_later = world.allocate(50'374'916);
  world.allocate(7'861'378);
  world.allocator.deallocate(freed_later);
  world.allocate(46'316'957);
  allocate_contiguous(world, 2'376'391);
  for (const std::size_t bytes : std::initializer_list<std::size_t>{5'257'342, 654'846, 7'153'534, 3'838'907})
    world.allocate(bytes);
  void* ptr = allocate_contiguous(world, 186'501);
  EXPECT_EQ(handles_of(world, ptr, 186'501).size(), 1u);
  EXPECT_EQ(world.allocator.validate(), "");
}

// Requests of all sizes, on two streams, with work that uses them: every stream hazard is checked, and what was promised to
// lie in one handle does.
TEST(ContiguousAllocations, MixWithAllOthers) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    World world(checked(400 * kMiB), seed % 2 == 0 ? "heap:pages,page_size_mb:4" : "heap:pages");
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) { return std::size_t{random()} % limit; };
    const Stream streams[2] = {world.device->new_stream(), world.device->new_stream()};
    struct Live {
      void* ptr;
      std::size_t bytes;
      bool contiguous;
    };
    std::vector<Live> live;
    const auto free_one = [&] {
      std::swap(live[below(live.size())], live.back());
      world.device->given_back(address(live.back().ptr));
      world.allocator.deallocate(live.back().ptr);
      live.pop_back();
    };
    for (int step = 0; step < 600; ++step) {
      const std::size_t bytes = (1 + below(std::size_t{1} << below(18))) * kKiB;
      const bool contiguous = below(3) == 0;
      const Stream stream = streams[below(2)];
      try {
        void* ptr = world.allocator.allocate(bytes, 0, stream, {.contiguous = contiguous});
        world.device->handed_out(address(ptr), bytes, stream);
        world.device->launch(stream, 50'000, {{address(ptr), bytes}});
        live.push_back({ptr, bytes, contiguous});
      } catch (const OutOfMemory&) {
        while (live.size() > 4) free_one();
      }
      if (below(2) == 0 && !live.empty()) free_one();
      if (below(100) == 0) world.allocator.empty_cache();
      world.pass(10);
      ASSERT_EQ(world.allocator.validate(), "") << step;
    }
    for (const Live& each : live) {
      const std::size_t handles = handles_of(world, each.ptr, each.bytes).size();
      EXPECT_TRUE(handles == 1 || !each.contiguous) << handles;
    }
    while (!live.empty()) free_one();
  }
}

// --- other processes --------------------------------------------------------------------------------------------------

bool is_open(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0;
}

// A SimulatedDevice is a process of its own.
struct OtherProcess {
  explicit OtherProcess(std::string_view options = "") : world(checked(), options) {}

  // Opens the memory, whose pieces must have the order and sizes of the exporter.
  void* open(const SharedMemory& memory) {
    void* base = world.allocator.open_shared(memory);
    world.device->launch(world.device->new_stream(), 1, {{address(base) + memory.offset, memory.bytes}});
    return base;
  }
  World world;
};

TEST(SharedMemory, OfThePageHeapOpensAsTheHandlesBehindIt) {
  World world(checked(), "heap:pages,page_size_mb:2");
  void* before = world.allocate(3 * kMiB);
  void* ptr = world.allocate(7 * kMiB);
  const SharedMemory memory = world.allocator.share(ptr);
  EXPECT_EQ(memory.handles.size(), world.allocator.handle_count(ptr));
  EXPECT_EQ(memory.handles.size(), 4u);
  EXPECT_EQ(memory.offset, kMiB);
  EXPECT_EQ(memory.bytes, 7 * kMiB);
  OtherProcess other;
  void* opened = other.open(memory);
  EXPECT_EQ(other.world.device->used_bytes(), 0u);
  other.world.allocator.close_shared(opened);
  EXPECT_EQ(other.world.device->live_mappings(), 0u);
  EXPECT_CONTAINS(refusal([&] { other.world.allocator.close_shared(opened); }), "is not open");
  world.allocator.deallocate(before);
  world.allocator.deallocate(ptr);
}

TEST(SharedMemory, OfScatteredPagesOpensToo) {
  World world(checked(), "heap:pages,page_size_mb:4");
  const std::vector<void*> blocks = scatter(world);
  void* gathered = world.allocate(24 * kMiB);
  const SharedMemory memory = world.allocator.share(gathered);
  EXPECT_GT(memory.handles.size(), 1u);
  OtherProcess other("heap:pages");
  other.world.allocator.close_shared(other.open(memory));
  EXPECT_CONTAINS(refusal([&] { world.allocator.share_contiguous(gathered); }),
                  fmt::format("lies in {} handles, not in one", memory.handles.size()));
}

TEST(SharedMemory, OfSegmentsIsTheSegment) {
  World world;
  void* before = world.allocate(3 * kMiB);
  void* ptr = world.allocate(4 * kMiB);
  const SharedMemory memory = world.allocator.share_contiguous(ptr);
  EXPECT_TRUE(memory.handles.empty());
  EXPECT_EQ(memory.offset, 3 * kMiB);
  OtherProcess other;
  void* once = other.open(memory);
  EXPECT_EQ(other.open(memory), once);
  other.world.allocator.close_shared(once);
  other.world.allocator.close_shared(once);
  EXPECT_CONTAINS(refusal([&] { other.world.allocator.close_shared(once); }), "is not open");
  world.allocator.deallocate(before);
  world.allocator.deallocate(ptr);
}

TEST(SharedMemory, ExportsAHandleOnceAndClosesItsDescriptorWithIt) {
  World world(checked(), "heap:pages");
  void* ptr = allocate_contiguous(world, 8 * kMiB);
  const int descriptor = world.allocator.share(ptr).handles.at(0).shared.descriptor;
  EXPECT_EQ(world.allocator.share(ptr).handles.at(0).shared.descriptor, descriptor);
  EXPECT_EQ(world.count(DeviceCall::export_handle), 1u);
  EXPECT_TRUE(is_open(descriptor));
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache();
  EXPECT_FALSE(is_open(descriptor));
}

TEST(SharedMemory, OfManyHandlesRaisesTheLimitOfDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 128, .rlim_max = before.rlim_max};
  ASSERT_GT(low.rlim_max, 600u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  {
    World world(checked(), "heap:pages");
    void* const ptr = world.allocate(kGiB);
    EXPECT_EQ(world.allocator.share(ptr).handles.size(), 512u);
    rlimit raised{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &raised), 0);
    EXPECT_EQ(raised.rlim_cur, before.rlim_max);
    world.allocator.deallocate(ptr);
  }
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(SharedMemory, OfAPoolThatFallsAsleepMeanwhileIsNotAllocated) {
  World world(checked(), "heap:pages");
  const Region region(world, "shared");
  world.allocator.add_free_memory_callback([&] {
    world.allocator.release_physical("shared");
    return false;
  });
  EXPECT_CONTAINS(refusal([&] { world.allocator.allocate(8 * kMiB, 0, nullptr, kContiguous); }),
                  "tag 'shared' is asleep on device 0: nothing can be allocated from it before restore_physical");
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST(SharedMemory, IsAnotherOnceItHasSlept) {
  World world(checked(), "heap:pages");
  const Region region(world, "shared");
  void* ptr = allocate_contiguous(world, 8 * kMiB);
  const SharedMemory before = world.allocator.share(ptr);
  EXPECT_EQ(world.allocator.share(ptr).handles.at(0).key, before.handles.at(0).key);
  world.allocator.release_physical("shared");
  EXPECT_FALSE(is_open(before.handles.at(0).shared.descriptor));  // it would keep the memory
  EXPECT_EQ(world.device->used_bytes(), 0u);
  EXPECT_CONTAINS(refusal([&] { world.allocator.share(ptr); }),
                  "tag 'shared' is asleep on device 0: nothing can be shared from it before restore_physical");
  world.allocator.restore_physical("shared");
  EXPECT_EQ(world.allocator.handle_count(ptr), 1u);
  const SharedMemory after = world.allocator.share(ptr);
  EXPECT_TRUE(is_open(after.handles.at(0).shared.descriptor));
  EXPECT_NE(after.handles.at(0).key, before.handles.at(0).key);
  world.allocator.deallocate(ptr);
}

TEST(SharedMemory, MustBeOfALiveAllocation) {
  World world(checked(), "heap:pages");
  void* ptr = world.allocate(8 * kMiB);
  EXPECT_CONTAINS(refusal([&] { world.allocator.share(after(ptr, 512)); }), "is not a live allocation");
  world.allocator.deallocate(ptr);
  EXPECT_CONTAINS(refusal([&] { world.allocator.share(ptr); }), "is not a live allocation");
  EXPECT_CONTAINS(refusal([&] { world.allocator.handle_count(ptr); }), "is not a live allocation");
}

TEST(SharedMemory, OfOddSizesIsRefused) {
  OtherProcess other;
  SharedMemory memory;
  memory.handles.push_back({{}, 3 * kMiB});
  EXPECT_CONTAINS(refusal([&] { other.world.allocator.open_shared(memory); }),
                  "a shared handle of 3145728 bytes: GPU 0 has pages of 2097152 bytes");
  memory.handles[0].bytes = 4 * kMiB;
  memory.offset = 3 * kMiB;
  memory.bytes = 2 * kMiB;
  EXPECT_CONTAINS(
      refusal([&] { other.world.allocator.open_shared(memory); }),
      "a shared allocation of 2097152 bytes at offset 3145728 of handles of 4194304 bytes: it does not lie in");
  memory.handles.push_back({{}, ~(2 * kMiB - 1)});
  EXPECT_CONTAINS(refusal([&] { other.world.allocator.open_shared(memory); }), "shared handles of more than");
  EXPECT_EQ(other.world.count(DeviceCall::reserve), 0u);
}

// A file that says of itself that it is memory; whatever else is in it.
class Forgery {
 public:
  explicit Forgery(const std::string& content) : descriptor_(memfd_create("forgery", 0)) {
    EXPECT_EQ(write(descriptor_, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  }
  ~Forgery() { close(descriptor_); }
  Forgery(const Forgery&) = delete;
  Forgery& operator=(const Forgery&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string ticket(std::uint64_t exporter, std::uint64_t address, std::uint64_t bytes) {
  std::string text("simulated share\0", 16);
  for (const std::uint64_t word : {exporter, address, bytes}) {
    text.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return text;
}

// Every lie about true handles is refused, by its own check or by the device, and nothing stays open.
TEST(SharedMemory, ThatLiesIsRefusedAndNothingStaysOpen) {
  World world(checked(), "heap:pages,page_size_mb:2");
  void* ptr = world.allocate(7 * kMiB);
  const SharedMemory truth = world.allocator.share(ptr);
  ASSERT_EQ(truth.handles.size(), 4u);
  const Forgery empty(""), noise(std::string(100, 'x')), cut(ticket(1, 1, 2 * kMiB).substr(0, 39)),
      nothing(ticket(99, 1, 0)), huge(ticket(99, 1, ~std::uint64_t{0} << 21)), odd(ticket(99, 1, 12345));
  const auto with_descriptor = [](int descriptor) {
    return [descriptor](SharedMemory& memory) { memory.handles[1].shared.descriptor = descriptor; };
  };
  const std::vector<std::pair<const char*, std::function<void(SharedMemory&)>>> lies = {
      {"no descriptor", with_descriptor(-1)},
      {"the least descriptor", with_descriptor(std::numeric_limits<int>::min())},
      {"the largest descriptor", with_descriptor(std::numeric_limits<int>::max())},
      {"an empty file", with_descriptor(empty.descriptor())},
      {"another file", with_descriptor(noise.descriptor())},
      {"a ticket cut short", with_descriptor(cut.descriptor())},
      {"a ticket of no bytes", with_descriptor(nothing.descriptor())},
      {"a ticket of 2^64 bytes", with_descriptor(huge.descriptor())},
      {"a ticket of bytes that are no pages", with_descriptor(odd.descriptor())},
      {"a fabric handle of noise",
       [](SharedMemory& memory) {
         memory.handles[0].shared.kind = ShareableHandle::Kind::fabric;
         memory.handles[0].shared.fabric.fill(0xab);
       }},
      {"a handle that is said to be larger", [](SharedMemory& memory) { memory.handles[2].bytes = 64 * kMiB; }},
      {"a handle of no bytes", [](SharedMemory& memory) { memory.handles[0].bytes = 0; }},
      {"a handle of 2^64 bytes",
       [](SharedMemory& memory) { memory.handles[0].bytes = ~std::size_t{0} - 2 * kMiB + 1; }},
      {"an offset behind the end", [](SharedMemory& memory) { memory.offset = 8 * kMiB + 1; }},
      {"an offset that overflows", [](SharedMemory& memory) { memory.offset = ~std::size_t{0} - kMiB; }},
      {"a size that overflows", [](SharedMemory& memory) { memory.bytes = ~std::size_t{0}; }},
      {"noise for a segment",
       [](SharedMemory& memory) {
         memory.handles.clear();
         std::ranges::fill(memory.segment.bytes, '\xab');
       }},
      {"zeros for a segment", [](SharedMemory& memory) { memory.handles.clear(); }},
      {"a segment's offset that overflows",
       [](SharedMemory& memory) {
         memory.handles.clear();
         memory.offset = ~std::size_t{0};
       }},
  };
  for (const char* heap : {"", "heap:pages"}) {
    OtherProcess other(heap);
    for (const auto& [name, lie] : lies) {
      SCOPED_TRACE(name);
      SharedMemory memory = truth;
      lie(memory);
      std::string message;
      try {
        other.world.allocator.open_shared(memory);
      } catch (const InvalidArgument& error) {
        message = error.what();
      } catch (const OutOfMemory& error) {
        message = error.what();
      } catch (const CudaError& error) {
        message = error.what();
      }
      EXPECT_NE(message, "") << "it was opened";
      EXPECT_EQ(other.world.device->live_mappings(), 0u);
      EXPECT_EQ(other.world.device->used_bytes(), 0u);
      EXPECT_EQ(other.world.allocator.validate(), "");
      for (const SharedMemory::Handle& handle : truth.handles) EXPECT_TRUE(is_open(handle.shared.descriptor));
    }
    other.world.allocator.close_shared(other.open(truth));  // and the truth still opens
    EXPECT_EQ(other.world.device->live_mappings(), 0u);
  }
  EXPECT_CONTAINS(refusal([&] { OtherProcess("heap:pages").world.allocator.open_shared(truth, 7); }), "7");
  world.allocator.deallocate(ptr);
}

TEST(SharedMemory, StaysOpenUntilTheDeviceIsDoneWithIt) {
  World world(checked(), "heap:pages");
  void* ptr = allocate_contiguous(world, 8 * kMiB);
  const auto device = std::make_shared<SimulatedDevice>(checked());
  {
    CachingAllocator other({device}, parse_options("heap:segments"));
    void* opened = other.open_shared(world.allocator.share(ptr));
    device->launch(nullptr, 1'000'000, {{address(opened), 8 * kMiB}});
  }
  EXPECT_EQ(device->live_mappings(), 0u);
}

TEST(SharedMemory, ClosedDuringACaptureGoesWithTheNext) {
  World world(checked(), "heap:pages");
  const SharedMemory memory = world.allocator.share(allocate_contiguous(world, 8 * kMiB));
  OtherProcess other;
  void* first = other.open(memory);
  void* second = other.open(world.allocator.share(allocate_contiguous(world, 8 * kMiB)));
  {
    const Capture capture(other.world, other.world.device->new_stream(), kPool);
    other.world.allocator.close_shared(first);
  }
  EXPECT_EQ(other.world.device->live_mappings(), 2u);
  other.world.allocator.close_shared(second);
  EXPECT_EQ(other.world.device->live_mappings(), 0u);
}

// --- memory that is opened several times ---------------------------------------------------------------------------------

// Opened are the mappings of a process, and the calls that it made for them.
struct Opened {
  std::uint64_t imports, maps;
  std::size_t live_mappings;
  bool operator==(const Opened&) const = default;
};
Opened opened(const OtherProcess& other) {
  const World& world = other.world;
  return {world.count(DeviceCall::import_handle), world.count(DeviceCall::map), world.device->live_mappings()};
}
std::ostream& operator<<(std::ostream& out, const Opened& it) {
  return out << it.imports << " imports, " << it.maps << " maps, " << it.live_mappings << " live mappings";
}

// Returns the memory as a sender without keys, such as the C API, describes it.
SharedMemory without_keys(SharedMemory memory) {
  for (SharedMemory::Handle& handle : memory.handles) handle.key = 0;
  return memory;
}

TEST(SharedMemoryOpenedAgain, IsMappedOnceAndUnmappedWithTheLastClose) {
  World world(checked(), "heap:pages,page_size_mb:2");
  const SharedMemory memory = world.allocator.share(world.allocate(7 * kMiB));
  ASSERT_EQ(memory.handles.size(), 4u);
  OtherProcess other, unknowing;
  void* base = other.open(memory);
  for (int i = 1; i < 10; ++i) EXPECT_EQ(other.open(memory), base);
  EXPECT_EQ(opened(other), (Opened{4, 4, 4}));
  EXPECT_EQ(other.world.count(DeviceCall::reserve), 1u);
  for (int i = 1; i < 10; ++i) other.world.allocator.close_shared(base);
  EXPECT_EQ(other.world.device->live_mappings(), 4u);
  other.world.allocator.close_shared(base);
  EXPECT_EQ(other.world.device->live_mappings(), 0u);
  EXPECT_EQ(other.world.count(DeviceCall::release), 4u);
  EXPECT_CONTAINS(refusal([&] { other.world.allocator.close_shared(base); }), "is not open");
  for (int i = 0; i < 10; ++i) unknowing.open(without_keys(memory));
  EXPECT_EQ(opened(unknowing), (Opened{40, 40, 40}));
}

TEST(SharedMemoryOpenedAgain, ServesAllAllocationsInItsHandles) {
  World world(checked(), "heap:pages");
  world.allocator.deallocate(allocate_contiguous(world, 32 * kMiB));
  std::vector<SharedMemory> shared;
  for (int i = 0; i < 32; ++i) shared.push_back(world.allocator.share(world.allocate(kMiB)));
  OtherProcess other, unknowing;
  std::set<void*> addresses;
  for (const SharedMemory& memory : shared) {
    ASSERT_EQ(memory.handles.size(), 1u);
    void* base = other.open(memory);
    addresses.insert(after(base, memory.offset));
    unknowing.open(without_keys(memory));
  }
  EXPECT_EQ(addresses.size(), 32u);
  EXPECT_EQ(opened(other), (Opened{1, 1, 1}));
  EXPECT_EQ(opened(unknowing), (Opened{32, 32, 32}));
}

// Handles 2 and 3 of 1 2 3 4 are open with them. Beside 5 they are not, and 4 5 needs addresses of its own, while handle 4 is
// not imported again.
TEST(SharedMemoryOpenedAgain, IsPartOfWhatIsOpenOrSharesItsHandles) {
  World world(checked(), "heap:pages,page_size_mb:2");
  const SharedMemory five = world.allocator.share(world.allocate(10 * kMiB));
  ASSERT_EQ(five.handles.size(), 5u);
  const auto part = [&](std::size_t begin, std::size_t end) {
    SharedMemory memory;
    memory.handles.assign(five.handles.begin() + static_cast<std::ptrdiff_t>(begin),
                          five.handles.begin() + static_cast<std::ptrdiff_t>(end));
    memory.bytes = (end - begin) * 2 * kMiB;
    return memory;
  };
  OtherProcess other;
  CachingAllocator& allocator = other.world.allocator;
  void* four = other.open(part(0, 4));
  void* middle = other.open(part(1, 3));
  EXPECT_EQ(middle, after(four, 2 * kMiB));
  EXPECT_EQ(opened(other), (Opened{4, 4, 4}));
  void* overlapping = other.open(part(3, 5));
  EXPECT_EQ(opened(other), (Opened{5, 6, 6}));
  EXPECT_EQ(other.world.device->memory_at(address(overlapping)).value().handle,
            other.world.device->memory_at(address(four) + 6 * kMiB).value().handle);
  EXPECT_CONTAINS(refusal([&] { allocator.close_shared(after(four, 4 * kMiB)); }), "is not open");
  allocator.close_shared(four);  // a part of it is in use
  EXPECT_EQ(other.world.device->live_mappings(), 6u);
  allocator.close_shared(middle);
  EXPECT_EQ(opened(other), (Opened{5, 6, 2}));
  EXPECT_EQ(other.world.count(DeviceCall::release), 3u);
  allocator.close_shared(overlapping);
  EXPECT_EQ(other.world.device->live_mappings(), 0u);
  EXPECT_EQ(other.world.count(DeviceCall::release), 5u);
}

TEST(SharedMemoryOpenedAgain, WithAHandleOfAnotherSizeIsNotTheSame) {
  World world(checked(), "heap:pages");
  SharedMemory memory = world.allocator.share(allocate_contiguous(world, 8 * kMiB));
  OtherProcess other;
  void* base = other.open(memory);
  memory.handles[0].bytes = 4 * kMiB;
  memory.bytes = 4 * kMiB;
  EXPECT_THROW(other.world.allocator.open_shared(memory), CudaError);
  EXPECT_EQ(other.world.device->live_mappings(), 1u);
  other.world.allocator.close_shared(base);
}

TEST(SharedMemoryOpenedAgain, DuringACaptureIsWhatWasClosedInIt) {
  World world(checked(), "heap:pages");
  const SharedMemory memory = world.allocator.share(allocate_contiguous(world, 8 * kMiB));
  OtherProcess other;
  void* base = other.open(memory);
  {
    const Capture capture(other.world, other.world.device->new_stream(), kPool);
    other.world.allocator.close_shared(base);
    EXPECT_EQ(other.world.allocator.open_shared(memory), base);
  }
  EXPECT_EQ(opened(other), (Opened{1, 1, 1}));
  other.world.allocator.close_shared(base);
  EXPECT_EQ(other.world.device->live_mappings(), 0u);
}

// Each call that closes fails once: memory that is opened then is mapped anew, and the rest goes with the next close.
TEST(SharedMemoryOpenedAgain, AfterAFailedCloseIsMappedAnew) {
  for (const DeviceCall call : {DeviceCall::unmap, DeviceCall::release, DeviceCall::unreserve}) {
    SCOPED_TRACE(to_string(call));
    World world(checked(), "heap:pages");
    const SharedMemory memory = world.allocator.share(allocate_contiguous(world, 8 * kMiB));
    OtherProcess other;
    void* base = other.open(memory);
    other.world.device->set_faults({{.call = call, .nth = 1, .out_of_memory = false, .code = 999}});
    EXPECT_THROW(other.world.allocator.close_shared(base), CudaError);
    void* again = other.open(memory);
    EXPECT_NE(again, base);
    other.world.device->set_faults({});
    other.world.allocator.close_shared(again);
    EXPECT_EQ(other.world.device->live_mappings(), 0u);
    EXPECT_EQ(other.world.allocator.validate(), "");
  }
}

// Shares, opens and closes; true if a call failed.
bool share_open_and_close(World& world, OtherProcess& other) {
  bool failed = false;
  const auto attempt = [&](const std::function<void()>& action) {
    failed |= fails(action);
    EXPECT_EQ(world.allocator.validate(), "");
  };
  void* ptr = nullptr;
  void* opened = nullptr;
  attempt([&] { ptr = world.allocate(7 * kMiB); });
  attempt([&] {
    if (ptr != nullptr) opened = other.world.allocator.open_shared(world.allocator.share(ptr));
  });
  attempt([&] {
    if (opened != nullptr) other.world.allocator.close_shared(opened);
  });
  world.allocator.deallocate(ptr);
  return failed;
}

class SharingCallFails : public testing::TestWithParam<DeviceCall> {};

TEST_P(SharingCallFails, AndNothingStaysOpen) {
  const DeviceCall call = GetParam();
  std::uint64_t injected = 0;
  for (std::uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE(fmt::format("{} number {}", to_string(call), nth));
    World world(checked(), "heap:pages,page_size_mb:2");
    OtherProcess other;
    for (World* each : {&world, &other.world}) {
      each->device->set_faults({{.call = call, .nth = nth, .out_of_memory = false, .code = 999}});
    }
    share_open_and_close(world, other);
    const std::uint64_t here = world.device->faults_injected() + other.world.device->faults_injected();
    injected += here;
    for (World* each : {&world, &other.world}) each->device->set_faults({});
    EXPECT_FALSE(share_open_and_close(world, other));  // and closes the rest
    EXPECT_EQ(other.world.device->live_mappings(), 0u);
    world.allocator.empty_cache();
    EXPECT_EQ(world.device->used_bytes(), 0u);
    if (here == 0 || HasFailure()) break;
  }
  EXPECT_GT(injected, 0u);
}

INSTANTIATE_TEST_SUITE_P(OfTheDriver, SharingCallFails,
                         testing::Values(DeviceCall::export_handle, DeviceCall::import_handle, DeviceCall::reserve,
                                         DeviceCall::map, DeviceCall::set_access, DeviceCall::unmap,
                                         DeviceCall::release, DeviceCall::unreserve, DeviceCall::synchronize),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace cachalot
