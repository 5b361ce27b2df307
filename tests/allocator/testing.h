// The common parts of the allocator's tests: a small world to test in, and functions for the checked figures.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"
#include "tests/allocator/guard_if_built.h"

namespace cachalot {

// One simulated device whose calls take no time, and an allocator over it. Its books are checked when it goes.
struct World {
  explicit World(std::size_t device_bytes = 64 * kGiB, std::string_view options = "")
      : World(config_of(device_bytes), options) {}
  explicit World(const SimulatedDevice::Config& config, std::string_view options = "")
      : World({std::make_shared<SimulatedDevice>(config)}, options) {}
  // Over several devices, of which it uses the first.
  World(const std::vector<std::shared_ptr<SimulatedDevice>>& devices, std::string_view options)
      : device(devices.front()),
        allocator({devices.begin(), devices.end()}, parse_guarded(options), guard_if_built()) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { EXPECT_EQ(allocator.validate(), ""); }

  static SimulatedDevice::Config config_of(std::size_t device_bytes) {
    SimulatedDevice::Config config;
    config.memory_bytes = device_bytes;
    config.latency = LatencyModel::none();
    return config;
  }

  void* allocate(std::size_t bytes, Stream stream = nullptr) { return allocator.allocate(bytes, 0, stream); }
  // Work on `stream` that takes so long, as a kernel that uses the memory would.
  void launch(Stream stream, std::int64_t microseconds = 1000) { device->launch(stream, microseconds * 1000); }
  void pass(std::int64_t microseconds) { device->advance(microseconds * 1000); }

  std::size_t reserved() const { return allocator.memory_reserved(); }
  std::size_t allocated() const { return allocator.memory_allocated(); }
  std::size_t active() const { return static_cast<std::size_t>(allocator.memory_stats().active_bytes.all.current); }
  std::int64_t segments() const { return allocator.memory_stats().segment.all.current; }
  std::uint64_t count(DeviceCall call) const { return device->count(call); }

  std::shared_ptr<SimulatedDevice> device;
  CachingAllocator allocator;
};

// A world with two devices.
struct TwoDevices {
  explicit TwoDevices(std::size_t device_bytes = kGiB, std::string_view options = "")
      : device{make(0, device_bytes), make(1, device_bytes)},
        allocator({device[0], device[1]}, parse_guarded(options), guard_if_built()) {}
  TwoDevices(const TwoDevices&) = delete;
  TwoDevices& operator=(const TwoDevices&) = delete;
  ~TwoDevices() { EXPECT_EQ(allocator.validate(), ""); }

  static std::shared_ptr<SimulatedDevice> make(int index, std::size_t device_bytes) {
    SimulatedDevice::Config config = World::config_of(device_bytes);
    config.index = index;
    return std::make_shared<SimulatedDevice>(config);
  }

  std::array<std::shared_ptr<SimulatedDevice>, 2> device;
  CachingAllocator allocator;
};

inline Address address(const void* ptr) { return reinterpret_cast<Address>(ptr); }
inline void* after(void* ptr, std::size_t bytes) { return static_cast<char*>(ptr) + bytes; }

// Returns the offset of an allocation in its segment.
inline std::size_t offset_in_segment(const CachingAllocator& allocator, void* ptr) {
  return address(ptr) - address(allocator.base_allocation(ptr).base);
}

// Returns the message of an allocation that must fail; the test fails if nothing is thrown.
template <typename Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception was thrown: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}
inline std::string refusal(const std::function<void()>& action) { return message_of<InvalidArgument>(action); }
inline std::string out_of_memory(const std::function<void()>& action) { return message_of<OutOfMemory>(action); }

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
#define EXPECT_CONTAINS(text, part) EXPECT_PRED2(::cachalot::contains, text, part)

// PyTorch's use_mem_pool: the calling thread's allocations go to the pool while the object lives.
class InPool {
 public:
  InPool(CachingAllocator& allocator, PoolId pool, int device = 0)
      : allocator_(allocator), pool_(pool), device_(device) {
    const auto self = std::this_thread::get_id();
    allocator_.begin_allocate_to_pool(
        device_, pool_, [self](Stream) { return std::this_thread::get_id() == self; }, RedirectFor::thread);
  }
  ~InPool() {
    allocator_.end_allocate_to_pool(device_, pool_);
    allocator_.release_pool(device_, pool_);
  }
  InPool(const InPool&) = delete;
  InPool& operator=(const InPool&) = delete;

 private:
  CachingAllocator& allocator_;
  PoolId pool_;
  int device_;
};

// A graph capture of one stream, which allocates to the pool, as torch.cuda.graph does it.
class Capture {
 public:
  Capture(World& world, Stream stream, PoolId pool) : world_(world), stream_(stream), pool_(pool) {
    const std::uint64_t id = world_.device->begin_capture(stream);
    world_.allocator.begin_allocate_to_pool(
        0, pool, [device = world_.device, id](Stream asked) { return device->capture_status(asked).id == id; },
        RedirectFor::capture);
  }
  // A capture that a forbidden call has spoilt is a failed test.
  ~Capture() {
    EXPECT_NO_THROW(world_.device->end_capture(stream_));
    world_.allocator.end_allocate_to_pool(0, pool_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  World& world_;
  Stream stream_;
  PoolId pool_;
};

// Runs on another thread, to its end.
inline void on_another_thread(const std::function<void()>& action) { std::thread(action).join(); }

// A thread that does what it is told, and lives on.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  ~Worker() {
    stop_ = true;
    thread_.join();
  }
  void run(std::function<void()> work) {
    work_ = std::move(work);
    busy_ = true;
    while (busy_) std::this_thread::yield();
  }

 private:
  void serve() {
    while (!stop_) {
      if (busy_) {
        work_();
        busy_ = false;
      }
      std::this_thread::yield();
    }
  }
  std::function<void()> work_;
  std::atomic<bool> busy_{false}, stop_{false};
  std::thread thread_;
};

// A segment's blocks as text, in address order: "live 512 | waiting 1024 | free 2095616".
inline std::string blocks_of(const SegmentSnapshot& segment) {
  std::string text;
  for (const BlockSnapshot& block : segment.blocks) {
    if (!text.empty()) text += " | ";
    text += block.state == BlockSnapshot::State::active_allocated      ? "live "
            : block.state == BlockSnapshot::State::active_pending_free ? "waiting "
                                                                       : "free ";
    text += std::to_string(block.size);
  }
  return text;
}

// All segments' blocks, one segment a line; of one pool, or of everything.
inline std::string picture(CachingAllocator& allocator, PoolId pool = {}) {
  std::string text;
  for (const SegmentSnapshot& segment : allocator.snapshot(pool, /*include_traces=*/false).segments) {
    text += blocks_of(segment) + "\n";
  }
  return text;
}

}  // namespace cachalot
