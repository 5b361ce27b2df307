// The free memory of integrated GPUs, whose memory is the machine's.
#include "device/unified_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "base/bytes.h"
#include "tests/device/machine_memory.h"
#if CACHALOT_HAS_CUDA
#include "device/cuda_device.h"
#endif

namespace cachalot {
namespace {

HostMemory memory_of_machine() { return HostMemory::of_machine(/*is_gpu_simulated=*/false).value(); }

TEST(UnifiedMemory, IsWhatTheSystemCallsAvailable) {
  const MachineMemory machine;
  machine.set_available(3 * kGiB);
  EXPECT_EQ(memory_of_machine().available_bytes(), 3 * kGiB);
}

TEST(UnifiedMemory, IsNotKnownWithoutTheFileOrItsLine) {
  const MachineMemory machine;
  EXPECT_EQ(memory_of_machine().available_bytes(), std::nullopt);
  machine.write("MemTotal: 100 kB\nMemAvailable: much\n");
  EXPECT_EQ(memory_of_machine().available_bytes(), std::nullopt);
}

TEST(UnifiedMemory, OfThisMachineIsKnown) { EXPECT_GT(memory_of_machine().available_bytes(), kMiB); }

TEST(UnifiedMemory, OfASimulatedGpuIsNotTheMachines) {
  EXPECT_FALSE(HostMemory::of_machine(/*is_gpu_simulated=*/true).has_value());
  const MachineMemory machine;
  EXPECT_TRUE(HostMemory::of_machine(/*is_gpu_simulated=*/true).has_value());
}

TEST(UnifiedMemory, IsWaitedForAsTheSystemSays) {
  const MachineMemory machine;
  EXPECT_EQ(memory_of_machine().stalled_percent(), std::nullopt);
  machine.set_stalled("12.34");
  EXPECT_EQ(memory_of_machine().stalled_percent(), 12.34);
}

TEST(UnifiedMemory, TakesThePlaceOfWhatTheDriverReportsButForThePartOfTheSystem) {
  const MemoryInfo reported = {.free_bytes = kGiB, .total_bytes = 8 * kGiB};
  EXPECT_EQ(with_available_bytes(reported, 5 * kGiB).free_bytes, 5 * kGiB - 512 * kMiB)
      << "the driver leaves out files";
  EXPECT_EQ(with_available_bytes(reported, 5 * kGiB).total_bytes, 8 * kGiB);
  EXPECT_EQ(with_available_bytes(reported, kMiB).free_bytes, 0u) << "the processor uses the memory, too";
  EXPECT_EQ(with_available_bytes(reported, 9 * kGiB).free_bytes, 8 * kGiB) << "at most all";
  EXPECT_EQ(with_available_bytes(reported, std::nullopt).free_bytes, kGiB);
  EXPECT_EQ(kept_for_system(119 * kGiB), kGiB);
}

#if CACHALOT_HAS_CUDA

// Over an integrated GPU: CACHALOT_SIM=gpu:gb10.
class UnifiedMemoryCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no GPU here";
    device_ = std::make_unique<CudaDevice>(0);
    if (!device_->properties().integrated) GTEST_SKIP() << "this GPU has memory of its own";
    set_free(40 * kMiB);
  }
  void set_free(std::size_t bytes) {
    machine_.set_available(bytes + kept_for_system(device_->properties().total_bytes));
  }
  const MachineMemory machine_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(UnifiedMemoryCuda, IsReportedAsFree) {
  EXPECT_EQ(device_->memory_info().free_bytes, 40 * kMiB);
  set_free(50 * kMiB);
  EXPECT_EQ(device_->memory_info().free_bytes, 50 * kMiB);
  machine_.remove();
  EXPECT_GT(device_->memory_info().free_bytes, 50 * kMiB) << "what the driver reports";
}

TEST_F(UnifiedMemoryCuda, IsNotAskedForBeyondWhatIsAvailable) {
  set_free(4 * kMiB);
  EXPECT_EQ(device_->malloc(6 * kMiB), std::nullopt);
  EXPECT_EQ(device_->malloc_managed(6 * kMiB), std::nullopt);
  EXPECT_EQ(device_->malloc_async(6 * kMiB, nullptr), std::nullopt);
  EXPECT_EQ(device_->create(6 * kMiB), std::nullopt);
  const std::optional<Address> fitting = device_->malloc(4 * kMiB);
  ASSERT_TRUE(fitting);
  device_->free(*fitting);
  set_free(6 * kMiB);
  const std::optional<Address> later = device_->malloc(6 * kMiB);
  ASSERT_TRUE(later);
  device_->free(*later);
}

#endif

}  // namespace
}  // namespace cachalot
