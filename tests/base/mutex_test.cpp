#include "base/locks.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace cachalot {
namespace {

TEST(Mutex, LetsOneThreadInAtATime) {
  Mutex mutex;
  long count = 0;  // not atomic: a lost update, or the thread sanitizer, shows a second holder
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20000; ++n) {
        const Lock lock(mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80000);
}

TEST(Unlocked, LetsTheLockGoForItsScope) {
  Mutex mutex;
  int seen = 0;
  {
    const Lock lock(mutex);
    {
      const Unlocked unlocked(mutex);
      std::thread([&] {
        const Lock inner(mutex);
        seen = 1;
      }).join();
    }
    EXPECT_EQ(seen, 1);
  }
  const Lock again(mutex);  // would hang if the scopes above had left it locked
}

}  // namespace
}  // namespace cachalot
