// Containers of std::pmr in pinned host memory.
#include "cachalot/pinned_host_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

struct PmrWorld {
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  PinnedHostAllocator host{device};
  PinnedMemoryResource pinned{host};
};

TEST(PinnedMemoryResource, HoldsAContainersElements) {
  PmrWorld world;
  {
    std::pmr::vector<double> values(1000, 2.5, &world.pinned);
    values.push_back(3);
    EXPECT_EQ(values.front(), 2.5);
    EXPECT_GE(world.host.memory_allocated(), 1001 * sizeof(double));
    std::pmr::map<int, std::pmr::string> names(&world.pinned);
    names[1] = "a text that is too long for the place inside of a string";
    EXPECT_EQ(names[1].get_allocator().resource(), &world.pinned);
  }
  EXPECT_EQ(world.host.memory_allocated(), 0u);
  EXPECT_EQ(world.host.cache().validate(), "");
}

TEST(PinnedMemoryResource, AContainerMayGoWhileARecordedStreamUsesIt) {
  PmrWorld world;
  const Stream stream = world.device->new_stream();
  const void* memory = nullptr;
  {
    const std::pmr::vector<char> batch(5000, &world.pinned);
    memory = batch.data();
    world.device->launch(stream, 1'000'000);
    world.host.record_stream(const_cast<char*>(batch.data()), stream);
  }
  {
    const std::pmr::vector<char> next(5000, &world.pinned);
    EXPECT_NE(next.data(), memory);
  }
  world.device->advance(2'000'000);
  const std::pmr::vector<char> later(5000, &world.pinned);
  EXPECT_EQ(later.data(), memory);
}

TEST(PinnedMemoryResource, GivesMemoryForNoBytesToo) {
  PmrWorld world;
  void* const memory = world.pinned.allocate(0);
  EXPECT_NE(memory, nullptr);
  world.pinned.deallocate(memory, 0);
}

TEST(PinnedMemoryResource, RefusesAnAlignmentThatItsMemoryDoesNotHave) {
  PmrWorld world;
  void* const memory = world.pinned.allocate(1, 512);
  EXPECT_EQ(address(memory) % 512, 0u);
  world.pinned.deallocate(memory, 1, 512);
  EXPECT_EQ(refusal([&] { std::ignore = world.pinned.allocate(1, 1024); }),
            "an alignment of 1024: pinned memory is aligned to powers of two up to 512");
  const volatile std::size_t no_power = 24;  // Clang refuses the constant
  EXPECT_CONTAINS(refusal([&] { std::ignore = world.pinned.allocate(1, no_power); }), "an alignment of 24");
  EXPECT_EQ(world.host.memory_allocated(), 0u);
}

TEST(PinnedMemoryResource, ThrowsABadAllocWhenTheHostHasNoMoreMemory) {
  PmrWorld world;
  world.device->set_faults({{.call = DeviceCall::host_malloc, .nth = 1, .repeat = true}});
  EXPECT_CONTAINS(out_of_memory([&] { std::pmr::vector<char>(100, &world.pinned); }), "out of pinned host memory");
}

TEST(PinnedMemoryResource, EqualsThoseOfTheSameAllocator) {
  PmrWorld world;
  PmrWorld elsewhere;
  EXPECT_EQ(world.pinned, PinnedMemoryResource(world.host));
  EXPECT_NE(world.pinned, elsewhere.pinned);
  EXPECT_NE(world.pinned, *std::pmr::new_delete_resource());
}

TEST(PinnedMemoryResource, AContainerMayOutliveTheAllocator) {
  auto host = std::make_unique<PinnedHostAllocator>(std::make_shared<SimulatedDevice>(World::config_of(kGiB)));
  PinnedMemoryResource pinned(*host);
  {
    const std::pmr::vector<char> values(100, &pinned);
    host.reset();
  }
  EXPECT_CONTAINS(refusal([&] { std::ignore = pinned.allocate(1); }), "was destroyed");
}

}  // namespace
}  // namespace cachalot
