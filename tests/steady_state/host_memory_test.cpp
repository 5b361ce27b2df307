// The host's memory runs out at each place once: a program is played again and again, and each time the next of the
// allocator's calls of operator new fails, or some in a row. Afterwards nothing is lost and the program goes on to its end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/host_memory.h"
#include "cachalot/tensor_pool.h"
#include "tests/allocator/testing.h"
#include "tests/programs/player.h"
#include "tests/programs/random_program.h"
#include "tests/reliability/heaps.h"
#include "tests/sanitizers.h"
#include "tests/steady_state/replaced_new.h"

namespace cachalot {
namespace {

struct Outcome {
  std::string trouble;
  std::size_t calls = 0;  // of operator new
};

Outcome play_without_memory(const Program& program, std::size_t first, std::size_t failures) {
  new_calls = NewCalls{.first_failure = first, .failures = failures};
  Player player(program, {.validate_every = 8,
                          .wrap = [](const auto& device) { return std::make_shared<QuietDevice>(device); },
                          .around = [](bool calls) { new_calls.counting = calls; }});
  std::string trouble;
  for (const Operation& operation : program.operations) {
    trouble = player.step(operation);
    if (!trouble.empty()) {
      trouble = fmt::format("{}: {}", to_string(operation.kind), trouble);
      break;
    }
  }
  const std::size_t calls = new_calls.count;
  new_calls.failures = 0;
  if (trouble.empty()) trouble = player.finish();
  return {trouble, calls};
}

class EveryHostAllocation : public testing::TestWithParam<const char*> {};

TEST_P(EveryHostAllocation, MayFail) {
  constexpr std::size_t kStep = kSanitized ? 16 : 1;  // an exception takes 10 ms there
  constexpr std::size_t kForGood = std::numeric_limits<std::size_t>::max();
  std::size_t plays = 0;
  for (std::uint64_t seed = 1; seed <= scaled(1); ++seed) {
    const Program program = random_play(seed + 1, 150, {.device_mib = {64, 32}, .options = GetParam()});
    for (const std::size_t failures : {std::size_t{1}, std::size_t{2}, kForGood}) {
      for (std::size_t first = 1;; first += kStep) {
        const Outcome outcome = play_without_memory(program, first, failures);
        ++plays;
        ASSERT_EQ(outcome.trouble, "") << "seed " << seed << ", " << failures
                                       << " calls of operator new fail from number " << first << " on\n"
                                       << to_text(program);
        if (outcome.calls < first) break;
      }
    }
  }
  EXPECT_GE(plays, 100u / kStep);
  fmt::print("{} plays\n", plays);
}

INSTANTIATE_TEST_SUITE_P(Heaps, EveryHostAllocation, testing::ValuesIn(kHeaps));

// Each call that fails has changed nothing, whatever others do at the time.
void allocate_and_free(CachingAllocator& allocator, const std::vector<Stream>& streams, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<void*> live;
  live.reserve(256);
  for (int step = 0; step < 3000; ++step) {
    const std::size_t bytes = random() % 4 == 0 ? random() % (16 * kMiB) + 1 : random() % 4096 + 1;
    const Stream stream = streams[random() % streams.size()];
    const std::size_t choice = random() % 16;
    new_calls = NewCalls{.counting = true, .first_failure = random() % 8 + 1, .failures = random() % 3};
    try {
      if (live.empty() || (choice < 8 && live.size() < 200)) {
        live.push_back(allocator.allocate(bytes, 0, stream));
      } else if (choice < 10) {
        allocator.record_stream(live[random() % live.size()], stream);
      } else if (choice == 10) {
        allocator.empty_cache();
      } else {
        std::swap(live[random() % live.size()], live.back());
        allocator.deallocate(live.back());
        live.pop_back();
      }
    } catch (const std::bad_alloc&) {  // OutOfMemory is one
    }
  }
  new_calls = NewCalls{};
  for (void* ptr : live) allocator.deallocate(ptr);
}

class ThreadsWithoutHostMemory : public testing::TestWithParam<const char*> {};

TEST_P(ThreadsWithoutHostMemory, LoseNothing) {
  SimulatedDevice::Config config;
  config.memory_bytes = std::size_t{1} << 30;
  const auto device = std::make_shared<SimulatedDevice>(config);
  CachingAllocator allocator({std::make_shared<QuietDevice>(device)}, parse_options(GetParam()));
  const std::vector<Stream> streams = {nullptr, device->new_stream(), device->new_stream()};
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] { allocate_and_free(allocator, streams, seed_or(seed)); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.validate(), "");
  device->synchronize();
  allocator.empty_cache();
  EXPECT_EQ(allocator.memory_allocated(0), 0u);
  EXPECT_EQ(allocator.memory_reserved(0), 0u);
  EXPECT_EQ(device->used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Heaps, ThreadsWithoutHostMemory, testing::ValuesIn(kHeaps));

// Fails the host's memory before a heap, and beside it. While `action` runs, the first call of operator new that is due fails.
void without_memory(const std::function<void()>& action) {
  new_calls.counting = true;
  try {
    action();
  } catch (const std::bad_alloc&) {
  }
  new_calls.counting = false;
}

Outcome play_guarded(const char* options, std::size_t first) {
  const auto device = std::make_shared<SimulatedDevice>(SimulatedDevice::Config{});
  CachingAllocator allocator({std::make_shared<QuietDevice>(device)}, parse_guarded(options), guard_if_built());
  const Stream streams[] = {nullptr, device->new_stream()};
  std::mt19937_64 random(7);
  std::vector<void*> live;
  live.reserve(100);
  new_calls = NewCalls{.first_failure = first, .failures = 1};
  for (int step = 0; step < 60; ++step) {
    const Stream stream = streams[random() % 2];
    const std::size_t bytes = random() % (64 * kKiB) + (step == 10 ? 2 * kMiB : 1);  // the guard looks at each
    without_memory([&] {
      if (live.empty() || random() % 3 != 0) return live.push_back(allocator.allocate(bytes, 0, stream));
      if (random() % 3 == 0) return allocator.record_stream(live.back(), stream);
      allocator.deallocate(live.back());
      live.pop_back();
    });
  }
  const std::size_t calls = std::exchange(new_calls, NewCalls{}).count;
  for (void* ptr : live) allocator.deallocate(ptr);
  device->synchronize();
  allocator.empty_cache();
  std::string trouble = allocator.validate();
  if (device->used_bytes() != 0 || allocator.memory_allocated(0) != 0) trouble += " memory is lost";
  return {trouble, calls};
}

Outcome play_pool(const char* options, std::size_t first) {
  const auto device = std::make_shared<SimulatedDevice>(SimulatedDevice::Config{});
  CachingAllocator allocator({std::make_shared<QuietDevice>(device)}, parse_guarded(options), guard_if_built());
  const Stream streams[] = {nullptr, device->new_stream(), device->new_stream()};
  std::mt19937_64 random(3);
  std::vector<PooledTensor> held;
  held.reserve(300);
  TensorPool pool(allocator, TensorSpec{{100'000}, DType::int8}, TensorPoolOptions{.growth_step = 3});
  new_calls = NewCalls{.first_failure = first, .failures = 1};
  for (int step = 0; step < 300; ++step) {
    const Stream stream = streams[random() % 3];
    const std::size_t choice = random() % 10;
    without_memory([&] {
      if (choice < 5 || held.empty()) return held.push_back(pool.acquire(stream));
      if (choice < 8) return held.pop_back();
      if (choice == 8) return held.back().record_stream(stream);
      pool.trim(1);
    });
  }
  const std::size_t calls = std::exchange(new_calls, NewCalls{}).count;
  held.clear();
  device->synchronize();
  std::string trouble = pool.validate();
  pool.trim();
  allocator.empty_cache();
  if (device->used_bytes() != 0) trouble += " memory is lost";
  return {trouble, calls};
}

struct OnePlay {
  Outcome (*play)(const char* options, std::size_t first);
  const char* options;
};
class WithoutHostMemory : public testing::TestWithParam<OnePlay> {};

TEST_P(WithoutHostMemory, NothingIsLost) {
  const auto [play, options] = GetParam();
  for (std::size_t first = 1;; first += kSanitized ? 8 : 1) {
    const Outcome outcome = play(options, first);
    ASSERT_EQ(outcome.trouble, "") << "call " << first << " of operator new fails";
    if (outcome.calls < first) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Beside, WithoutHostMemory,
                         testing::Values(OnePlay{play_guarded, "guard:True"},
                                         OnePlay{play_guarded, "heap:pages,guard:True"}, OnePlay{play_pool, ""},
                                         OnePlay{play_pool, "heap:pages"}));

// While the reserve lends, what it lends is its own, and it is whole again once it could be made whole.
TEST(HostReserve, LendsWhatTheSystemDoesNotGive) {
  HostReserve::require();
  new_calls = NewCalls{.counting = true, .first_failure = 1, .failures = ~std::size_t{0}};
  Vector<std::uint64_t> lent(1000, 7);
  EXPECT_TRUE(HostReserve::is_short());
  EXPECT_THROW(HostReserve::require(), std::bad_alloc);
  EXPECT_THROW(Vector<char>(64 * kMiB), std::bad_alloc) << "the reserve has no end";
  new_calls = NewCalls{};
  HostReserve::require();
  EXPECT_FALSE(HostReserve::is_short());
  EXPECT_EQ(std::ranges::count(lent, 7u), 1000);
}

TEST(HostReserve, RefusesWhatNeedsItWhileItIsShort) {
  const auto device = std::make_shared<SimulatedDevice>(SimulatedDevice::Config{});
  CachingAllocator allocator({std::make_shared<QuietDevice>(device)});
  void* const ptr = allocator.allocate(512);
  new_calls = NewCalls{.counting = true, .first_failure = 1, .failures = ~std::size_t{0}};
  const Vector<char> lent(1);
  EXPECT_THROW(allocator.allocate(512), std::bad_alloc);
  EXPECT_THROW(allocator.create_or_retain_pool(0, PoolId{1, 0}), std::bad_alloc);
  EXPECT_NO_THROW(allocator.deallocate(ptr));
  new_calls = NewCalls{};
  EXPECT_EQ(allocator.pool_use_count(0, PoolId{1, 0}), 0);
  EXPECT_EQ(allocator.memory_allocated(0), 0u);
}

TEST(HostReserve, GrowsWithTheLargestTable) {
  HostReserve::require();
  { const Vector<char> table(8 * kMiB); }
  EXPECT_TRUE(HostReserve::is_short());
  HostReserve::require();
  new_calls = NewCalls{.counting = true, .first_failure = 1, .failures = ~std::size_t{0}};
  EXPECT_NO_THROW(Vector<char>(16 * kMiB));
  new_calls = NewCalls{};
}

TEST(HostReserve, ServesAgainWhatHasComeBack) {
  HostReserve::require();
  new_calls = NewCalls{.counting = true, .first_failure = 1, .failures = ~std::size_t{0}};
  for (int i = 0; i < 500; ++i) EXPECT_NO_THROW(Vector<char>(1 * kMiB));
  new_calls = NewCalls{};
}

// Its ring loses its oldest entries where it cannot grow.
TEST(History, GoesOnWithoutHostMemory) {
  const auto device = std::make_shared<SimulatedDevice>(SimulatedDevice::Config{});
  CachingAllocator allocator({std::make_shared<QuietDevice>(device)});
  allocator.record_history({.max_entries = 1000});
  void* const first = allocator.allocate(512);
  for (int i = 0; i < 100; ++i) {
    new_calls = NewCalls{.counting = true, .first_failure = 1, .failures = 1};
    void* const ptr = allocator.allocate(512);
    allocator.deallocate(ptr);
    new_calls = NewCalls{};
  }
  const std::vector<Change> entries = allocator.snapshot().device_traces.at(0);
  ASSERT_FALSE(entries.empty());
  EXPECT_EQ(entries.back().action, Change::Action::free_completed);
  allocator.deallocate(first);
}

}  // namespace
}  // namespace cachalot
