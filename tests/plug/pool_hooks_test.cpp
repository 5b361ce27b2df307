// Tensors of pools, as the Python package lends them. Runs with the simulated runtime preloaded, as PyTorch's process would.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "pytorch/plug/hooks.h"
#include "pytorch/plug/pool_hooks.h"
#include "tests/plug/streams_of_process.h"
#include "tests/plug/taken_text.h"

namespace cachalot {
namespace {

class PoolHooks : public testing::Test {
 protected:
  ~PoolHooks() override {
    cachalot_plug_pool_destroy(pool_);
    cachalot_reset();
  }

  // Makes a pool of at most `slots` slots.
  void make_pool(std::size_t slots) {
    static constexpr std::array<std::int64_t, 2> kShape = {16, 16};
    const CachalotTensorSpec spec = {kShape.data(), static_cast<int>(kShape.size()), 0, 0};
    const CachalotPoolOptions options = {.initial_slots = 1,
                                         .max_slots = slots,
                                         .growth_step = 1,
                                         .when_empty = 0,
                                         .other_stream = 0,
                                         .on_reuse = 0,
                                         .high_water = -1,
                                         .alignment = 512,
                                         .stream = streams[0]};
    ASSERT_EQ(cachalot_plug_pool_create(&spec, &options, &pool_), CACHALOT_OK) << cachalot_last_error();
  }
  int acquire(Stream stream, CachalotLease*& lease) { return cachalot_plug_pool_acquire(pool_, stream, -1, &lease); }
  std::uint64_t stream_waits() { return taken(cachalot_plug_pool_json(pool_)).at("stream_waits"); }
  // PyTorch knows the tensor by its address alone. How many streams the next user waits for.
  std::uint64_t waits_after_a_recorded_use() {
    CachalotLease* lease = nullptr;
    EXPECT_EQ(acquire(streams[0], lease), CACHALOT_OK) << cachalot_last_error();
    cachalot_record_stream_hook((*lease)->data(), streams[1]);
    cachalot_plug_lease_drop(lease);
    const std::uint64_t before = stream_waits();
    EXPECT_EQ(acquire(streams[0], lease), CACHALOT_OK) << cachalot_last_error();
    cachalot_plug_lease_drop(lease);
    return stream_waits() - before;
  }

  const std::array<cudaStream_t, 3> streams = streams_of_process();

 private:
  TensorPool* pool_ = nullptr;
};

TEST_F(PoolHooks, ARecordedUseOfALentTensorIsWaitedFor) {
  make_pool(1);
  EXPECT_EQ(waits_after_a_recorded_use(), 1u);
}

TEST_F(PoolHooks, ATensorThatIsLentAgainIsKnownAgain) {
  make_pool(1);
  EXPECT_EQ(waits_after_a_recorded_use(), 1u);
  EXPECT_EQ(waits_after_a_recorded_use(), 1u);
}

TEST_F(PoolHooks, APoolHasNoMoreThanItsMostSlots) {
  make_pool(1);
  CachalotLease* lease = nullptr;
  CachalotLease* none = nullptr;
  ASSERT_EQ(acquire(streams[0], lease), CACHALOT_OK) << cachalot_last_error();
  EXPECT_NE(acquire(streams[0], none), CACHALOT_OK);
  EXPECT_NE(std::string(cachalot_last_error()).find("max_slots 1"), std::string::npos) << cachalot_last_error();
  cachalot_plug_lease_drop(lease);
}

}  // namespace
}  // namespace cachalot
