// Tests of memory that gives way: the tags and their order, and that nothing of them is lost, under faults and hazards, too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/pages/testing.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

EvictOptions saved(int priority = 0) { return {priority, {Keep::pinned, {}}, {}}; }
EvictOptions lost(std::function<void(int)> refill = {}) { return {0, {}, std::move(refill)}; }

// A device of 64 MiB, and tags of which each has one block of 16 MiB with its name in it.
struct Tags : World {
  explicit Tags(std::string_view options = "heap:pages") : World(checked(64 * kMiB), options) {}

  void* add(const std::string& tag, const EvictOptions& options = saved()) {
    const Region region(*this, tag);
    void* ptr = allocate(16 * kMiB);
    device->copy_from_host(address(ptr), tag.data(), tag.size());
    allocator.make_evictable(tag, options);
    return ptr;
  }
  std::string name_at(const void* ptr, std::size_t length) const {
    std::string name(length, '?');
    device->copy_to_host(name.data(), address(ptr), length);
    return name;
  }
  // Returns the tags that are asleep: "a, c".
  std::string asleep() const {
    std::string names;
    for (const TagMemory& tag : allocator.tags()) {
      if (tag.is_asleep) names += (names.empty() ? "" : ", ") + tag.tag;
    }
    return names;
  }
};

// --- the tags that give way, and their order ----------------------------------------------------------------------------------------------------

TEST(MemoryThatGivesWay, GivesWayBeforeARequestFails) {
  Tags world;
  const void* ptr = world.add("a");
  world.allocate(40 * kMiB);
  EXPECT_EQ(world.asleep(), "");
  world.allocate(16 * kMiB);
  EXPECT_EQ(world.asleep(), "a");
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0);
  EXPECT_THROW(world.allocator.ensure("a"), OutOfMemory);
  EXPECT_EQ(world.allocator.tags().front().holds, 0u);
  world.allocator.empty_cache();
  EXPECT_EQ(world.asleep(), "a") << ptr;
}

TEST(MemoryThatGivesWay, ComesBackWithItsContentAtItsAddress) {
  Tags world;
  const void* ptr = world.add("a");
  void* large = world.allocate(60 * kMiB);
  EXPECT_EQ(world.asleep(), "a");
  world.allocator.deallocate(large);
  EXPECT_FALSE(world.allocator.ensure("a"));
  EXPECT_EQ(world.asleep(), "");
  EXPECT_EQ(world.name_at(ptr, 1), "a");
  world.allocator.let_go("a");
}

TEST(MemoryThatGivesWay, IsTheLeastImportantFirstAndOfEqualsTheOneEnsuredLongestAgo) {
  Tags world;
  world.add("a", saved(7));
  world.add("b");
  world.add("c");
  world.allocator.ensure("b");
  world.allocator.let_go("b");
  world.allocate(30 * kMiB);
  EXPECT_EQ(world.asleep(), "c");
  world.allocate(16 * kMiB);
  EXPECT_EQ(world.asleep(), "b, c");
  world.allocate(16 * kMiB);
  EXPECT_EQ(world.asleep(), "a, b, c");
  EXPECT_THROW(world.allocate(16 * kMiB), OutOfMemory);
}

TEST(MemoryThatGivesWay, StaysWhileItIsHeldOrARegionIsOpen) {
  Tags world;
  world.add("held");
  world.add("open");
  world.add("free");
  world.allocator.ensure("held");
  world.allocator.ensure("held");
  {
    const Region region(world, "open");
    on_another_thread([&] { world.allocate(20 * kMiB); });
    EXPECT_EQ(world.asleep(), "free");
    on_another_thread([&] { EXPECT_THROW(world.allocate(20 * kMiB), OutOfMemory); });
  }
  world.allocator.let_go("held");
  EXPECT_EQ(world.allocator.tags()[1].holds, 1u);
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.asleep(), "free, open");
  world.allocator.let_go("held");
  world.allocate(20 * kMiB);
  EXPECT_EQ(world.asleep(), "free, held, open");
}

TEST(MemoryThatGivesWay, MakesRoomForMoreImportantTagsThatComeBack) {
  Tags world;
  const void* a = world.add("a", saved(1));
  world.allocator.release_physical("a", /*save=*/true);
  world.add("b");
  world.add("c");
  world.allocate(30 * kMiB);
  world.allocator.ensure("a");
  EXPECT_EQ(world.asleep(), "b");
  EXPECT_EQ(world.name_at(a, 1), "a");
  world.allocator.let_go("a");
  world.allocator.ensure("b");  // c is its equal, a is more important
  EXPECT_EQ(world.asleep(), "c");
  EXPECT_THROW(world.allocator.ensure("c"), OutOfMemory) << "b is held";
}

TEST(MemoryThatGivesWay, MakesRoomForARestoreAndForMemoryThatIsNotCached) {
  Tags world;
  world.add("a");
  {
    const Region region(world, "asleep");
    world.allocate(40 * kMiB);
  }
  world.allocator.release_physical("asleep");
  world.add("b");
  world.add("c");
  world.allocator.restore_physical("asleep");
  EXPECT_EQ(world.asleep(), "a, b");
  world.allocator.set_caching_enabled(false);
  void* ptr = world.allocate(16 * kMiB);
  EXPECT_EQ(world.asleep(), "a, b, c");
  world.allocator.deallocate(ptr);
}

TEST(MemoryThatGivesWay, GivesWayToALimitAsWell) {
  Tags world;
  world.allocator.set_limit(MemoryLimit::parse("40MiB"));
  world.add("a");
  world.allocate(30 * kMiB);
  EXPECT_EQ(world.asleep(), "a");
}

TEST(MemoryThatGivesWay, DoesNotWhileAGraphIsCaptured) {
  Tags world;
  world.add("a");
  const Capture capture(world, world.device->new_stream(), {1, 0});
  EXPECT_THROW(world.allocate(60 * kMiB), OutOfMemory);
  EXPECT_EQ(world.allocator.give_way(kMiB), 0u);
  EXPECT_EQ(world.asleep(), "");
  EXPECT_FALSE(world.allocator.ensure("a")) << "it is awake";
  world.allocator.let_go("a");
}

TEST(MemoryThatGivesWay, NoLongerDoesOnceItIsResident) {
  Tags world;
  world.add("a");
  world.allocator.make_resident("a");
  EXPECT_THROW(world.allocate(60 * kMiB), OutOfMemory);
  EXPECT_FALSE(world.allocator.tags().front().is_evictable);
}

TEST(MemoryThatGivesWay, StaysWhereItCannotBeSavedAndTheNextGivesWay) {
  Tags world;
  world.add("a");
  world.add("b", {1, {}, {}});
  world.device->set_faults({{.call = DeviceCall::host_malloc, .repeat = true}});
  world.allocate(40 * kMiB);
  EXPECT_EQ(world.asleep(), "b");
}

TEST(MemoryThatGivesWay, GivesWayToOthersAfterTheCache) {
  Tags world;
  world.add("a");
  world.add("b");
  world.allocator.deallocate(world.allocate(20 * kMiB));
  EXPECT_GE(world.allocator.give_way(10 * kMiB), 10 * kMiB);
  EXPECT_EQ(world.asleep(), "");
  EXPECT_GE(world.allocator.give_way(30 * kMiB), 30 * kMiB);
  EXPECT_NE(world.asleep(), "");
  world.allocator.give_way(64 * kMiB);
  EXPECT_EQ(world.reserved(), 0u);
  EXPECT_EQ(world.allocator.give_way(1), 0u);
}

// --- content that is made again ---------------------------------------------------------------------------------------------

TEST(LostContent, IsMadeAgainOnce) {
  Tags world;
  void* ptr = nullptr;
  int calls = 0;
  ptr = world.add("old", lost([&](int device) {
                    EXPECT_EQ(device, 0);
                    world.device->copy_from_host(address(ptr), "new", 3);
                    ++calls;
                  }));
  EXPECT_FALSE(world.allocator.ensure("old"));
  world.allocator.let_go("old");
  EXPECT_EQ(calls, 0);
  world.allocator.give_way(64 * kMiB);
  EXPECT_FALSE(world.allocator.ensure("old"));
  EXPECT_FALSE(world.allocator.ensure("old"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(world.name_at(ptr, 3), "new");
}

TEST(LostContent, IsMadeAgainAfterAnExceptionToo) {
  Tags world;
  int calls = 0;
  world.add("a", lost([&](int) {
              if (calls++ == 0) throw std::runtime_error("not yet");
            }));
  world.allocator.give_way(64 * kMiB);
  EXPECT_EQ(message_of<std::runtime_error>([&] { world.allocator.ensure("a"); }), "not yet");
  EXPECT_EQ(world.allocator.tags().front().holds, 0u);
  EXPECT_FALSE(world.allocator.ensure("a"));
  EXPECT_EQ(calls, 2);
}

TEST(LostContent, IsToldOnceWithoutAFunctionThatMakesItAgain) {
  Tags world;
  world.add("a", {});
  world.allocator.give_way(64 * kMiB);
  EXPECT_TRUE(world.allocator.ensure("a"));
  EXPECT_FALSE(world.allocator.ensure("a"));
}

TEST(LostContent, MayNeedOtherTagsToBeMadeAgain) {
  Tags world;
  world.add("source");
  world.add("copy", lost([&](int) {
              world.allocator.ensure("source");
              world.allocator.let_go("source");
            }));
  world.allocator.give_way(64 * kMiB);
  EXPECT_EQ(world.asleep(), "copy, source");
  world.allocator.ensure("copy");
  EXPECT_EQ(world.asleep(), "");
}

TEST(LostContent, IsToldAgainAfterAnotherDeviceHasFailed) {
  TwoDevices world(64 * kMiB, "heap:pages");
  world.allocator.begin_tagged("a");
  for (const int device : {0, 1}) world.allocator.allocate(16 * kMiB, device);
  world.allocator.end_tagged("a");
  world.allocator.make_evictable("a", {});
  for (const int device : {0, 1}) world.allocator.give_way(kMiB, device);
  world.allocator.begin_capture(1);
  EXPECT_CONTAINS(refusal([&] { world.allocator.ensure("a"); }), "a graph is being captured on device 1");
  world.allocator.end_capture(1);
  EXPECT_EQ(world.allocator.tags().front().holds, 0u);
  EXPECT_TRUE(world.allocator.ensure("a"));
  EXPECT_FALSE(world.allocator.ensure("a"));
}

// Each of two threads would make the content of one device while it waits for that of the other.
TEST(LostContent, MayNeedTagsOfOtherDevicesToBeMadeAgain) {
  TwoDevices world(64 * kMiB, "heap:pages");
  std::atomic<int> refills{0};
  const auto refill = [&](int device) {
    ++refills;
    for (int i = 0; i < 50 && refills < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world.allocator.ensure("a", 1 - device);
    world.allocator.let_go("a", 1 - device);
  };
  world.allocator.begin_tagged("a");
  for (const int device : {0, 1}) world.allocator.allocate(16 * kMiB, device);
  world.allocator.end_tagged("a");
  world.allocator.make_evictable("a", lost(refill));
  world.allocator.release_physical("a");
  std::thread first([&] { world.allocator.ensure("a", 0); });
  world.allocator.ensure("a", 1);
  first.join();
  EXPECT_EQ(refills, 2);
}

// --- bad input --------------------------------------------------------------------------------------------------------------

TEST(MemoryThatGivesWay, IsRefusedWithTheRule) {
  Tags world;
  EXPECT_CONTAINS(refusal([&] { world.allocator.make_evictable("", {}); }), "must not be empty");
  EXPECT_CONTAINS(refusal([&] {
                    world.allocator.make_evictable("a", {0, {Keep::file, "/no/such"}, {}});
                  }),
                  "make_evictable: folder is '/no/such'");
  EXPECT_CONTAINS(refusal([&] {
                    world.allocator.make_evictable("a", {0, {Keep::pinned, "/tmp"}, {}});
                  }),
                  "only Keep::file has one");
  EXPECT_CONTAINS(refusal([&] { world.allocator.ensure("b"); }), "no memory was ever tagged 'b'");
  EXPECT_CONTAINS(refusal([&] { world.allocator.make_resident("b"); }), "no memory was ever tagged 'b'");
  world.add("a");
  EXPECT_CONTAINS(refusal([&] { world.allocator.let_go("a"); }), "tag 'a' is not held on device 0");
  Tags segments("heap:segments");
  EXPECT_CONTAINS(refusal([&] { segments.allocator.make_evictable("a", {}); }), "make_evictable needs heap:pages");
}

// --- faults and hazards -----------------------------------------------------------------------------------------------------

// Threads that use tags under holds, and a thread that allocates so much that tags have to give way. The device checks that no
// work touches memory that is away, and the content that each tag has.
TEST(EvictionAmongThreads, TakesNoMemoryFromRunningWork) {
  Tags world;
  std::vector<std::pair<std::string, void*>> tags;
  for (const char* name : {"a", "b", "c"}) tags.emplace_back(name, world.add(name));
  const auto use = [&](std::size_t first) {
    for (std::size_t i = 0; i < scaled(300); ++i) {
      const auto& [name, ptr] = tags[(first + i) % tags.size()];
      try {
        world.allocator.ensure(name);
      } catch (const OutOfMemory&) {
        continue;
      }
      world.device->launch(nullptr, 1000, {{address(ptr), 16 * kMiB}});
      EXPECT_EQ(world.name_at(ptr, 1), name);
      world.allocator.let_go(name);
    }
  };
  const auto press = [&] {
    for (std::size_t i = 0; i < scaled(300); ++i) {
      try {
        world.allocator.deallocate(world.allocate((20 + i % 30) * kMiB));
      } catch (const OutOfMemory&) {
        world.allocator.give_way(kMiB);
      }
    }
  };
  std::thread first(use, 0), second(use, 1), third(press);
  first.join();
  second.join();
  third.join();
  for (const auto& [name, ptr] : tags) {
    world.allocator.ensure(name);
    EXPECT_EQ(world.name_at(ptr, 1), name);
  }
}

// Programs of several threads that use tags under holds, free blocks of them without, put them to sleep, and run out of memory.
class RandomThreads : public testing::TestWithParam<const char*> {
 protected:
  struct Tag {
    std::string name;
    std::shared_mutex use;  // shared by holders; alone for a sleep that the program wants
    std::mutex mutex;       // of the blocks, whose content is the name
    std::vector<void*> blocks;
  };

  RandomThreads() : world_(checked(64 * kMiB), GetParam()) {
    for (Tag& tag : tags_) {
      tag.name = std::string(1, static_cast<char>('a' + (&tag - tags_.data())));
      add_block(tag, kMiB);
      world_.allocator.make_evictable(tag.name, is_kept(tag) ? saved() : lost([&](int) { write(tag); }));
    }
  }

  bool is_kept(const Tag& tag) const { return &tag < &tags_[2]; }
  void write(Tag& tag) {
    const std::lock_guard<std::mutex> lock(tag.mutex);
    for (const void* block : tag.blocks) world_.device->copy_from_host(address(block), tag.name.data(), 1);
  }
  void add_block(Tag& tag, std::size_t bytes) {
    const Region region(world_, tag.name);
    void* const block = world_.allocate(bytes);
    const std::lock_guard<std::mutex> lock(tag.mutex);
    world_.device->copy_from_host(address(block), tag.name.data(), 1);
    tag.blocks.push_back(block);
  }
  void free_block(Tag& tag) {
    std::unique_lock<std::mutex> lock(tag.mutex);
    if (tag.blocks.empty()) return;
    void* const block = tag.blocks.back();
    tag.blocks.pop_back();
    lock.unlock();
    world_.allocator.deallocate(block);
  }
  void use(Tag& tag, std::uint64_t number) {
    world_.allocator.ensure(tag.name);
    if (number % 3 == 0) fails([&] { add_block(tag, (1 + number % 4000) * kKiB); });
    {
      const std::lock_guard<std::mutex> lock(tag.mutex);
      for (const void* block : tag.blocks) {
        char content = '?';
        world_.device->copy_to_host(&content, address(block), 1);
        EXPECT_EQ(content, tag.name.front());
        world_.device->launch(nullptr, 1000, {{address(block), kKiB}});
      }
    }
    world_.allocator.let_go(tag.name);
  }
  void step(Tag& tag, std::uint64_t number) {
    if (number % 8 == 0) return free_block(tag);
    if (number % 8 == 1) return world_.allocator.deallocate(world_.allocate((1 + number % 41) * kMiB));
    if (number % 8 == 2) return static_cast<void>(world_.allocator.give_way((1 + number % 41) * kMiB));
    if (number % 8 == 3) return world_.allocator.empty_cache();
    if (number % 8 == 4) {
      const std::unique_lock<std::shared_mutex> alone(tag.use, std::try_to_lock);
      if (alone) world_.allocator.release_physical(tag.name, is_kept(tag));
      return;
    }
    const std::shared_lock<std::shared_mutex> shared(tag.use, std::try_to_lock);
    if (shared) use(tag, number / 8);
  }
  void run(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < scaled(200); ++i) {
      Tag& tag = tags_[random() % tags_.size()];
      fails([&] { step(tag, random()); });
    }
  }

  World world_;
  std::array<Tag, 4> tags_;
};
INSTANTIATE_TEST_SUITE_P(Heaps, RandomThreads,
                         testing::Values("heap:pages,page_size_mb:2", "heap:pages,page_size_mb:2,guard:True",
                                         "heap:pages,page_size_mb:2,cross_stream:wait,oom_wait:events"));

TEST_P(RandomThreads, LoseNothingAndLeaveNothingBehind) {
  const std::uint64_t seed = seed_or(1);
  std::thread first([&] { run(4 * seed); }), second([&] { run(4 * seed + 1); }), third([&] { run(4 * seed + 2); });
  first.join();
  second.join();
  third.join();
  for (Tag& tag : tags_) {
    use(tag, 1);
    while (!tag.blocks.empty()) free_block(tag);
  }
  world_.allocator.empty_cache();
  world_.allocator.trim(0);
  EXPECT_EQ(world_.device->used_bytes(), 0u);
  EXPECT_EQ(world_.reserved(), 0u);
}

// Random calls, of which the driver refuses some. In the end each tag has its content.
TEST(EvictionUnderFaults, LosesNothing) {
  std::uint64_t injected = 0;
  const std::size_t wanted = scaled(1500);
  for (std::uint64_t seed = seed_or(1); injected < wanted; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Tags world("heap:pages,page_size_mb:2");
    std::vector<std::pair<std::string, void*>> tags;
    for (const char* name : {"a", "b", "c"}) {
      EvictOptions options = saved(static_cast<int>(random() % 2));
      if (random() % 4 == 0) options.sleep = {Keep::file, testing::TempDir()};
      tags.emplace_back(name, world.add(name, options));
    }
    for (int i = 0; i < 40; ++i) {
      const std::string& tag = tags[random() % tags.size()].first;
      world.device->set_faults({{.nth = 1 + random() % 30, .out_of_memory = random() % 3 == 0, .code = 999}});
      switch (random() % 3) {
        case 0:
          if (!fails([&] { world.allocator.ensure(tag); })) world.allocator.let_go(tag);
          break;
        case 1:
          fails([&] { world.allocator.give_way((1 + random() % 40) * kMiB); });
          break;
        default:
          void* ptr = nullptr;
          fails([&] { ptr = world.allocate((1 + random() % 60) * kMiB); });
          world.device->set_faults({});
          if (ptr != nullptr) world.allocator.deallocate(ptr);
      }
      ASSERT_EQ(world.allocator.validate(), "");
    }
    injected += world.device->faults_injected();
    world.device->set_faults({});
    for (const auto& [name, ptr] : tags) {
      world.allocator.ensure(name);
      EXPECT_EQ(world.name_at(ptr, 1), name);
    }
  }
}

}  // namespace
}  // namespace cachalot
