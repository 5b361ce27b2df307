// Tests of CudaDevice beyond the contract: it does not change the program's state, the CUDA runtime's and the current context
// of the calling thread and the contexts of other devices.
#include <gtest/gtest.h>

#if CACHALOT_HAS_CUDART

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"
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

  // A function of the driver in the form that CUDA of `version` has.
  template <typename Function>
  static Function driver_function(const char* name, unsigned int version) {
    void* found = nullptr;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, nullptr), cudaSuccess);
    return reinterpret_cast<Function>(found);
  }
  static CUcontext current_context() {
    CUcontext current = nullptr;
    EXPECT_EQ(driver_function<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000)(&current), CUDA_SUCCESS);
    return current;
  }
  static bool has_context(int ordinal) {
    unsigned int flags = 0;
    int active = 0;
    const auto get_state = driver_function<PFN_cuDevicePrimaryCtxGetState_v7000>("cuDevicePrimaryCtxGetState", 7000);
    EXPECT_EQ(get_state(ordinal, &flags, &active), CUDA_SUCCESS);
    return active != 0;
  }
  // Calls of all kinds, on a device that has a stream.
  static void use(Device& device, Stream stream) {
    const Address address = device.malloc(2 * kMiB).value();
    const Event event = device.event_create();
    device.fill(address, 1, kMiB, stream);
    device.event_record(event, stream);
    device.event_synchronize(event);
    device.event_destroy(event);
    device.memory_info();
    device.capture_status(stream);
    device.synchronize();
    device.free(address);
  }

  // Leaves an error behind, as a failed call of the user's would.
  static void leave_error() { ASSERT_EQ(cudaSetDevice(9999), cudaErrorInvalidDevice); }

  std::unique_ptr<DeviceSubject> subject_;
  Device* device_ = nullptr;
};

TEST_F(CudaDeviceTest, AnErrorThatTheProgramLeftInItsRuntimeIsNeitherSeenNorLost) {
  leave_error();
  EXPECT_EQ(device_->malloc(2 * device_->properties().total_bytes), std::nullopt);
  use(*device_, nullptr);
  EXPECT_THROW(device_->free(0), CudaError);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(CudaDeviceTest, FailuresLeaveNoErrorInTheProgramsRuntime) {
  EXPECT_EQ(device_->malloc(2 * device_->properties().total_bytes), std::nullopt);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_THROW(device_->free(0), CudaError);
  EXPECT_THROW(device_->free(0x1000), CudaError);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(CudaDeviceTest, AFailureIsNamedAsTheDriverNamesIt) {
  const Address address = device_->malloc(2 * kMiB).value();
  device_->free(address);
  try {
    device_->free(address);
    FAIL() << "nothing was thrown";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.call(), "cuMemFree");
    EXPECT_STREQ(error.what(), "CUDA error in cuMemFree: CUDA_ERROR_INVALID_VALUE, invalid argument (code 1)");
  }
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
  for (const int chosen : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(chosen), cudaSuccess);
    const CUcontext before = current_context();
    for (const auto& device : devices) use(*device, nullptr);
    int current = -1;
    ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, chosen);
    EXPECT_EQ(current_context(), before);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(CudaDeviceTest, AThreadThatHasNoContextHasNoneAfterwards) {
  std::thread([&] {
    EXPECT_EQ(current_context(), nullptr);
    for (const auto& device : cuda_devices()) {
      use(*device, nullptr);
      EXPECT_EQ(current_context(), nullptr);
    }
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0);
  }).join();
}

TEST_F(CudaDeviceTest, AnErrorInAnotherContextLeavesTheThreadItsOwn) {
  const auto devices = cuda_devices();
  if (devices.size() < 2) GTEST_SKIP() << "only one GPU here: switching devices is not tested";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const CUcontext before = current_context();
  EXPECT_THROW(devices[1]->free(0x1000), CudaError);
  EXPECT_EQ(devices[1]->malloc(2 * devices[1]->properties().total_bytes), std::nullopt);
  EXPECT_EQ(current_context(), before);
}

TEST_F(CudaDeviceTest, AContextIsMadeOnADeviceThatIsUsedAlone) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "only one GPU here: other devices' contexts are not tested";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  {
    const auto devices = cuda_devices();
    use(*devices[0], nullptr);
    EXPECT_TRUE(has_context(0));
    EXPECT_FALSE(has_context(1));
  }
  EXPECT_FALSE(has_context(1)) << "made when the devices went";
  use(*cuda_devices()[1], nullptr);
  EXPECT_TRUE(has_context(1));
}

TEST_F(CudaDeviceTest, AResetIsToldByEveryCallAndLeavesTheThreadAsItWas) {
  const auto devices = cuda_devices();
  if (devices.size() < 2) GTEST_SKIP() << "only one GPU here, which other tests use: a reset is not tested";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  use(*devices[1], nullptr);
  const Event event = devices[1]->event_create();
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const CUcontext before = current_context();
  const std::vector<std::function<void()>> calls = {
      [&] { devices[1]->malloc(2 * kMiB); }, [&] { devices[1]->event_record(event, nullptr); },
      [&] { devices[1]->synchronize(); }, [&] { devices[1]->memory_info(); }};
  for (const auto& call : calls) {
    try {
      call();
      FAIL() << "nothing was thrown";
    } catch (const DeviceReset& error) {
      EXPECT_EQ(error.code(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
      EXPECT_NE(std::string(error.what()).find("device 1 was reset (cudaDeviceReset)"), std::string::npos);
    }
    EXPECT_EQ(current_context(), before);
  }
  use(*cuda_devices()[1], nullptr);
}

// CUDA itself records an event on streams of the event's device alone.
TEST_F(CudaDeviceTest, AnEventMarksWorkOfAStreamOfAnotherDevice) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "only one GPU here: streams of another are not tested";
  cudaStream_t foreign = nullptr;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&foreign), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_FALSE(device_->has_stream(foreign));
  EXPECT_TRUE(cuda_devices()[1]->has_stream(foreign));
  const Event event = device_->event_create();
  subject_->queue_work(foreign, std::chrono::milliseconds(100));
  device_->event_record(event, foreign);
  EXPECT_FALSE(device_->event_query(event));
  EXPECT_EQ(device_->completion_hint(foreign), std::nullopt) << "it would tell of the stream, not of the event";
  device_->event_synchronize(event);
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(foreign), cudaSuccess);
}

TEST_F(CudaDeviceTest, AnEventOnAStreamThatWasDestroyedIsAnErrorAndNoReset) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  const Event event = device_->event_create();
  try {
    device_->event_record(event, stream);
    FAIL() << "nothing was thrown";
  } catch (const DeviceReset&) {
    FAIL() << "the device was not reset";
  } catch (const CudaError& error) {
    EXPECT_TRUE(tells_of_dead_stream(error)) << error.what();
  }
  device_->event_destroy(event);
}

TEST_F(CudaDeviceTest, PeersMayUseWhatIsOpenedToThem) {
  int can = 0;
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count > 1) {
    ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 1, 0), cudaSuccess);
  }
  if (can == 0) GTEST_SKIP() << "no two GPUs here that see each other: access by peers is not tested";
  const auto get_access = driver_function<PFN_cuMemGetAccess_v10020>("cuMemGetAccess", 10020);
  const auto access_of_peer = [&](Address address) {
    const CUmemLocation peer{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    unsigned long long flags = 0;
    EXPECT_EQ(get_access(&flags, &peer, address), CUDA_SUCCESS);
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
