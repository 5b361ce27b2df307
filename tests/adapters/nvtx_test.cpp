// The notifications of an allocator to a tool that reads NVTX.
#include "cachalot/nvtx.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/adapters/nvtx_tool.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

using Heard = std::vector<std::string>;

class NvtxTest : public testing::Test {
 protected:
  void SetUp() override {
    take_heard();
    forget_handles();
  }
};

TEST_F(NvtxTest, SlowPathsAreRangesInADomainOfTheirOwn) {
  World world(64 * kMiB);
  {
    const Nvtx nvtx(world.allocator, {.memory = false, .name = "mine"});
    EXPECT_TRUE(nvtx.has_tool());
    EXPECT_EQ(take_heard(), Heard{"domain mine"});
    world.allocator.deallocate(world.allocate(1000));
    EXPECT_EQ(take_heard(), (Heard{"+grow 1000", "-"}));
    world.allocator.deallocate(world.allocate(1000));
    EXPECT_EQ(take_heard(), Heard{}) << "a hit is no slow path";
    world.allocator.empty_cache();
    EXPECT_EQ(take_heard(), (Heard{"+empty_cache 0", "-"}));
    out_of_memory([&] { world.allocate(kGiB); });
    EXPECT_EQ(take_heard(), (Heard{"+grow 1073741824", "out of memory 1073741824", "-"}));
  }
  EXPECT_EQ(take_heard(), Heard{"end of domain"});
  world.allocator.deallocate(world.allocate(1000));
  out_of_memory([&] { world.allocate(kGiB); });
  EXPECT_EQ(take_heard(), Heard{});
}

TEST_F(NvtxTest, SegmentsAreHeapsAndAllocationsAreNamedRegions) {
  World world;
  {
    Nvtx nvtx(world.allocator, {.ranges = false});
    take_heard();
    void* const weights = world.allocate(1000);
    EXPECT_EQ(take_heard(), (Heard{"heap #1 of 2097152, segment of device 0", "region #2 of 1000 in heap #1"}));
    nvtx.name(weights, "weights");
    EXPECT_EQ(take_heard(), Heard{"region #2 is weights"});
    nvtx.name(after(weights, 1), "no allocation");
    EXPECT_EQ(take_heard(), Heard{});
    void* const more = world.allocate(30 * kMiB);
    EXPECT_EQ(take_heard(), (Heard{"heap #3 of 31457280, segment of device 0", "region #4 of 31457280 in heap #3"}));
    world.allocator.deallocate(weights);
    EXPECT_EQ(take_heard(), Heard{"end of region #2"});
    world.allocator.empty_cache();
    EXPECT_EQ(take_heard(), Heard{"end of heap #1"});
    world.allocator.deallocate(more);
    take_heard();
    EXPECT_NE(world.allocate(100), nullptr);
    take_heard();
  }
  EXPECT_EQ(take_heard(), (Heard{"end of region #6", "end of heap #3", "end of heap #5", "end of domain"}));
  EXPECT_NE(world.allocate(100), nullptr);
  EXPECT_EQ(take_heard(), Heard{});
}

TEST_F(NvtxTest, ARegionEndsWhenOtherStreamsAreDoneWithIt) {
  World world;
  const Nvtx nvtx(world.allocator, {.ranges = false});
  const Stream other = world.device->new_stream();
  void* const memory = world.allocate(1000);
  take_heard();
  world.launch(other);
  world.allocator.record_stream(memory, other);
  world.allocator.deallocate(memory);
  EXPECT_EQ(take_heard(), Heard{});
  world.pass(2000);
  world.allocator.deallocate(world.allocate(5000));
  EXPECT_EQ(take_heard().front(), "end of region #2");
}

TEST_F(NvtxTest, OnThePageHeapAllocationsAreRegionsOfTheProcess) {
  World world(kGiB, "heap:pages");
  const Nvtx nvtx(world.allocator, {.ranges = false});
  take_heard();
  void* const memory = world.allocate(30 * kMiB);
  EXPECT_EQ(take_heard(), Heard{"region #1 of 31457280 in heap #0"});
  world.allocator.deallocate(memory);
  EXPECT_EQ(take_heard(), Heard{"end of region #1"});
}

}  // namespace
}  // namespace cachalot
