// Stream safety, at random: work is launched on every stream a block may be used on, and the simulated device's hazard
// checker refuses memory whose last use is not ordered before its next owner.
// CACHALOT_TEST_SCALE multiplies the number of operations; 50 makes it the 10 million of the full run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

constexpr std::size_t kStreams = 4;

std::size_t operations() {
  const char* text = std::getenv("CACHALOT_TEST_SCALE");
  return static_cast<std::size_t>(200'000 * (text == nullptr ? 1.0 : std::strtod(text, nullptr)));
}

std::shared_ptr<SimulatedDevice> watched_device(std::size_t bytes = 512 * kMiB) {
  SimulatedDevice::Config config;
  config.memory_bytes = bytes;
  config.check_hazards = true;
  return std::make_shared<SimulatedDevice>(config);  // with the latencies of a real one: the host runs ahead of it
}

struct LiveBlock {
  void* ptr;
  std::size_t bytes;
  std::size_t home;                    // its stream
  std::array<bool, kStreams> used_on;  // announced by record_stream
  bool tagged;                         // sleeps when the tag does
  std::uint64_t content;               // at its start
};

// A program that plays by the rules: it uses a block on its own stream, and on others once they were announced.
class Player {
 public:
  Player(std::uint64_t seed, std::string_view options, std::size_t device_bytes)
      : random_(seed),
        device_(watched_device(device_bytes)),
        allocator_({device_}, parse_options(options)),
        may_sleep_(options.find("heap:pages") != std::string_view::npos) {
    for (Stream& stream : streams_) stream = device_->stream();
  }

  void play_one() {
    const std::uint64_t dice = below(1000);
    if (dice < 300 || live_.empty()) return allocate();
    if (dice < 600 || live_.size() > 200) return deallocate();
    if (dice < 850) return use(live_[below(live_.size())]);
    if (dice < 930) return announce(live_[below(live_.size())]);
    if (dice < 990) return device_->advance(static_cast<std::int64_t>(below(50'000)));
    if (dice < 994) return device_->stream_synchronize(streams_[below(kStreams)]);
    if (dice < 998) return order_streams();
    if (dice < 999 && may_sleep_) return asleep_ ? wake() : sleep();
    allocator_.empty_cache();
  }

  void free_all() {
    while (!live_.empty()) deallocate();
  }

  const CachingAllocator& allocator() const { return allocator_; }
  const SimulatedDevice& device() const { return *device_; }
  bool may_sleep() const { return may_sleep_; }
  std::size_t times_woken() const { return times_woken_; }

 private:
  std::size_t below(std::size_t bound) { return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_); }

  void allocate() {
    const auto bytes = static_cast<std::size_t>(std::exp2(std::uniform_real_distribution<double>(0, 25)(random_)));
    const std::size_t home = below(kStreams);
    const bool tagged = may_sleep_ && !asleep_ && below(4) == 0;
    void* ptr = nullptr;
    if (tagged) allocator_.begin_tagged(kTag);
    try {
      ptr = allocator_.allocate(bytes, 0, streams_[home]);
    } catch (const OutOfMemory&) {
    }
    if (tagged) allocator_.end_tagged(kTag);
    if (ptr == nullptr) return deallocate();
    device_->handed_out(reinterpret_cast<Address>(ptr), bytes, streams_[home]);
    live_.push_back({ptr, bytes, home, {}, tagged, 0});
    live_.back().used_on[home] = true;
    use(live_.back());
    if (tagged) mark(live_.back());
  }

  static std::size_t marked_bytes(const LiveBlock& block) { return std::min(block.bytes, sizeof(block.content)); }
  void mark(LiveBlock& block) {
    std::memcpy(&block.content, &next_mark_, marked_bytes(block));
    ++next_mark_;
    device_->copy_from_host(reinterpret_cast<Address>(block.ptr), &block.content, marked_bytes(block));
  }
  void expect_mark(const LiveBlock& block) {
    std::uint64_t content = 0;
    device_->copy_to_host(&content, reinterpret_cast<Address>(block.ptr), marked_bytes(block));
    EXPECT_EQ(content, block.content);
  }

  template <typename Visit>
  void for_each_tagged(Visit&& visit) {
    for (LiveBlock& block : live_) {
      if (block.tagged) visit(block, reinterpret_cast<Address>(block.ptr));
    }
  }

  // The program has done with all that sleeps, and may use it again when it wakes.
  void sleep() {
    if (std::none_of(live_.begin(), live_.end(), [](const LiveBlock& block) { return block.tagged; })) return;
    saved_ = below(2) == 0;
    for_each_tagged([&](LiveBlock&, Address address) { device_->given_back(address); });
    allocator_.release_physical(kTag, saved_);
    asleep_ = true;
  }

  void wake() {
    try {
      allocator_.restore_physical(kTag);
    } catch (const OutOfMemory&) {
      return deallocate();
    }
    asleep_ = false;
    ++times_woken_;
    for_each_tagged([&](LiveBlock& block, Address address) {
      device_->handed_out(address, block.bytes, streams_[block.home]);
      saved_ ? expect_mark(block) : mark(block);
    });
  }

  void use(const LiveBlock& block) {
    if (asleep_ && block.tagged) return;
    std::size_t stream = below(kStreams);
    if (!block.used_on[stream]) stream = block.home;
    device_->launch(streams_[stream], static_cast<std::int64_t>(below(100'000)),
                    {{reinterpret_cast<Address>(block.ptr), block.bytes}});
  }

  // Another stream may use what the home stream has written once it waits for it.
  void announce(LiveBlock& block) {
    if (asleep_ && block.tagged) return;
    const std::size_t other = below(kStreams);
    wait_for(block.home, other);
    allocator_.record_stream(block.ptr, streams_[other]);
    block.used_on[other] = true;
    device_->launch(streams_[other], static_cast<std::int64_t>(below(300'000)),
                    {{reinterpret_cast<Address>(block.ptr), block.bytes}});
  }

  void order_streams() { wait_for(below(kStreams), below(kStreams)); }

  void wait_for(std::size_t earlier, std::size_t later) {
    if (earlier == later) return;
    const Event event = device_->event_create();
    device_->event_record(event, streams_[earlier]);
    device_->stream_wait(streams_[later], event);
    device_->event_destroy(event);
  }

  void deallocate() {
    if (live_.empty()) return;
    const std::size_t which = below(live_.size());
    const LiveBlock block = live_[which];
    live_[which] = live_.back();
    live_.pop_back();
    if (!asleep_ || !block.tagged) device_->given_back(reinterpret_cast<Address>(block.ptr));
    allocator_.deallocate(block.ptr);
  }

  static constexpr const char* kTag = "sleepers";

  std::mt19937_64 random_;
  std::shared_ptr<SimulatedDevice> device_;
  CachingAllocator allocator_;
  const bool may_sleep_;
  bool asleep_ = false;
  bool saved_ = false;
  std::size_t times_woken_ = 0;
  std::uint64_t next_mark_ = 1;
  std::array<Stream, kStreams> streams_{};
  std::vector<LiveBlock> live_;
};

// Plays, and looks at all tables every `period` operations.
void expect_no_hazard(std::string_view options, std::size_t device_bytes, std::size_t count, std::size_t period) {
  const std::uint64_t seed = 4242;
  SCOPED_TRACE(fmt::format("seed {}, {}", seed, options));
  Player player(seed, options, device_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    try {
      player.play_one();
    } catch (const HazardError& hazard) {
      player.free_all();
      FAIL() << "operation " << i << ": " << hazard.what();
    }
    if (i % period == 0) {
      ASSERT_EQ(player.allocator().validate(), "") << "after operation " << i;
    }
  }
  player.free_all();
  EXPECT_EQ(player.allocator().validate(), "");
  EXPECT_EQ(player.allocator().memory_allocated(), 0u);
  // The run was not an empty one: frees waited for other streams, and memory ran out.
  EXPECT_GT(player.device().count(DeviceCall::event_record), count / 100);
  EXPECT_GT(player.allocator().memory_stats().num_alloc_retries, 0);
  if (player.may_sleep()) {
    EXPECT_GT(player.times_woken(), 0u);
  }
}

class RandomStreamPrograms : public testing::TestWithParam<const char*> {};

TEST_P(RandomStreamPrograms, HaveNoHazard) { expect_no_hazard(GetParam(), 512 * kMiB, operations(), 50'000); }
TEST_P(RandomStreamPrograms, LeaveSoundTablesAfterEveryOperation) {
  expect_no_hazard(GetParam(), 96 * kMiB, std::max<std::size_t>(operations() / 100, 2000), 1);
}

INSTANTIATE_TEST_SUITE_P(Heaps, RandomStreamPrograms,
                         testing::Values("", "heap:pages", "heap:pages,cross_stream:completed",
                                         "heap:pages,cross_stream:off,page_size_mb:2"));

TEST(TheHazardChecker, CatchesAUseThatWasNotAnnounced) {
  const auto device = watched_device();
  CachingAllocator allocator({device});
  const Stream home = device->stream();
  const Stream other = device->stream();
  void* ptr = allocator.allocate(1000, 0, home);
  const auto address = reinterpret_cast<Address>(ptr);
  device->handed_out(address, 1000, home);
  device->launch(other, 1'000'000, {{address, 1000}});  // no record_stream
  device->given_back(address);
  allocator.deallocate(ptr);
  ASSERT_EQ(allocator.allocate(1000, 0, home), ptr);
  EXPECT_THROW(device->handed_out(address, 1000, home), HazardError);
  allocator.deallocate(ptr);
}

}  // namespace
}  // namespace cachalot
