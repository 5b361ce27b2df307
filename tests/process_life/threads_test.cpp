// Threads that end, in every way, with what they had cached; and signals that come in the middle of everything.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/buffers.h"
#include "cachalot/pool_set.h"
#include "cachalot/tensor_pool.h"
#include "tests/allocator/testing.h"
#include "tests/process_life/tensors.h"
#include "tests/scale.h"

namespace cachalot {
namespace {

// A thread of the C library's: it may be cancelled, and end by pthread_exit.
class CThread {
 public:
  explicit CThread(std::function<void()> body) : body_(std::move(body)) {
    EXPECT_EQ(pthread_create(&thread_, nullptr, &run, this), 0);
  }
  void cancel() const { EXPECT_EQ(pthread_cancel(thread_), 0); }
  bool join() const {  // true if it was cancelled
    void* result = nullptr;
    EXPECT_EQ(pthread_join(thread_, &result), 0);
    return result == PTHREAD_CANCELED;
  }

 private:
  static void* run(void* self) {
    static_cast<CThread*>(self)->body_();
    return nullptr;
  }
  std::function<void()> body_;
  pthread_t thread_{};
};

// Blocks in the thread's cache, and slots in its stack.
void fill_caches(CachingAllocator& allocator, TensorPool& pool) {
  std::vector<void*> blocks;
  for (std::size_t i = 1; i <= 100; ++i) blocks.push_back(allocator.allocate(i * 500));
  for (void* block : blocks) allocator.deallocate(block);
  std::vector<PooledTensor> tensors(10);
  for (PooledTensor& tensor : tensors) tensor = pool.acquire();
}

struct EndingThreads : ::testing::Test {
  World world{4 * kGiB, "heap:pages"};
  TensorPool pool{world.allocator, kSpec, {.max_slots = 10, .growth_step = 10}};

  // All memory can be had by others: none of it lies in a cache of a thread that is not there.
  void expect_all_found() {
    EXPECT_EQ(world.allocated(), pool.stats().bytes);
    EXPECT_EQ(pool.stats().live, 0u);
    std::vector<PooledTensor> tensors(10);
    for (PooledTensor& tensor : tensors) tensor = pool.acquire();
    tensors.clear();
    pool.trim();
    world.allocator.empty_cache();
    EXPECT_EQ(world.reserved(), 0u);
    EXPECT_EQ(pool.validate(), "");
    EXPECT_EQ(world.allocator.validate(), "");
  }
};

TEST_F(EndingThreads, ThatReturnGiveBackWhatTheyCached) {
  CThread thread([&] { fill_caches(world.allocator, pool); });
  EXPECT_FALSE(thread.join());
  expect_all_found();
}

TEST_F(EndingThreads, ThatExitGiveBackWhatTheyCached) {
  CThread thread([&] {
    fill_caches(world.allocator, pool);
    pthread_exit(nullptr);
  });
  EXPECT_FALSE(thread.join());
  expect_all_found();
}

TEST_F(EndingThreads, ThatAreCancelledGiveBackWhatTheyCached) {
  std::atomic<bool> ready{false};
  CThread thread([&] {
    const Allocation block = allocate_owned(world.allocator, 5000, 0, nullptr);  // unwound
    const PooledTensor tensor = pool.acquire();
    fill_caches(world.allocator, *std::make_unique<TensorPool>(world.allocator, kSpec));
    ready = true;
    for (;;) pause();
  });
  while (!ready) std::this_thread::yield();
  thread.cancel();
  EXPECT_TRUE(thread.join());
  expect_all_found();
}

TEST_F(EndingThreads, ThatAreCancelledWhileTheyWaitForATensorLeaveThePoolWhole) {
  TensorPool small(world.allocator, kSpec, {.max_slots = 1, .when_empty = WhenEmpty::wait});
  PooledTensor taken = small.acquire();
  for (int i = 0; i < 3; ++i) {
    CThread thread([&] { small.acquire(); });
    while (small.stats().host_waits == static_cast<std::uint64_t>(i)) std::this_thread::yield();
    thread.cancel();
    EXPECT_TRUE(thread.join());
  }
  taken.release();
  EXPECT_EQ(small.validate(), "");
  EXPECT_TRUE(small.acquire());
}

TEST_F(EndingThreads, MayOutliveTheAllocatorAndThePoolThatTheyUsed) {
  auto other = std::make_unique<World>(4 * kGiB, "heap:pages");
  auto others_pool = std::make_unique<TensorPool>(other->allocator, kSpec, TensorPoolOptions{.max_slots = 10});
  std::atomic<int> ready{0};
  std::atomic<bool> gone{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      fill_caches(other->allocator, *std::make_unique<TensorPool>(other->allocator, kSpec));
      others_pool->acquire();
      ++ready;
      while (!gone) std::this_thread::yield();
      fill_caches(world.allocator, *std::make_unique<TensorPool>(world.allocator, kSpec));  // another's goes on
    });
  }
  while (ready < 4) std::this_thread::yield();
  others_pool.reset();
  other.reset();
  gone = true;
  for (std::thread& thread : threads) thread.join();
  expect_all_found();
}

// CACHALOT_TEST_SCALE=50 for a million.
TEST_F(EndingThreads, ManyOneAfterTheOtherDoNotGrowHostMemory) {
  const auto run = [&](int threads) {
    for (int i = 0; i < threads; ++i) {
      std::thread([&] {
        world.allocator.deallocate(world.allocator.allocate(5000));
        pool.acquire();
      }).join();
    }
  };
  run(100);
  const std::size_t tables = world.allocator.metadata_bytes() + pool.metadata_bytes();
  const std::size_t heap = mallinfo2().uordblks;
  const int threads = static_cast<int>(scaled(20'000));
  run(threads);
  EXPECT_EQ(world.allocator.metadata_bytes() + pool.metadata_bytes(), tables);
  EXPECT_LT(mallinfo2().uordblks, heap + 64 * kKiB) << "after " << threads << " threads";
  expect_all_found();
}

// ---- Signals --------------------------------------------------------------------------------------------------------

// One every 100 us to whatever thread runs, and system calls are not restarted.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals; };
    sigaction(SIGALRM, &action, &before_);
    set_interval(100);
  }
  ~SignalStorm() {
    set_interval(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

  static inline std::atomic<int> signals{0};
  static_assert(std::atomic<int>::is_always_lock_free);

 private:
  static void set_interval(int microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &every, nullptr);
  }
  struct sigaction before_ {};
};

class Signals : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Heaps, Signals, ::testing::Values("", "heap:pages", "thread_cache:True", "guard:True"));

TEST_P(Signals, BreakNothingWhileThreadsAllocateWaitAndShare) {
  World world(4 * kGiB, GetParam());
  TensorPool pool(world.allocator, kSpec, {.max_slots = 2, .when_empty = WhenEmpty::wait});
  PoolSet set(world.allocator, 8 * kTensorBytes);
  const int signals = static_cast<int>(scaled(3000));
  SignalStorm storm;
  const int enough = SignalStorm::signals + signals;
  std::atomic<int> mistakes{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int round = 0; SignalStorm::signals < enough; ++round) {
          void* const block = world.allocate(static_cast<std::size_t>(round % 1000) * 97 + 1);
          void* const large = world.allocate((i + 1) << 21);
          const PooledTensor tensor = pool.acquire();  // four threads want two
          if (round % 16 == 0) world.allocator.empty_cache();
          if (round % 8 == 0) world.allocator.memory_stats();
          if (round % 64 == 0 && *GetParam() == '\0') world.allocator.share(large);
          set.try_acquire(kSpec);
          world.allocator.deallocate(large);
          world.allocator.deallocate(block);
        }
      } catch (const std::exception& error) {
        ++mistakes;
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mistakes, 0);
  EXPECT_EQ(pool.validate(), "");
  EXPECT_EQ(set.validate(), "");
}

}  // namespace
}  // namespace cachalot
