#include "tools/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace cachalot::tools {
namespace {

TEST(ParallelThreads, DoEachJobOnce) {
  std::vector<std::atomic<int>> calls(1000);
  run_in_parallel(calls.size(), 4, [&](std::size_t i) { ++calls[i]; });
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  run_in_parallel(0, 4, [](std::size_t) { FAIL(); });
}

TEST(ParallelThreads, TellTheFirstFailureAndBeginNoMore) {
  std::atomic<std::size_t> begun = 0;
  try {
    run_in_parallel(100000, 2, [&](std::size_t i) {
      ++begun;
      if (i >= 10) throw std::runtime_error(std::to_string(i));
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_LT(std::stoi(error.what()), 12);
  }
  EXPECT_LT(begun, 20U);
}

}  // namespace
}  // namespace cachalot::tools
