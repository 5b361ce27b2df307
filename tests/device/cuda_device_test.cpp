// What CudaDevice promises beyond the contract: how it treats the runtime's state of the calling thread.
#include <gtest/gtest.h>

#if CACHALOT_HAS_CUDA

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <chrono>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_device.h"
#include "device_subject.h"

namespace cachalot {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    subject_ = make_cuda_subject();
    if (!subject_) GTEST_SKIP() << "no GPU here: CudaDevice is not tested";
    device_ = &subject_->device();
    cudaGetLastError();
  }
  void TearDown() override { cudaGetLastError(); }

  // Leaves an error behind, as a failed call of the user's would.
  static void leave_error() { ASSERT_EQ(cudaSetDevice(9999), cudaErrorInvalidDevice); }

  std::unique_ptr<DeviceSubject> subject_;
  Device* device_ = nullptr;
};

TEST_F(CudaDeviceTest, AnEarlierErrorIsReportedAsItselfAndNotSwallowedAsOutOfMemory) {
  leave_error();
  try {
    device_->malloc(2 * device_->properties().total_bytes);
    FAIL() << "nothing was thrown";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), static_cast<int>(cudaErrorInvalidDevice));
  }
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, OutOfMemoryLeavesNoErrorForTheUser) {
  EXPECT_EQ(device_->malloc(2 * device_->properties().total_bytes), std::nullopt);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, AThrownErrorIsNotReportedTwice) {
  EXPECT_THROW(device_->free(0), CudaError);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, AskingAnEventThatIsNotDoneLeavesAnEarlierErrorAlone) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->queue_work(stream, std::chrono::milliseconds(100));
  device_->event_record(event, stream);
  leave_error();
  EXPECT_FALSE(device_->event_query(event));
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  device_->synchronize();
  device_->event_destroy(event);
}

TEST_F(CudaDeviceTest, TheCurrentDeviceStaysAsItWas) {
  const auto devices = cuda_devices();
  if (devices.size() < 2) GTEST_SKIP() << "only one GPU here: switching devices is not tested";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const Address address = devices[1]->malloc(2 * kMiB).value();
  devices[1]->free(address);
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
}

TEST_F(CudaDeviceTest, PeersMayUseWhatIsOpenedToThem) {
  int can = 0;
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count > 1) {
    ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 1, 0), cudaSuccess);
  }
  if (can == 0) GTEST_SKIP() << "no two GPUs here that see each other: access by peers is not tested";
  void* found = nullptr;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuMemGetAccess", &found, 10020, cudaEnableDefault, nullptr), cudaSuccess);
  const auto access_of_peer = [&](Address address) {
    const CUmemLocation peer{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    unsigned long long flags = 0;
    EXPECT_EQ(reinterpret_cast<PFN_cuMemGetAccess_v10020>(found)(&flags, &peer, address), CUDA_SUCCESS);
    return flags;
  };
  const std::size_t page = device_->properties().page_bytes;
  const Address range = device_->reserve(page).value();
  const MemoryHandle handle = device_->create(page).value();
  device_->map(range, page, handle);
  device_->set_access(range, page, {});
  EXPECT_EQ(access_of_peer(range), 0u);
  device_->set_access(range, page, {1});
  EXPECT_NE(access_of_peer(range), 0u);
  device_->unmap(range, page);
  device_->release(handle);
  device_->unreserve(range, page);
}

TEST_F(CudaDeviceTest, EnablingAPeerTwiceIsNoError) {
  int can = 0;
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count > 1) {
    ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  }
  if (can == 0) GTEST_SKIP() << "no two GPUs here that see each other: access to peers is not tested";
  device_->enable_peer_access(1);
  device_->enable_peer_access(1);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaSuccess);
  EXPECT_THROW(device_->enable_peer_access(0), CudaError);
}

TEST_F(CudaDeviceTest, HintsMayBeTurnedOff) {
  CudaDevice device(0, {.completion_hints = false});
  const Event event = device.event_create();
  device.event_record(event, nullptr);
  EXPECT_EQ(device.completion_hint(nullptr), std::nullopt);
  device.event_synchronize(event);
  device.event_destroy(event);
}

}  // namespace
}  // namespace cachalot

#endif
