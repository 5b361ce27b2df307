// The ways in which drivers refuse what their devices claim for handles of physical memory, each on the simulated driver: a page
// of memory is had all the same, and the device tells what its handles are.
#include <gtest/gtest.h>

#if CACHALOT_HAS_CUDART

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/errors.h"
#include "device/cuda_device.h"
#include "simulated_driver.h"

namespace cachalot {
namespace {

class CudaHandles : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_driver_simulated()) GTEST_SKIP() << "no simulated driver here: refused handles are not tested";
    set({});
  }
  void TearDown() override {
    if (!is_driver_simulated()) return;
    set({});
    set_faults("");
  }

  static void set(const SimulatedHandles& handles) { ASSERT_EQ(set_simulated_handles(handles), 0); }
  static void set_faults(const char* faults) { ASSERT_EQ(set_simulated_faults(faults), 0); }
  static CudaDevice new_device() {
    cuda_devices();  // initializes the driver
    return CudaDevice(0);
  }

  // A page of memory, opened to its device.
  struct Page {
    Address address = 0;
    MemoryHandle handle = 0;
  };
  static Page make_page(Device& device) {
    const std::size_t bytes = device.properties().page_bytes;
    const Page page{device.reserve(bytes).value(), device.create(bytes).value()};
    device.map(page.address, bytes, page.handle);
    device.set_access(page.address, bytes, {});
    return page;
  }
  static void destroy(Device& device, const Page& page) {
    const std::size_t bytes = device.properties().page_bytes;
    device.unmap(page.address, bytes);
    device.release(page.handle);
    device.unreserve(page.address, bytes);
  }
  static void use_a_page(Device& device) { destroy(device, make_page(device)); }

  static void expect_form(const Device& device, bool descriptor, bool fabric, bool rdma) {
    const DeviceProperties properties = device.properties();
    EXPECT_EQ(properties.shares_by_descriptor, descriptor);
    EXPECT_EQ(properties.shares_by_fabric, fabric);
    EXPECT_EQ(properties.rdma_capable, rdma);
  }
  static bool has_context(int ordinal) {
    void* get_state = nullptr;
    EXPECT_EQ(
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &get_state, 7000, cudaEnableDefault, nullptr),
        cudaSuccess);
    unsigned int flags = 0;
    int active = 0;
    EXPECT_EQ(reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(get_state)(ordinal, &flags, &active),
              CUDA_SUCCESS);
    return active != 0;
  }
};

TEST_F(CudaHandles, AreOfAllKindsThatTheDeviceClaimsWhereTheDriverAgrees) {
  set({.claims_fabric = 1, .claims_rdma = 1});
  CudaDevice device = new_device();
  expect_form(device, true, true, true);
  use_a_page(device);
  expect_form(device, true, true, true);
}

TEST_F(CudaHandles, AreTriedAtTheFirstCreateAndNotBefore) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  set({.claims_rdma = 1, .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CudaDevice device = new_device();
  EXPECT_FALSE(has_context(0));
  expect_form(device, true, false, true);
  use_a_page(device);
  expect_form(device, true, false, false);
}

// No IMEX channel for this process.
TEST_F(CudaHandles, AreSharedByDescriptorWhereTheFabricIsForbidden) {
  set({.claims_fabric = 1, .claims_rdma = 1, .create_fabric_error = CUDA_ERROR_NOT_PERMITTED});
  CudaDevice device = new_device();
  use_a_page(device);
  expect_form(device, true, false, true);
}

// WSL2.
TEST_F(CudaHandles, AreNotForRdmaWhereSuchMemoryCannotBeOpened) {
  set({.claims_rdma = 1, .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CudaDevice device = new_device();
  use_a_page(device);
  expect_form(device, true, false, false);
}

TEST_F(CudaHandles, AreNotForRdmaWhereSuchMemoryCannotBeCreated) {
  set({.claims_fabric = 1, .claims_rdma = 1, .create_rdma_error = CUDA_ERROR_NOT_SUPPORTED});
  CudaDevice device = new_device();
  use_a_page(device);
  expect_form(device, true, true, false);
}

TEST_F(CudaHandles, AreNotSharedAtAllWhereTheDriverRefusesEachKind) {
  set({.claims_fabric = 1,
       .claims_rdma = 1,
       .create_fabric_error = CUDA_ERROR_NOT_PERMITTED,
       .create_file_error = CUDA_ERROR_NOT_SUPPORTED});
  CudaDevice device = new_device();
  use_a_page(device);
  expect_form(device, false, false, true);
}

TEST_F(CudaHandles, AreTheLeastWhereTheDriverRefusesAllElse) {
  set({.claims_fabric = 1,
       .claims_rdma = 1,
       .create_fabric_error = CUDA_ERROR_NOT_PERMITTED,
       .create_file_error = CUDA_ERROR_NOT_SUPPORTED,
       .create_rdma_error = CUDA_ERROR_INVALID_VALUE});
  CudaDevice device = new_device();
  use_a_page(device);
  expect_form(device, false, false, false);
}

// gVisor.
TEST_F(CudaHandles, AreMadeForSharingWhereOnlyTheExportFails) {
  set({.export_file_error = CUDA_ERROR_NOT_PERMITTED});
  CudaDevice device = new_device();
  const Page page = make_page(device);
  expect_form(device, true, false, false);
  EXPECT_THROW(device.export_handle(page.handle), CudaError);
  destroy(device, page);
}

TEST_F(CudaHandles, OfBothKindsAreExportedByDescriptorWhereTheFabricFails) {
  set({.claims_fabric = 1});
  CudaDevice device = new_device();
  const Page page = make_page(device);
  expect_form(device, true, true, false);
  const ShareableHandle shared = device.export_handle(page.handle);
  EXPECT_EQ(shared.kind, ShareableHandle::Kind::descriptor);
  EXPECT_GE(shared.descriptor, 0);
  close(shared.descriptor);
  destroy(device, page);
}

TEST_F(CudaHandles, AreNotJudgedByALackOfMemory) {
  set({.claims_fabric = 1, .claims_rdma = 1});
  CudaDevice device = new_device();
  const std::size_t page = device.properties().page_bytes;
  for (const char* fault : {"create:1", "reserve:1", "map:1:error=2", "set_access:1:error=2"}) {
    SCOPED_TRACE(fault);
    set_faults(fault);
    EXPECT_EQ(device.create(page), std::nullopt);
    expect_form(device, true, true, true);
  }
  set_faults("");
  use_a_page(device);
  expect_form(device, true, true, true);
}

TEST_F(CudaHandles, AreTriedAgainAfterAnErrorOfAllForms) {
  set({.claims_rdma = 1});
  CudaDevice device = new_device();
  const std::size_t page = device.properties().page_bytes;
  set_faults("create:1+:error=700");
  try {
    device.create(page);
    FAIL() << "nothing was thrown";
  } catch (const CudaError& error) {
    EXPECT_EQ(error.code(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(error.call(), "cuMemCreate");
  }
  set_faults("");
  use_a_page(device);
  expect_form(device, true, false, true);
}

TEST_F(CudaHandles, TakeNoMemoryWhenTheyAreTried) {
  set({.claims_fabric = 1,
       .claims_rdma = 1,
       .create_fabric_error = CUDA_ERROR_NOT_PERMITTED,
       .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CudaDevice device = new_device();
  const std::size_t before = device.memory_info().free_bytes;
  use_a_page(device);
  EXPECT_EQ(device.memory_info().free_bytes, before);
}

TEST_F(CudaHandles, AreTriedOnceByThreadsThatComeTogether) {
  set({.claims_rdma = 1, .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CudaDevice device = new_device();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { use_a_page(device); });
  for (std::thread& thread : threads) thread.join();
  expect_form(device, true, false, false);
}

TEST_F(CudaHandles, AreTriedDuringACapture) {
  set({.claims_rdma = 1, .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CudaDevice device = new_device();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const std::optional<MemoryHandle> handle = device.create(device.properties().page_bytes);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(handle.has_value());
  device.release(*handle);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaHandles, LetThePageHeapWorkWhereTheDriverRefusesAllElse) {
  set({.claims_fabric = 1,
       .claims_rdma = 1,
       .create_fabric_error = CUDA_ERROR_NOT_PERMITTED,
       .create_file_error = CUDA_ERROR_NOT_SUPPORTED,
       .access_rdma_error = CUDA_ERROR_UNKNOWN});
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:pages"));
  void* const memory = allocator.allocate(64 * kMiB, 0, nullptr);
  EXPECT_NE(memory, nullptr);
  allocator.deallocate(memory);
}

TEST_F(CudaHandles, WithoutAGranularityAreNotUsedAndTheHeapIsOfSegments) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  set({.granularity_error = CUDA_ERROR_NOT_SUPPORTED});
  const auto device = cuda_devices().at(0);
  EXPECT_FALSE(device->properties().virtual_memory);
  EXPECT_EQ(device->properties().page_bytes, 0u);
  expect_form(*device, false, false, false);
  EXPECT_FALSE(has_context(0)) << "made by the question";
  testing::internal::CaptureStderr();
  CachingAllocator allocator({device}, parse_options("heap:pages"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "cachalot: GPU 0 has no virtual memory management: heap:segments is used instead of heap:pages\n");
  void* const memory = allocator.allocate(64 * kMiB, 0, nullptr);
  EXPECT_NE(memory, nullptr);
  allocator.deallocate(memory);
}

}  // namespace
}  // namespace cachalot

#endif
