// The free memory of integrated GPUs, whose memory is the machine's.
#include "device/unified_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#if CACHALOT_HAS_CUDA
#include "device/cuda_device.h"
#endif

namespace cachalot {
namespace {

// A file like /proc/meminfo, as long as it lives.
class HostMemoryFile {
 public:
  HostMemoryFile() : path_(testing::TempDir() + "meminfo." + std::to_string(getpid())) {}
  ~HostMemoryFile() { std::filesystem::remove(path_); }
  HostMemoryFile(const HostMemoryFile&) = delete;
  HostMemoryFile& operator=(const HostMemoryFile&) = delete;

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  void set_available(std::size_t bytes) const {
    write("MemTotal:       99999999 kB\nMemFree:            1024 kB\nMemAvailable:   " + std::to_string(bytes / kKiB) +
          " kB\nBuffers:               0 kB\n");
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

TEST(UnifiedMemory, IsWhatTheSystemCallsAvailable) {
  const HostMemoryFile file;
  file.set_available(3 * kGiB);
  EXPECT_EQ(available_host_bytes(file.path()), 3 * kGiB);
}

TEST(UnifiedMemory, IsNotKnownWithoutTheFileOrItsLine) {
  const HostMemoryFile file;
  EXPECT_EQ(available_host_bytes(file.path()), std::nullopt);
  file.write("MemTotal: 100 kB\nMemAvailable: much\n");
  EXPECT_EQ(available_host_bytes(file.path()), std::nullopt);
}

TEST(UnifiedMemory, OfThisMachineIsKnown) { EXPECT_GT(available_host_bytes(kHostMemoryFile), kMiB); }

TEST(UnifiedMemory, TakesThePlaceOfWhatTheDriverReports) {
  const MemoryInfo reported = {.free_bytes = kGiB, .total_bytes = 8 * kGiB};
  EXPECT_EQ(with_available_bytes(reported, 5 * kGiB).free_bytes, 5 * kGiB) << "the driver leaves out caches of files";
  EXPECT_EQ(with_available_bytes(reported, 5 * kGiB).total_bytes, 8 * kGiB);
  EXPECT_EQ(with_available_bytes(reported, kMiB).free_bytes, kMiB) << "the processor uses the memory, too";
  EXPECT_EQ(with_available_bytes(reported, 9 * kGiB).free_bytes, 8 * kGiB) << "at most all";
  EXPECT_EQ(with_available_bytes(reported, std::nullopt).free_bytes, kGiB);
}

#if CACHALOT_HAS_CUDA

// Over an integrated GPU: CACHALOT_SIM=gpu:gb10.
class UnifiedMemoryCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no GPU here";
    file_.set_available(40 * kMiB);
    CudaDevice::Config config;
    config.host_memory_file = file_.path();
    device_ = std::make_unique<CudaDevice>(0, config);
    if (device_->memory_info().free_bytes != 40 * kMiB) GTEST_SKIP() << "this GPU has memory of its own";
  }
  const HostMemoryFile file_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(UnifiedMemoryCuda, IsReportedAsFree) {
  file_.set_available(50 * kMiB);
  EXPECT_EQ(device_->memory_info().free_bytes, 50 * kMiB);
  std::filesystem::remove(file_.path());
  EXPECT_GT(device_->memory_info().free_bytes, 50 * kMiB) << "what the driver reports";
}

TEST_F(UnifiedMemoryCuda, IsNotAskedForBeyondWhatIsAvailable) {
  file_.set_available(4 * kMiB);
  EXPECT_EQ(device_->malloc(6 * kMiB), std::nullopt);
  EXPECT_EQ(device_->malloc_managed(6 * kMiB), std::nullopt);
  EXPECT_EQ(device_->malloc_async(6 * kMiB, nullptr), std::nullopt);
  EXPECT_EQ(device_->create(6 * kMiB), std::nullopt);
  const std::optional<Address> fitting = device_->malloc(4 * kMiB);
  ASSERT_TRUE(fitting);
  device_->free(*fitting);
  file_.set_available(6 * kMiB);
  const std::optional<Address> later = device_->malloc(6 * kMiB);
  ASSERT_TRUE(later);
  device_->free(*later);
}

#endif

}  // namespace
}  // namespace cachalot
