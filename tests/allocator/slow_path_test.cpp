// While one thread is inside the driver, getting memory, others go on; and a second one in need of the same waits for it
// instead of getting as much again.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tests/allocator/forwarding_device.h"
#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

class GatedDevice;

struct Nothing {
  explicit Nothing(const GatedDevice&) {}
};

// While it is shut, calls that give memory stay inside.
class GatedDevice final : public ForwardingDevice<GatedDevice, Nothing> {
 public:
  using ForwardingDevice::ForwardingDevice;

  std::optional<Address> malloc(std::size_t bytes) override {
    pass();
    return ForwardingDevice::malloc(bytes);
  }
  std::optional<MemoryHandle> create(std::size_t bytes) override {
    pass();
    return ForwardingDevice::create(bytes);
  }

  void shut() { set(true); }
  void open() { set(false); }
  int entered() const { return entered_; }
  void wait_until_entered(int count) const {
    while (entered_ < count) std::this_thread::yield();
  }

 private:
  void pass() {
    std::unique_lock lock(mutex_);
    ++entered_;
    opened_.wait(lock, [this] { return !is_shut_; });
  }
  void set(bool shut) {
    const std::lock_guard lock(mutex_);
    is_shut_ = shut;
    opened_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_shut_ = false;
  std::atomic<int> entered_ = 0;
};

class SlowPath : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<SimulatedDevice> simulated = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  std::shared_ptr<GatedDevice> device = std::make_shared<GatedDevice>(simulated);
  CachingAllocator allocator{{device}, parse_options(GetParam())};
  const Stream other = simulated->new_stream();

  // A thread that waits for a lock permanently would keep the program from ending.
  static void finish(std::future<void>& work) {
    if (work.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return work.get();
    std::fprintf(stderr, "a thread waits for a lock that is held across a call to the device\n");
    std::abort();
  }
};
INSTANTIATE_TEST_SUITE_P(Heaps, SlowPath, testing::Values("heap:segments", "heap:pages"),
                         [](const auto& heap) { return std::string(heap.param).substr(std::string("heap:").size()); });

TEST_P(SlowPath, OthersGoOnWhileAThreadIsInsideTheDriver) {
  void* const live = allocator.allocate(1000);
  allocator.deallocate(allocator.allocate(1000, 0, other));
  const int before = device->entered();

  device->shut();
  void* large = nullptr;
  auto growing = std::async(std::launch::async, [&] { large = allocator.allocate(100 * kMiB); });
  device->wait_until_entered(before + 1);
  auto going_on = std::async(std::launch::async, [&] {
    for (int i = 0; i < 1000; ++i) allocator.deallocate(allocator.allocate(1000, 0, other));
    allocator.deallocate(live);
    allocator.deallocate(allocator.allocate(1000));
    EXPECT_EQ(allocator.validate(), "");
    EXPECT_EQ(allocator.memory_allocated(), 0u);
  });
  finish(going_on);
  EXPECT_EQ(large, nullptr);
  device->open();
  finish(growing);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(allocator.validate(), "");
}

TEST_P(SlowPath, TwoThreadsInNeedOfTheSameGrowOnce) {
  device->shut();
  auto first = std::async(std::launch::async, [&] { allocator.allocate(1000); });
  device->wait_until_entered(1);
  std::atomic<bool> asks = false;
  auto second = std::async(std::launch::async, [&] {
    asks = true;
    allocator.allocate(2000);
  });
  while (!asks) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time enough to get into the driver, if it were to
  EXPECT_EQ(device->entered(), 1);
  device->open();
  finish(first);
  finish(second);
  EXPECT_EQ(device->entered(), 1);
  EXPECT_EQ(allocator.memory_allocated(), 1024u + 2048u);
  EXPECT_EQ(allocator.validate(), "");
}

}  // namespace
}  // namespace cachalot
