// The slot pool in kernels. On the simulated runtime launches are checked, and results are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cachalot/slot_pool.h"
#include "tests/kernels/slot_pool_program.h"
#include "tests/kernels/subject.h"

namespace cachalot {
namespace {

class CudaSlotPool : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no GPU here: the slot pool is not tested in kernels";
    computes_ = without_gpu().empty();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    allocator_ = std::make_unique<CachingAllocator>(cuda_devices());
  }
  // Zeros for kernels to write to.
  template <typename T>
  T* zeros(std::size_t count) {
    void* const memory = allocator_->allocate(count * sizeof(T));
    EXPECT_EQ(cudaMemset(memory, 0, count * sizeof(T)), cudaSuccess);
    return static_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> read(const T* memory, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

  bool computes_ = false;
  std::unique_ptr<CachingAllocator> allocator_;
};

TEST_F(CudaSlotPool, ThreadsTakeDistinctSlotsUntilThereIsNone) {
  constexpr unsigned kThreads = 100'000;
  constexpr std::size_t kSlots = 70'001;
  const SlotPool pool(*allocator_, kSlots, 24);
  void** const slots = zeros<void*>(kThreads);
  ASSERT_EQ(launch_take(nullptr, pool.view(), kThreads, slots), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (!computes_) GTEST_SKIP() << without_gpu();
  const std::vector<void*> taken = read(slots, kThreads);
  std::set<void*> distinct(taken.begin(), taken.end());
  distinct.erase(nullptr);
  EXPECT_EQ(distinct.size(), kSlots);
  EXPECT_EQ(static_cast<std::size_t>(std::count(taken.begin(), taken.end(), nullptr)), kThreads - kSlots);
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.live, kSlots);
  EXPECT_EQ(counters.high_water, kSlots);
  EXPECT_EQ(counters.exhausted, kThreads - kSlots);
}

TEST_F(CudaSlotPool, WhatIsGivenTwiceIsCounted) {
  constexpr unsigned kThreads = 10'000;
  const SlotPool pool(*allocator_, kThreads, 24);
  void** const slots = zeros<void*>(kThreads);
  ASSERT_EQ(launch_take(nullptr, pool.view(), kThreads, slots), cudaSuccess);
  ASSERT_EQ(launch_give(nullptr, pool.view(), kThreads, slots), cudaSuccess);
  ASSERT_EQ(launch_give(nullptr, pool.view(), kThreads, slots), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (!computes_) GTEST_SKIP() << without_gpu();
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.given, kThreads);
  EXPECT_EQ(counters.bad_gives, kThreads);
  EXPECT_EQ(counters.live, 0u);
}

TEST_F(CudaSlotPool, WarpsThatTakeAndGiveAtAnyMomentNeverShareASlot) {
  constexpr unsigned kThreads = 50'000;
  const SlotPool pool(*allocator_, 5'000, 8);
  auto* const shared = zeros<unsigned long long>(1);
  ASSERT_EQ(launch_churn(nullptr, pool.view(), kThreads, 50, shared), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  if (!computes_) GTEST_SKIP() << without_gpu();
  EXPECT_EQ(read(shared, 1)[0], 0u);
  const SlotPoolCounters counters = pool.counters();
  EXPECT_EQ(counters.live, 0u);
  EXPECT_EQ(counters.bad_gives, 0u);
  EXPECT_GT(counters.taken, 0u);
  EXPECT_LE(counters.high_water, 5'000u);
}

}  // namespace
}  // namespace cachalot
