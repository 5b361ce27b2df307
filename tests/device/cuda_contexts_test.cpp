// A thread whose current context is not the device's primary one: another of cuCtxCreate, or a green context. It keeps its context,
// and is served as any other thread.
#include <gtest/gtest.h>

#if CACHALOT_HAS_CUDART

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/errors.h"
#include "device/cuda_device.h"
#include "simulated_driver.h"

namespace cachalot {
namespace {

// A function of the driver in the form that CUDA of `version` has.
template <typename Function>
Function driver_function(const char* name, unsigned int version) {
  void* found = nullptr;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, nullptr), cudaSuccess);
  return reinterpret_cast<Function>(found);
}

CUcontext current_context() {
  CUcontext current = nullptr;
  EXPECT_EQ(driver_function<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000)(&current), CUDA_SUCCESS);
  return current;
}

// A context of device 0 beside the primary one. It is null if the driver has no such contexts.
class ForeignContext {
 public:
  virtual ~ForeignContext() = default;
  virtual CUcontext get() const = 0;
};

class CreatedContext final : public ForeignContext {
 public:
  CreatedContext() {
    EXPECT_EQ(driver_function<PFN_cuCtxCreate_v3020>("cuCtxCreate", 3020)(&context_, 0, 0), CUDA_SUCCESS);
    CUcontext popped = nullptr;
    EXPECT_EQ(driver_function<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent", 4000)(&popped), CUDA_SUCCESS);
  }
  ~CreatedContext() override {
    EXPECT_EQ(driver_function<PFN_cuCtxDestroy_v4000>("cuCtxDestroy", 4000)(context_), CUDA_SUCCESS);
  }
  CUcontext get() const override { return context_; }

 private:
  CUcontext context_ = nullptr;
};

class GreenContext final : public ForeignContext {
 public:
  GreenContext() {
    constexpr unsigned int kVersion = 12040;
    constexpr unsigned int kMultiprocessors = 8;
    const auto get_resource = driver_function<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", kVersion);
    CUdevResource all{};
    if (get_resource == nullptr || get_resource(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return;
    const auto split = driver_function<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", kVersion);
    const auto describe = driver_function<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", kVersion);
    const auto create = driver_function<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", kVersion);
    const auto convert = driver_function<PFN_cuCtxFromGreenCtx_v12040>("cuCtxFromGreenCtx", kVersion);
    CUdevResource part{};
    unsigned int parts = 1;
    CUdevResourceDesc description = nullptr;
    EXPECT_EQ(split(&part, &parts, &all, nullptr, 0, kMultiprocessors), CUDA_SUCCESS);
    EXPECT_EQ(describe(&description, &part, 1), CUDA_SUCCESS);
    EXPECT_EQ(create(&green_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    EXPECT_EQ(convert(&context_, green_), CUDA_SUCCESS);
  }
  ~GreenContext() override {
    if (green_ == nullptr) return;
    EXPECT_EQ(driver_function<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040)(green_), CUDA_SUCCESS);
  }
  CUcontext get() const override { return context_; }

 private:
  CUgreenCtx green_ = nullptr;
  CUcontext context_ = nullptr;
};

struct ContextKind {
  std::string name;
  std::function<std::unique_ptr<ForeignContext>()> make;
};

class ForeignContexts : public testing::TestWithParam<ContextKind> {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no GPU here: contexts are not tested";
    context_ = GetParam().make();
    if (context_->get() == nullptr) GTEST_SKIP() << "no " << GetParam().name << " contexts here";
  }

  // In a new thread, which has the foreign context current before, within and after.
  void in_its_thread(const std::function<void()>& calls) {
    std::thread([&] {
      push();
      calls();
      EXPECT_EQ(current_context(), context_->get());
    }).join();
  }
  void push() {
    ASSERT_EQ(driver_function<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent", 4000)(context_->get()), CUDA_SUCCESS);
  }
  // Resets the primary context, where that does no harm, and makes a new foreign one.
  void reset_if_simulated() {
    if (!is_driver_simulated()) return;
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    context_.reset();
    ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
    context_ = GetParam().make();
  }
  void expect_current() const { EXPECT_EQ(current_context(), context_->get()); }

  // Requests that grow the heap, reuse memory, and give it back.
  void use(CachingAllocator& allocator, Stream stream) {
    void* const first = allocator.allocate(64 * kMiB, 0, stream);
    void* const small = allocator.allocate(512, 0, stream);
    allocator.record_stream(first, other_stream_);
    allocator.deallocate(first);
    void* const second = allocator.allocate(48 * kMiB, 0, stream);
    allocator.deallocate(second);
    allocator.deallocate(small);
    allocator.empty_cache();
  }

  std::unique_ptr<ForeignContext> context_;
  Stream other_stream_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Cuda, ForeignContexts,
                         testing::Values(ContextKind{"created", [] { return std::make_unique<CreatedContext>(); }},
                                         ContextKind{"green", [] { return std::make_unique<GreenContext>(); }}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(ForeignContexts, StayCurrentThroughTheCallsOfADevice) {
  const auto device = cuda_devices().at(0);
  in_its_thread([&] {
    const Address address = device->malloc(2 * kMiB).value();
    expect_current();
    const Event event = device->event_create();
    device->event_record(event, nullptr);
    expect_current();
    device->event_synchronize(event);
    device->event_destroy(event);
    expect_current();
    device->memory_info();
    device->capture_status(nullptr);
    device->synchronize();
    expect_current();
    EXPECT_THROW(device->free(0x1000), CudaError);
    expect_current();
    device->free(address);
  });
}

TEST_P(ForeignContexts, AreServedByBothHeaps) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    SCOPED_TRACE(options);
    CachingAllocator allocator(cuda_devices(), parse_options(options));
    use(allocator, nullptr);
    in_its_thread([&] { use(allocator, nullptr); });
    use(allocator, nullptr);
  }
}

// The first context that is seen is not taken for the device's.
TEST_P(ForeignContexts, AreServedByBothHeapsWhenTheirThreadIsTheFirstToCome) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    SCOPED_TRACE(options);
    reset_if_simulated();
    CachingAllocator allocator(cuda_devices(), parse_options(options));
    in_its_thread([&] { use(allocator, nullptr); });
    std::thread([&] {
      use(allocator, nullptr);
      EXPECT_EQ(current_context(), nullptr);
    }).join();
    use(allocator, nullptr);
  }
}

TEST_P(ForeignContexts, DoNotOwnTheMemoryThatTheirThreadsAllocate) {
  CachingAllocator allocator(cuda_devices(), parse_options("heap:pages"));
  void* memory = nullptr;
  in_its_thread([&] { memory = allocator.allocate(8 * kMiB, 0, nullptr); });
  context_.reset();
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaMemset(memory, 1, 8 * kMiB), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  allocator.deallocate(memory);
}

TEST_P(ForeignContexts, MayHaveStreamsThatMemoryIsUsedOn) {
  for (const char* options : {"heap:segments", "heap:pages"}) {
    SCOPED_TRACE(options);
    CachingAllocator allocator(cuda_devices(), parse_options(options));
    in_its_thread([&] {
      const auto create = driver_function<PFN_cuStreamCreate_v2000>("cuStreamCreate", 2000);
      const auto destroy = driver_function<PFN_cuStreamDestroy_v4000>("cuStreamDestroy", 4000);
      ASSERT_EQ(create(&other_stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      use(allocator, nullptr);
      use(allocator, other_stream_);
      EXPECT_EQ(destroy(std::exchange(other_stream_, nullptr)), CUDA_SUCCESS);
    });
  }
}

// Null means the default stream of the primary context, for every caller: an event for it is recorded there.
TEST_P(ForeignContexts, DoNotChangeWhatTheDefaultStreamIs) {
  const auto device = cuda_devices().at(0);
  const std::uint64_t before = device->stream_id(nullptr);
  in_its_thread([&] { EXPECT_EQ(device->stream_id(nullptr), before); });
}

TEST_P(ForeignContexts, HideNoReset) {
  if (!is_driver_simulated()) GTEST_SKIP() << "other tests use this GPU: a reset is not tested";
  CachingAllocator allocator(cuda_devices(), parse_options("heap:segments"));
  in_its_thread([&] { use(allocator, nullptr); });
  reset_if_simulated();
  in_its_thread([&] { EXPECT_THROW(allocator.allocate(64 * kMiB), DeviceReset); });
}

}  // namespace
}  // namespace cachalot

#endif
