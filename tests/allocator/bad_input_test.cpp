// Callers' mistakes and devices' failures: each is reported as what it is, and the books stay balanced.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/allocator/testing.h"
#include "tests/reference/accounting.h"

namespace cachalot {
namespace {

constexpr int kIllegalAddress = 700;  // cudaErrorIllegalAddress

// Does the refused action, and checks that nothing changed. Returns the refusal's words.
template <typename Error = InvalidArgument>
std::string refused_without_trace(World& world, const std::function<void()>& action) {
  const DeviceStats before = world.allocator.memory_stats();
  const std::string blocks = picture(world.allocator);
  const std::string message = message_of<Error>(action);
  EXPECT_EQ(difference(world.allocator.memory_stats(), before), "");
  EXPECT_EQ(picture(world.allocator), blocks);
  EXPECT_EQ(world.allocator.validate(), "");
  return message;
}

std::string hex(const void* ptr) { return fmt::format("{:#x}", address(ptr)); }

// ---- Devices

TEST(AnAllocatorWithoutDevices, SaysThatNoGpuWasFoundAndWhatToDo) {
  CachingAllocator allocator({});
  const std::string message = message_of<InvalidArgument>([&] { allocator.allocate(kMiB); });
  EXPECT_CONTAINS(message, "device 0: no GPU was found");
  EXPECT_CONTAINS(message, "SimulatedDevice");
  EXPECT_CONTAINS(message, "cachalot simulate");
  EXPECT_EQ(message_of<InvalidArgument>([&] { allocator.device(); }), message);
  EXPECT_EQ(allocator.device_count(), 0);
}

// ---- Pointers

TEST(APointerThatIsNotOurs, IsRefusedByName) {
  World world;
  void* ptr = world.allocate(5000);
  int host = 0;
  std::vector<void*> wrong = {&host,
                              reinterpret_cast<void*>(0x1000),
                              after(ptr, 512),
                              after(ptr, 1),
                              after(ptr, 2 * kMiB),
                              after(ptr, 40 * kMiB),
                              reinterpret_cast<void*>(std::numeric_limits<std::uintptr_t>::max())};
  for (void* each : wrong) {
    EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.deallocate(each); }), hex(each));
    EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.deallocate(each, 5000, 0, nullptr); }),
                    hex(each));
    EXPECT_CONTAINS(
        refused_without_trace(world, [&] { world.allocator.record_stream(each, world.device->new_stream()); }),
        hex(each));
    EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.base_allocation(each); }), hex(each));
    EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.requested_size(each); }), hex(each));
    EXPECT_EQ(world.allocator.device_of(each), -1);
  }
  world.allocator.deallocate(ptr);
}

TEST(ADoubleFree, IsRefused) {
  World world;
  void* ptr = world.allocate(5000);
  world.allocate(5000);
  world.allocator.deallocate(ptr);
  EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.deallocate(ptr); }), hex(ptr));
  EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.record_stream(ptr, world.device->new_stream()); }),
                  hex(ptr));
}

TEST(ADoubleFree, IsRefusedWhileTheFirstWaitsForAStream) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(5000);
  world.allocator.record_stream(ptr, other);
  world.launch(other);
  world.allocator.deallocate(ptr);
  EXPECT_CONTAINS(refused_without_trace(world, [&] { world.allocator.deallocate(ptr); }), hex(ptr));
}

TEST(ADoubleFree, IsRefusedAfterAMergeAndAfterTheSegmentIsGone) {
  World world;
  void* low = world.allocate(5000);
  void* high = world.allocate(5000);
  world.allocator.deallocate(high);
  world.allocator.deallocate(low);
  refused_without_trace(world, [&] { world.allocator.deallocate(high); });
  refused_without_trace(world, [&] { world.allocator.deallocate(low); });
  world.allocator.empty_cache();
  refused_without_trace(world, [&] { world.allocator.deallocate(high); });
  refused_without_trace(world, [&] { world.allocator.deallocate(low); });
}

TEST(ADoubleFree, InsideABlockHandedOutSinceIsRefused) {
  World world;
  world.allocate(512);
  void* low = world.allocate(1024);
  void* high = world.allocate(1024);
  world.allocator.deallocate(low);
  world.allocator.deallocate(high);
  ASSERT_EQ(world.allocate(2048), low);  // covers both
  refused_without_trace(world, [&] { world.allocator.deallocate(high); });
  EXPECT_EQ(world.allocator.device_of(high), -1);
}

// ---- Sized frees

TEST(ASizedFree, RefusesAnotherSize) {
  World world;
  void* ptr = world.allocate(5000);
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{4999}, std::size_t{5001}, std::size_t{5120}, 2 * kMiB}) {
    const std::string message =
        refused_without_trace(world, [&] { world.allocator.deallocate(ptr, wrong, 0, nullptr); });
    EXPECT_CONTAINS(message, std::to_string(wrong));
    EXPECT_CONTAINS(message, "5000");
  }
  world.allocator.deallocate(ptr, 5000, 0, nullptr);
}

TEST(ASizedFree, RefusesAnotherDevice) {
  TwoDevices two;
  void* ptr = two.allocator.allocate(5000, 1);
  const DeviceStats before = two.allocator.memory_stats(1);
  EXPECT_NE(refusal([&] { two.allocator.deallocate(ptr, 5000, 0, nullptr); }), "");
  EXPECT_CONTAINS(refusal([&] { two.allocator.deallocate(ptr, 5000, 2, nullptr); }), "2");
  EXPECT_EQ(difference(two.allocator.memory_stats(1), before), "");
  two.allocator.deallocate(ptr, 5000, 1, nullptr);
}

// ---- Devices

TEST(AnUnknownDevice, IsRefusedEverywhere) {
  World world;
  CachingAllocator& allocator = world.allocator;
  for (const int wrong : {1, 7, -2}) {
    const std::vector<std::function<void()>> calls = {
        [&] { allocator.allocate(1000, wrong); },
        [&] { allocator.allocate(0, wrong); },
        [&] { allocator.empty_cache(wrong); },
        [&] { allocator.memory_allocated(wrong); },
        [&] { allocator.memory_reserved(wrong); },
        [&] { allocator.max_memory_allocated(wrong); },
        [&] { allocator.max_memory_reserved(wrong); },
        [&] { allocator.memory_stats(wrong); },
        [&] { allocator.fragmentation(wrong); },
        [&] { allocator.reset_peak_stats(wrong); },
        [&] { allocator.reset_accumulated_stats(wrong); },
        [&] { allocator.largest_available(wrong); },
        [&] { allocator.set_memory_fraction(0.5, wrong); },
        [&] { allocator.memory_fraction(wrong); },
        [&] { allocator.set_limit({}, wrong); },
        [&] { allocator.set_soft_limit({}, nullptr, wrong); },
        [&] { allocator.limit_figures(wrong); },
        [&] { allocator.trim(0, wrong); },
        [&] { allocator.reserve(1, wrong); },
        [&] {
          allocator.create_or_retain_pool(wrong, {0, 1});
        },
        [&] {
          allocator.begin_allocate_to_pool(
              wrong, {0, 1}, [](Stream) { return true; }, RedirectFor::thread);
        },
        [&] {
          allocator.end_allocate_to_pool(wrong, {0, 1});
        },
        [&] {
          allocator.release_pool(wrong, {0, 1});
        },
        [&] {
          allocator.set_no_split(wrong, {0, 1});
        },
        [&] {
          allocator.set_use_on_oom(wrong, {0, 1}, true);
        },
        [&] {
          allocator.checkpoint_pool(wrong, {0, 1});
        },
    };
    for (std::size_t i = 0; i < calls.size(); ++i) {
      SCOPED_TRACE(fmt::format("call {} with device {}", i, wrong));
      EXPECT_CONTAINS(refused_without_trace(world, calls[i]), std::to_string(wrong));
    }
  }
  EXPECT_CONTAINS(refused_without_trace(world, [&] { allocator.allocate(1000, kAllDevices); }), "-1");
}

TEST(ADeviceInTheWrongPlace, IsRefused) {
  EXPECT_NE(refusal([] { CachingAllocator({TwoDevices::make(1, kGiB)}); }), "");
  EXPECT_NE(refusal([] { CachingAllocator({TwoDevices::make(0, kGiB), TwoDevices::make(0, kGiB)}); }), "");
  EXPECT_NE(refusal([] { CachingAllocator({nullptr}); }), "");
}

// ---- Sizes

TEST(AnExbibyteAndMore, IsOutOfMemoryWithoutAnyAttempt) {
  for (const char* options : {"", "roundup_power2_divisions:4"}) {
    World world(kGiB, options);
    void* cached = world.allocate(32 * kMiB);
    world.allocator.deallocate(cached);
    for (const std::size_t bytes :
         {kMaxRequestBytes, kMaxRequestBytes + 1, std::numeric_limits<std::size_t>::max() / 2,
          std::numeric_limits<std::size_t>::max() - 511, std::numeric_limits<std::size_t>::max()}) {
      const std::string message = refused_without_trace<OutOfMemory>(world, [&] { world.allocate(bytes); });
      EXPECT_CONTAINS(message, "more than 1EB memory");
    }
    EXPECT_EQ(world.count(DeviceCall::malloc), 1u);
    EXPECT_EQ(world.reserved(), 32 * kMiB);  // the cache was not given back for it
  }
}

TEST(JustBelowAnExbibyte, IsAnOrdinaryOutOfMemory) {
  for (const char* options :
       {"", "roundup_power2_divisions:4", "max_split_size_mb:32", "garbage_collection_threshold:0.5"}) {
    World world(kGiB, options);
    world.allocator.set_memory_fraction(0.9);
    EXPECT_THROW(world.allocate(kMaxRequestBytes - 1), OutOfMemory);
    EXPECT_EQ(world.allocator.memory_stats().num_ooms, 1);
    EXPECT_EQ(world.allocator.validate(), "");
    world.allocate(1000);
  }
}

// ---- Figures

TEST(AMemoryFraction, OutsideZeroToOneIsRefused) {
  World world;
  world.allocator.set_memory_fraction(0.5);
  for (const double wrong : {-0.1, 1.1, -1e-9, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_NE(refused_without_trace(world, [&] { world.allocator.set_memory_fraction(wrong); }), "");
    EXPECT_EQ(world.allocator.memory_fraction(), 0.5);
  }
  EXPECT_CONTAINS(refusal([&] { world.allocator.set_memory_fraction(1.5); }), "1.5");
}

TEST(AHistoryWithContexts, NeedsARecorder) {
  World world;
  EXPECT_NE(
      refusal([&] { world.allocator.record_history({.max_entries = 10, .contexts = HistoryOptions::Contexts::all}); }),
      "");
  EXPECT_FALSE(world.allocator.history_enabled());
  world.allocate(1000);
}

// ---- Failing devices

TEST(ADeviceError, IsNeitherSuccessNorOutOfMemory) {
  World world;
  world.device->set_faults({{.call = DeviceCall::malloc, .out_of_memory = false, .code = kIllegalAddress}});
  const DeviceStats before = world.allocator.memory_stats();
  try {
    world.allocate(1000);
    FAIL() << "the device failed";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), kIllegalAddress);
    EXPECT_CONTAINS(error.what(), "700");
  }
  EXPECT_EQ(difference(world.allocator.memory_stats(), before), "");
  world.allocate(1000);
}

TEST(ADeviceError, OnTheRetryIsNotOutOfMemoryEither) {
  World world(60 * kMiB);
  world.allocator.deallocate(world.allocate(40 * kMiB));
  world.device->set_faults({{.call = DeviceCall::malloc, .nth = 2, .out_of_memory = false, .code = kIllegalAddress}});
  EXPECT_THROW(world.allocate(50 * kMiB), CudaError);
  EXPECT_EQ(world.allocator.memory_stats().num_ooms, 0);
  EXPECT_EQ(world.allocator.validate(), "");
  world.allocate(50 * kMiB);
}

TEST(ADeviceError, AtAFreeLeavesTheAllocationLive) {
  World world;
  const Stream other = world.device->new_stream();
  void* ptr = world.allocate(1000);
  world.allocator.record_stream(ptr, other);
  world.device->set_faults({{.call = DeviceCall::event_record, .out_of_memory = false, .code = kIllegalAddress}});
  refused_without_trace<CudaError>(world, [&] { world.allocator.deallocate(ptr); });
  EXPECT_EQ(world.allocator.device_of(ptr), 0);
  world.allocator.deallocate(ptr);
  world.allocator.empty_cache();
  EXPECT_EQ(world.reserved(), 0u);
}

TEST(ADeviceError, AtTheSecondOfTwoEventsLeavesTheAllocationLive) {
  World world;
  void* ptr = world.allocate(1000);
  for (int i = 0; i < 2; ++i) world.allocator.record_stream(ptr, world.device->new_stream());
  world.device->set_faults(
      {{.call = DeviceCall::event_record, .nth = 2, .out_of_memory = false, .code = kIllegalAddress}});
  refused_without_trace<CudaError>(world, [&] { world.allocator.deallocate(ptr); });
  world.allocator.deallocate(ptr);
  void* again = world.allocate(1000);
  EXPECT_EQ(again, ptr);
}

TEST(ADeviceError, WhileEmptyingTheCacheKeepsTheBooks) {
  World world;
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(world.allocate(30 * kMiB));
  for (void* ptr : blocks) world.allocator.deallocate(ptr);
  world.device->set_faults({{.call = DeviceCall::free, .nth = 2, .out_of_memory = false, .code = kIllegalAddress}});
  EXPECT_THROW(world.allocator.empty_cache(), CudaError);
  EXPECT_EQ(world.allocator.validate(), "");
  EXPECT_EQ(world.reserved(), world.device->used_bytes());
  world.allocator.empty_cache();
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(ADeviceError, WithCachingOffIsItselfToo) {
  World world;
  world.allocator.set_caching_enabled(false);
  world.device->set_faults({{.call = DeviceCall::malloc, .out_of_memory = false, .code = kIllegalAddress}});
  EXPECT_THROW(world.allocate(1000), CudaError);
  void* ptr = world.allocate(1000);
  world.device->set_faults({{.call = DeviceCall::free, .out_of_memory = false, .code = kIllegalAddress}});
  EXPECT_THROW(world.allocator.deallocate(ptr), CudaError);
  world.allocator.deallocate(ptr);
  EXPECT_EQ(world.device->used_bytes(), 0u);
}

TEST(TheAllocatorsEnd, DoesNotThrowOverAFailingDevice) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  {
    CachingAllocator allocator({device});
    allocator.allocate(1000);
    allocator.allocate(30 * kMiB);
    device->set_faults({{.out_of_memory = false, .code = kIllegalAddress, .repeat = true}});
  }
  EXPECT_GT(device->faults_injected(), 0u);
}

// One of everything that calls the device: growing, events, reclaiming, waiting, giving back, running out.
class Scenario {
 public:
  explicit Scenario(World& world)
      : world_(world), other_(world.device->new_stream()), third_(world.device->new_stream()) {}

  // Every step may fail: by the device's fault, which must be of this kind, or, after an earlier fault has changed the
  // held memory, because there is no memory left. Allocated memory stays in `live`.
  template <typename Error>
  void play() {
    const auto step = [&](const std::function<void()>& action) {
      const std::int64_t allocations = world_.allocator.memory_stats().allocation.all.current;
      const std::uint64_t faults = world_.device->faults_injected();
      const std::size_t held = live.size();
      std::string unexpected;
      bool completed = false;
      try {
        action();
        completed = true;
      } catch (const std::exception& error) {
        const bool is_fault = world_.device->faults_injected() != faults;
        const bool is_expected = is_fault ? dynamic_cast<const Error*>(&error) != nullptr
                                          : dynamic_cast<const OutOfMemory*>(&error) != nullptr;
        if (!is_expected) unexpected = error.what();
      }
      EXPECT_EQ(unexpected, "");
      if (!completed) {
        EXPECT_EQ(world_.allocator.memory_stats().allocation.all.current, allocations);
        EXPECT_EQ(live.size(), held);
      }
      EXPECT_EQ(world_.allocator.validate(), "");
      EXPECT_EQ(difference(only_current(world_.allocator.memory_stats()), recount(world_.allocator.snapshot(), 0)), "");
      EXPECT_EQ(world_.reserved(), world_.device->used_bytes());
    };
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB, 12 * kMiB, 14 * kMiB, 2 * kMiB}) {
      step([&] { allocate(bytes); });
    }
    for (int i = 0; i < 2; ++i) {
      step([&] { free_used_elsewhere(); });
      step([&] { allocate(1000); });
    }
    world_.pass(500);
    step([&] { allocate(5000); });
    step([&] { free_first(); });
    step([&] { allocate(22 * kMiB); });  // does not fit: everything pending is waited for, the cache given back
    step([&] { world_.allocator.empty_cache(); });
    step([&] { allocate(4 * kMiB); });
    step([&] { free_used_elsewhere(); });
    step([&] { world_.allocator.empty_cache(); });
  }

  void recover() {
    while (!live.empty()) free_first();
    world_.allocator.empty_cache();
    EXPECT_EQ(world_.reserved(), 0u);
    EXPECT_EQ(world_.device->used_bytes(), 0u);
    EXPECT_EQ(world_.active(), 0u);
    void* ptr = world_.allocate(50 * kMiB);
    world_.allocator.deallocate(ptr);
    EXPECT_EQ(world_.allocator.validate(), "");
  }

  std::vector<void*> live;

 private:
  void allocate(std::size_t bytes) { live.push_back(world_.allocate(bytes)); }

  void free_first() {
    if (live.empty()) return;
    world_.allocator.deallocate(live.front());
    live.erase(live.begin());
  }

  void free_used_elsewhere() {
    if (live.empty()) return;
    for (const Stream stream : {other_, third_}) {
      world_.allocator.record_stream(live.front(), stream);
      world_.launch(stream, 300);
    }
    free_first();
  }

  World& world_;
  Stream other_, third_;
};

TEST(TheNthDeviceCall, MayFailForWhateverN) {
  std::uint64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE(fmt::format("call {} fails", n));
    World world(60 * kMiB);
    Scenario scenario(world);
    world.device->set_faults({{.nth = n, .out_of_memory = false, .code = kIllegalAddress}});
    scenario.play<CudaError>();
    const bool failed = world.device->faults_injected() > 0;
    world.device->set_faults({});
    scenario.recover();
    if (!failed) break;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(n, 20u);  // the scenario calls the device that often
}

TEST(TheNthDeviceCall, MayRunOutOfMemoryForWhateverN) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(fmt::format("malloc {} finds no memory", n));
    World world(60 * kMiB);
    Scenario scenario(world);
    world.device->set_faults({{.call = DeviceCall::malloc, .nth = n}});
    scenario.play<OutOfMemory>();
    const bool failed = world.device->faults_injected() > 0;
    world.device->set_faults({});
    scenario.recover();
    if (!failed) break;
    if (testing::Test::HasFailure()) break;
    ASSERT_LT(n, 100u);
  }
}

TEST(EveryDeviceCallFromTheNthOn, MayFailForWhateverN) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(fmt::format("call {} and all later ones fail", n));
    World world(60 * kMiB);
    Scenario scenario(world);
    world.device->set_faults({{.nth = n, .out_of_memory = false, .code = kIllegalAddress, .repeat = true}});
    scenario.play<CudaError>();
    const bool failed = world.device->faults_injected() > 0;
    world.device->set_faults({});
    scenario.recover();
    if (!failed) break;
    if (testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace cachalot
