// fork(): the child may not use what it inherits, is told so, and ends as any process; the parent goes on.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/host_memory.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/cub_scratch.h"
#include "cachalot/guard.h"
#include "cachalot/leak_detector.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/pool_set.h"
#include "cachalot/simulated_device.h"
#include "cachalot/slot_pool.h"
#include "cachalot/tensor_pool.h"
#include "tests/allocator/testing.h"
#include "tests/process_life/forked_child.h"
#include "tests/process_life/tensors.h"
#include "tests/sanitizers.h"

namespace cachalot {
namespace {

constexpr bool kChildrenMayStartThreads = !kThreadSanitizer;

using testing::Ends;
using testing::status_of_child;

Stream stream_of(std::uintptr_t value) { return reinterpret_cast<Stream>(value); }

std::shared_ptr<Device> small_device() { return std::make_shared<SimulatedDevice>(World::config_of(4 * kGiB)); }

template <typename Call>
void expect_refused(const char* name, Call&& call) {
  try {
    call();
    ADD_FAILURE() << name << " is not refused in a forked child";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("fork"), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find("CUDA does not work in a forked child"), std::string::npos) << name << ": " << message;
    EXPECT_NE(message.find(std::to_string(getpid())), std::string::npos) << name << ": " << message;
  }
}

// It can be refilled in the process in which it was made.
class PartOfThisProcess final : private HostReserve::Part {
 public:
  PartOfThisProcess() { join(); }
  ~PartOfThisProcess() { leave(); }
  static void make_the_reserve_short() { note_shortage(); }

 private:
  bool refill() noexcept override { return getpid() == process_; }
  const pid_t process_ = getpid();
};

TEST(ForkedChild, RefillsNoPartOfTheReserveThatItInherited) {
  const PartOfThisProcess inherited;
  const auto refills = [] {
    const PartOfThisProcess own;
    PartOfThisProcess::make_the_reserve_short();
    HostReserve::require();
    EXPECT_FALSE(HostReserve::is_short());
  };
  EXPECT_EQ(status_of_child([&] {
              refills();
              EXPECT_EQ(status_of_child(refills), 0) << "the child of the child";
            }),
            0);
  refills();
}

struct SilentTracker final : SegmentTracker {
  void on_segment(const Change& /*change*/) noexcept override {}
};

struct NamedCall {
  const char* name;
  std::function<void(CachingAllocator&, void*)> call;
};

// All that may be called of an allocator, except for frees.
const std::vector<NamedCall>& allocator_calls() {
  static const std::vector<NamedCall> calls = {
      {"allocate", [](CachingAllocator& a, void*) { a.allocate(512); }},
      {"allocate of a large one", [](CachingAllocator& a, void*) { a.allocate(64 << 20, 0, stream_of(7)); }},
      {"allocate with options", [](CachingAllocator& a, void*) { a.allocate(512, 0, nullptr, {.contiguous = true}); }},
      {"record_stream", [](CachingAllocator& a, void* p) { a.record_stream(p, stream_of(9)); }},
      {"empty_cache", [](CachingAllocator& a, void*) { a.empty_cache(); }},
      {"empty_cache of a device", [](CachingAllocator& a, void*) { a.empty_cache(0); }},
      {"drain_thread_caches", [](CachingAllocator& a, void*) { a.drain_thread_caches(); }},
      {"device", [](CachingAllocator& a, void*) { a.device(0); }},
      {"memory_allocated", [](CachingAllocator& a, void*) { a.memory_allocated(); }},
      {"memory_reserved", [](CachingAllocator& a, void*) { a.memory_reserved(); }},
      {"memory_stats", [](CachingAllocator& a, void*) { a.memory_stats(); }},
      {"fragmentation", [](CachingAllocator& a, void*) { a.fragmentation(); }},
      {"snapshot", [](CachingAllocator& a, void*) { a.snapshot(); }},
      {"reset_peak_stats", [](CachingAllocator& a, void*) { a.reset_peak_stats(); }},
      {"largest_available", [](CachingAllocator& a, void*) { a.largest_available(); }},
      {"base_allocation", [](CachingAllocator& a, void* p) { a.base_allocation(p); }},
      {"requested_size", [](CachingAllocator& a, void* p) { a.requested_size(p); }},
      {"allocated_size", [](CachingAllocator& a, void* p) { a.allocated_size(p); }},
      {"device_of", [](CachingAllocator& a, void* p) { a.device_of(p); }},
      {"allocate_plain_beside", [](CachingAllocator& a, void* p) { a.allocate_plain_beside(p); }},
      {"handle_count", [](CachingAllocator& a, void* p) { a.handle_count(p); }},
      {"share", [](CachingAllocator& a, void* p) { a.share(p); }},
      {"open_shared", [](CachingAllocator& a, void*) { a.open_shared({}); }},
      {"close_shared", [](CachingAllocator& a, void* p) { a.close_shared(p); }},
      {"enable_peer_access", [](CachingAllocator& a, void*) { a.enable_peer_access(0, 0); }},
      {"configure", [](CachingAllocator& a, void*) { a.configure("max_split_size_mb:64"); }},
      {"configure with options", [](CachingAllocator& a, void*) { a.configure(Options{}); }},
      {"options", [](CachingAllocator& a, void*) { a.options(); }},
      {"set_memory_fraction", [](CachingAllocator& a, void*) { a.set_memory_fraction(0.5); }},
      {"memory_fraction", [](CachingAllocator& a, void*) { a.memory_fraction(); }},
      {"set_limit", [](CachingAllocator& a, void*) { a.set_limit({}); }},
      {"set_soft_limit", [](CachingAllocator& a, void*) { a.set_soft_limit({}, nullptr); }},
      {"limit_figures", [](CachingAllocator& a, void*) { a.limit_figures(); }},
      {"trim", [](CachingAllocator& a, void*) { a.trim(0); }},
      {"reserve", [](CachingAllocator& a, void*) { a.reserve(1); }},
      {"set_caching_enabled", [](CachingAllocator& a, void*) { a.set_caching_enabled(false); }},
      {"add_out_of_memory_observer", [](CachingAllocator& a, void*) { a.add_out_of_memory_observer({}); }},
      {"add_free_memory_callback", [](CachingAllocator& a, void*) { a.add_free_memory_callback({}); }},
      {"add_change_tracker", [](CachingAllocator& a, void*) { a.add_change_tracker({}); }},
      {"add_segment_tracker",
       [](CachingAllocator& a, void*) { a.add_segment_tracker(std::make_shared<SilentTracker>()); }},
      {"record_history", [](CachingAllocator& a, void*) { a.record_history({}); }},
      {"history_enabled", [](CachingAllocator& a, void*) { a.history_enabled(); }},
      {"create_or_retain_pool",
       [](CachingAllocator& a, void*) {
         a.create_or_retain_pool(0, {1, 1});
       }},
      {"begin_allocate_to_pool",
       [](CachingAllocator& a, void*) {
         a.begin_allocate_to_pool(0, {1, 1}, {}, RedirectFor::capture);
       }},
      {"pool_use_count",
       [](CachingAllocator& a, void*) {
         a.pool_use_count(0, {1, 1});
       }},
      {"pool_has_exactly",
       [](CachingAllocator& a, void*) {
         a.pool_has_exactly(0, {1, 1}, {});
       }},
      {"checkpoint_pool",
       [](CachingAllocator& a, void*) {
         a.checkpoint_pool(0, {1, 1});
       }},
      {"begin_tagged", [](CachingAllocator& a, void*) { a.begin_tagged("tag"); }},
      {"release_physical", [](CachingAllocator& a, void*) { a.release_physical("tag"); }},
      {"restore_physical", [](CachingAllocator& a, void*) { a.restore_physical("tag"); }},
      {"set_guard_handler", [](CachingAllocator& a, void*) { AllocatorGuard(a).set_handler({}); }},
      {"guard_reports", [](CachingAllocator& a, void*) { AllocatorGuard(a).reports(); }},
      {"check_guard", [](CachingAllocator& a, void*) { AllocatorGuard(a).check(); }},
      {"guard_quarantine_bytes", [](CachingAllocator& a, void*) { AllocatorGuard(a).quarantine_bytes(); }},
      {"validate", [](CachingAllocator& a, void*) { static_cast<void>(a.validate()); }},
      {"metadata_bytes", [](CachingAllocator& a, void*) { a.metadata_bytes(); }},
  };
  return calls;
}

void expect_all_refused(CachingAllocator& allocator, void* live) {
  for (const NamedCall& one : allocator_calls()) {
    expect_refused(one.name, [&] { one.call(allocator, live); });
  }
}

class Fork : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Heaps, Fork,
                         ::testing::Values("", "heap:pages", "heap:pages,thread_cache:False", "thread_cache:True",
                                           "guard:True", "heap:pages,guard:True"));

TEST_P(Fork, TheChildIsRefusedEverythingByNameAndTheParentGoesOn) {
  World world(4 * kGiB, GetParam());
  void* const small = world.allocate(1000);
  void* const large = world.allocate(30 << 20);
  void* const freed = world.allocate(5000);
  world.allocator.deallocate(freed);  // so that there is a cached block
  const std::size_t allocated = world.allocated();
  ASSERT_GT(allocated, std::size_t{30} << 20);
  const int status = status_of_child([&] {
    expect_all_refused(world.allocator, small);
    expect_all_refused(world.allocator, large);  // a second time is no other than the first
    if (kChildrenMayStartThreads) {
      std::thread([&] { expect_refused("allocate in a thread", [&] { world.allocate(5000); }); }).join();
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(world.allocated(), allocated);
  if (!world.allocator.options().guard) {
    EXPECT_EQ(world.allocate(5000), freed) << "the parent's cache is as it was";
  }
  EXPECT_EQ(world.allocator.validate(), "");
}

TEST_P(Fork, FreesInTheChildDoNothing) {
  World world(4 * kGiB, GetParam());
  void* const live = world.allocate(1000);
  const int status = status_of_child([&] {
    world.allocator.deallocate(live);
    world.allocator.deallocate(live);
    world.allocator.deallocate(live, 1000, 0, nullptr);
    world.allocator.deallocate(nullptr);
    Allocation(live, Deallocate{&world.allocator}).reset();
    world.allocator.end_allocate_to_pool(0, {1, 1});
    world.allocator.release_pool(0, {1, 1});
  });
  EXPECT_EQ(status, 0);
  world.allocator.deallocate(live);
  world.allocator.empty_cache();  // and the guard's quarantine
  EXPECT_EQ(world.allocated(), 0u);
}

TEST_P(Fork, TheChildMayEndByExitWithAllItsDestructors) {
  struct Everything {
    explicit Everything(const char* options)
        : device(small_device()),
          allocator(std::make_shared<CachingAllocator>(std::vector{device}, parse_guarded(options), guard_if_built())),
          memory(allocate_owned(*allocator, 1 << 20, 0, nullptr)),
          pool(allocator, kSpec, {.initial_slots = 4}),
          tensor(pool.acquire()) {}
    std::shared_ptr<Device> device;
    std::shared_ptr<CachingAllocator> allocator;
    Allocation memory;
    TensorPool pool;
    PooledTensor tensor;
  };
  auto everything = std::make_unique<Everything>(GetParam());
  const auto device = std::static_pointer_cast<SimulatedDevice>(everything->device);
  const std::uint64_t frees = device->count(DeviceCall::free) + device->count(DeviceCall::release);
  static std::unique_ptr<Everything> at_exit;  // of the child
  const int status = status_of_child(
      [&] {
        everything.reset();
        EXPECT_EQ(device->count(DeviceCall::free) + device->count(DeviceCall::release), frees)
            << "the device must not be touched";
        at_exit = std::make_unique<Everything>("");  // the child's own, which ends with it
      },
      Ends::by_exit);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(everything->pool.stats().live, 1u);
  EXPECT_EQ(everything->allocator->validate(), "");
}

TEST_P(Fork, TheChildMayHaveAnAllocatorOfItsOwnAndSoMayItsChild) {
  World world(4 * kGiB, GetParam());
  void* const parents = world.allocate(1000);
  const int status = status_of_child([&] {
    World own(4 * kGiB, GetParam());
    void* const p = own.allocate(1000);
    if (kChildrenMayStartThreads) std::thread([&] { own.allocator.deallocate(own.allocate(5000)); }).join();
    EXPECT_EQ(own.allocator.validate(), "");
    const int childs = status_of_child([&] {
      expect_all_refused(own.allocator, p);
      expect_all_refused(world.allocator, parents);
      World third(4 * kGiB, GetParam());
      third.allocator.deallocate(third.allocate(1000));
    });
    EXPECT_EQ(childs, 0);
    own.allocator.deallocate(p);
    own.allocator.empty_cache();  // and the guard's quarantine
    EXPECT_EQ(own.allocated(), 0u);
    expect_all_refused(world.allocator, parents);
  });
  EXPECT_EQ(status, 0);
}

// Threads of the parent hold the detectors' locks now and then: no child may wait for one.
TEST(ForkOfLeakDetectors, TheChildIsRefusedWhoeverHeldTheLocks) {
  World world(4 * kGiB);
  LeakDetector detector(world.allocator);
  AllocationTrack track(world.allocator);
  std::atomic<bool> enough = false;
  std::vector<std::thread> threads;
  if (!kSanitized) {  // a sanitizer's own locks are waited for in a child
    threads.emplace_back([&] {
      while (!enough) world.allocator.deallocate(world.allocate(1000));
    });
    threads.emplace_back([&] {
      while (!enough) to_string(detector.report()), to_string(track.report());
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(status_of_child([&] {
                expect_refused("step", [&] { detector.step(); });
                expect_refused("leaks", [&] { detector.leaks(); });
                expect_refused("report", [&] { detector.report(); });
                expect_refused("report of a track", [&] { track.report(); });
                track.stop();
              }),
              0);
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  detector.step();
  EXPECT_EQ(detector.report().iterations, 1u);
}

TEST(ForkOfPools, TheChildIsRefusedAndDropsWhatItInherits) {
  const auto allocator = std::make_shared<CachingAllocator>(std::vector{small_device()});
  TensorPool pool(allocator, kSpec, {.initial_slots = 4});
  auto set = std::make_unique<PoolSet>(allocator, std::size_t{1} << 30);
  std::optional<PooledTensor> tensor = pool.acquire();
  std::optional<PooledTensor> of_set = set->acquire(kSpec);
  pool.acquire().release();  // a hot one
  const int status = status_of_child([&] {
    expect_refused("acquire", [&] { pool.acquire(); });
    expect_refused("try_acquire", [&] { pool.try_acquire(); });
    expect_refused("acquire_for", [&] { pool.acquire_for(std::chrono::seconds(1)); });
    expect_refused("trim", [&] { pool.trim(); });
    expect_refused("stats", [&] { pool.stats(); });
    expect_refused("share_with", [&] { tensor->share_with(stream_of(5)); });
    expect_refused("acquire of a set", [&] { set->acquire(kSpec); });
    expect_refused("trim of a set", [&] { set->trim(); });
    expect_refused("stats of a set", [&] { set->stats(); });
    expect_refused("a new pool", [&] { TensorPool(*allocator, kSpec); });
    tensor.reset();
    of_set.reset();
    set.reset();
    if (kChildrenMayStartThreads) {
      std::thread([&] { expect_refused("acquire in a thread", [&] { pool.acquire(); }); }).join();
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pool.stats().live, 1u);
  tensor.reset();
  of_set.reset();
  EXPECT_EQ(pool.validate(), "");
  EXPECT_EQ(set->validate(), "");
}

TEST(ForkOfPools, PinnedMemoryAndSlotPoolsAreRefusedAsWell) {
  const std::shared_ptr<Device> device = small_device();
  CachingAllocator allocator({device});
  PinnedHostAllocator pinned(device);
  void* const buffer = pinned.allocate(1 << 20);
  SlotPool slots(allocator, 100, 64);
  CubScratch scratch(allocator);
  const int status = status_of_child([&] {
    expect_refused("pinned allocate", [&] { pinned.allocate(1 << 20); });
    expect_refused("pinned record_stream", [&] { pinned.record_stream(buffer, nullptr); });
    expect_refused("pinned empty_cache", [&] { pinned.empty_cache(); });
    pinned.deallocate(buffer);
    expect_refused("counters", [&] { slots.counters(); });
    expect_refused("scratch", [&] { scratch.reserve(1 << 20); });
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(slots.counters().taken, 0u);
  EXPECT_EQ(pinned.memory_allocated(), std::size_t{1} << 20);
}

// Each lock is held by some thread at some fork; a child that waited for one would be ended by its alarm.
TEST_P(Fork, TheChildWaitsForNoLockThatAnotherThreadHeld) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's own malloc waits in a child for locks that threads held";
  World world(4 * kGiB, GetParam());
  TensorPool pool(world.allocator, kSpec, {.max_slots = 64});
  PoolSet set(world.allocator, 64 * kMiB);
  void* const live = world.allocate(1000);
  const std::shared_ptr<Device> briefs = small_device();
  const std::shared_ptr<Device> childs = small_device();
  CachingAllocator({childs}).allocate(1000);  // it has addresses now: their lock is the simulated devices' own
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  const auto run = [&](auto work) {
    threads.emplace_back([&, work] {
      for (std::size_t i = 1; !done; ++i) work(i);
    });
  };
  run([&](std::size_t i) { world.allocator.deallocate(world.allocate(i % 7000 + 1, stream_of(i % 3))); });
  run([&](std::size_t i) {
    world.allocator.deallocate(world.allocate((i % 40 + 1) << 19));
    if (i % 8 == 0) world.allocator.empty_cache();
  });
  run([&](std::size_t i) {
    world.allocator.snapshot();
    world.allocator.configure(i % 2 == 0 ? "max_split_size_mb:64" : "max_split_size_mb:128");
  });
  run([&](std::size_t i) {
    const PooledTensor one = pool.acquire(stream_of(i % 2 + 1));
    const PooledTensor other = set.acquire({{static_cast<std::int64_t>(i % 5 + 1), 1000}, DType::float32});
    if (i % 16 == 0) pool.trim();
  });
  run([&](std::size_t) { std::thread([&] { pool.acquire(); }).join(); });
  run([&](std::size_t) {
    CachingAllocator brief({briefs});
    brief.deallocate(brief.allocate(1000));
  });
  constexpr int kChildren = 60;
  for (int i = 0; i < kChildren && !::testing::Test::HasFailure(); ++i) {
    const int status = status_of_child([&] {
      expect_all_refused(world.allocator, live);
      world.allocator.deallocate(live);
      expect_refused("acquire", [&] { pool.acquire(); });
      expect_refused("stats", [&] { pool.stats(); });
      expect_refused("acquire of a set", [&] { set.acquire(kSpec); });
      CachingAllocator own({childs});
      own.deallocate(own.allocate(1000));
    });
    EXPECT_EQ(status, 0) << "child " << i << (WIFSIGNALED(status) ? " was ended by a signal" : "");
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  world.allocator.deallocate(live);
  EXPECT_EQ(world.allocator.validate(), "");
}

}  // namespace
}  // namespace cachalot
