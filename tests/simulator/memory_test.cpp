#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

#include "cuda_check.h"
#include "tests/resident_memory.h"

namespace cachalot {
namespace {

class SimulatorMemory : public SimulatorTest {};

TEST_F(SimulatorMemory, TheConfiguredDevicesAreThere) {
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  cudaDeviceProp prop{};
  ASSERT_CUDA(cudaGetDeviceProperties(&prop, 1));
  EXPECT_EQ(prop.totalGlobalMem, 64 * kMib);
  EXPECT_STREQ(prop.name, "NVIDIA L4");
  EXPECT_EQ(prop.major, 8);
  EXPECT_EQ(prop.minor, 9);
  EXPECT_EQ(prop.warpSize, 32);
  int multiprocessors = 0;
  ASSERT_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  EXPECT_EQ(multiprocessors, prop.multiProcessorCount);
  EXPECT_EQ(cudaGetDeviceProperties(&prop, 2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(SimulatorMemory, MemoryIsAccountedUntilItIsFreed) {
  const std::size_t before = free_bytes();
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMalloc(&pointer, 3 * kMib));
  EXPECT_EQ(free_bytes(), before - 4 * kMib);  // in units of 2 MiB
  ASSERT_CUDA(cudaFree(pointer));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(SimulatorMemory, MoreThanTheDeviceHasIsOutOfMemoryAndChangesNothing) {
  void* all = nullptr;
  ASSERT_CUDA(cudaMalloc(&all, 64 * kMib));
  void* more = &more;
  EXPECT_EQ(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_CUDA(cudaFree(all));
}

TEST_F(SimulatorMemory, EachDeviceHasItsOwnMemory) {
  void* first = nullptr;
  ASSERT_CUDA(cudaMalloc(&first, 64 * kMib));
  ASSERT_CUDA(cudaSetDevice(1));
  void* second = nullptr;
  ASSERT_CUDA(cudaMalloc(&second, 64 * kMib));
  cudaPointerAttributes attributes{};
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, static_cast<char*>(first) + 5));
  EXPECT_EQ(attributes.device, 0);
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, second));
  EXPECT_EQ(attributes.device, 1);
  ASSERT_CUDA(cudaFree(first));  // whichever device is current
  ASSERT_CUDA(cudaFree(second));
}

TEST_F(SimulatorMemory, SmallCopiesAndFillsAreReal) {
  std::vector<int> numbers(1000);
  std::iota(numbers.begin(), numbers.end(), 7);
  const std::size_t bytes = numbers.size() * sizeof(int);
  char* device = nullptr;
  ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&device), 3 * bytes));
  ASSERT_CUDA(cudaMemcpy(device, numbers.data(), bytes, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpyAsync(device + bytes, device, bytes, cudaMemcpyDeviceToDevice, nullptr));
  std::vector<int> back(1000);
  ASSERT_CUDA(cudaMemcpy(back.data(), device + bytes, bytes, cudaMemcpyDefault));
  EXPECT_EQ(back, numbers);
  ASSERT_CUDA(cudaMemset(device + 4, 0x5a, 8));
  ASSERT_CUDA(cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back[0], 7);
  EXPECT_EQ(back[1], 0x5a5a5a5a);
  EXPECT_EQ(back[3], 10);
  ASSERT_CUDA(cudaMemcpy(back.data(), device + 2 * bytes, bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, std::vector<int>(1000)) << "what was never written reads as zeros";
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(SimulatorMemory, FreedMemoryForgetsItsContent) {
  for (int round = 0; round < 2; ++round) {
    void* device = nullptr;
    ASSERT_CUDA(cudaMalloc(&device, kMib));
    int value = -1;
    ASSERT_CUDA(cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
    EXPECT_EQ(value, 0);
    ASSERT_CUDA(cudaMemset(device, 1, kMib));
    ASSERT_CUDA(cudaFree(device));
  }
}

TEST_F(SimulatorMemory, LargeCopiesToPinnedMemoryTakeNoneOfTheHost) {
  const std::size_t bytes = 32 * kMib;
  void* device = nullptr;
  void* memory = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, bytes));
  ASSERT_CUDA(cudaMallocHost(&memory, bytes));
  char* const pinned = static_cast<char*>(memory);
  const std::size_t before = resident_bytes();
  for (int time = 0; time < 2; ++time) {
    ASSERT_CUDA(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, nullptr));
    ASSERT_CUDA(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, nullptr));
  }
  EXPECT_LT(resident_bytes(), before + 4 * kMib);
  pinned[bytes / 2] = pinned[bytes - 1] = 1;
  ASSERT_CUDA(cudaMemcpy(pinned, device, bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::count(pinned, pinned + bytes, 0), static_cast<std::ptrdiff_t>(bytes));
  ASSERT_CUDA(cudaFreeHost(pinned));
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(SimulatorMemory, LargeCopiesToTheHostGiveZeros) {
  const std::size_t bytes = 2 * kMib;  // beyond `copy_bytes` of CACHALOT_SIM
  void* device = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, bytes));
  std::vector<char> host(bytes, 'x');
  ASSERT_CUDA(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, std::vector<char>(bytes));
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(SimulatorMemory, ACopyBeyondAnAllocationIsRefused) {
  void* device = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, 100));
  char host[200] = {};
  EXPECT_EQ(cudaMemcpy(host, device, 200, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, nullptr, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(SimulatorMemory, ManagedMemoryTakesRoomOnTheDeviceAndGivesWay) {
  const std::size_t before = free_bytes();
  void* managed = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&managed, 7 * kMib));
  EXPECT_EQ(free_bytes(), before - 8 * kMib);
  void* all = nullptr;
  ASSERT_CUDA(cudaMalloc(&all, before - 4 * kMib));
  EXPECT_EQ(free_bytes(), 0) << "half of the managed memory lies on the host";
  void* larger = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&larger, before));
  ASSERT_CUDA(cudaFree(managed));
  ASSERT_CUDA(cudaFree(larger));
  ASSERT_CUDA(cudaFree(all));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(SimulatorMemory, HostMemoryIsKnownByItsKind) {
  void* pinned = nullptr;
  ASSERT_CUDA(cudaHostAlloc(&pinned, 1000, cudaHostAllocMapped));
  void* managed = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal));
  std::vector<char> registered(10'000);
  ASSERT_CUDA(cudaHostRegister(registered.data(), registered.size(), cudaHostRegisterDefault));
  EXPECT_EQ(cudaHostRegister(registered.data() + 5, 10, 0), cudaErrorHostMemoryAlreadyRegistered);
  cudaGetLastError();

  const auto type_of = [](const void* pointer) {
    cudaPointerAttributes attributes{};
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, pointer));
    return attributes.type;
  };
  EXPECT_EQ(type_of(static_cast<char*>(pinned) + 999), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type_of(&registered[1]), cudaMemoryTypeHost);
  int plain = 0;
  EXPECT_EQ(type_of(&plain), cudaMemoryTypeUnregistered);

  std::memset(managed, 3, 1000);
  EXPECT_CUDA(cudaFree(managed));
  EXPECT_CUDA(cudaFreeHost(pinned));
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_CUDA(cudaHostUnregister(registered.data()));
  EXPECT_EQ(type_of(&registered[1]), cudaMemoryTypeUnregistered);
}

TEST_F(SimulatorMemory, OneHandleMappedTwiceHasOneContent) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  std::size_t page = 0;
  ASSERT_EQ(DRIVER(cuMemGetAllocationGranularity)(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
  CUdeviceptr range = 0;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&range, 2 * page, 0, 0, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(DRIVER(cuMemCreate)(&handle, page, &properties, 0), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemMap)(range, page, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemMap)(range + page, page, 0, handle, 0), CUDA_SUCCESS);
  void* const first = reinterpret_cast<void*>(range);
  void* const second = reinterpret_cast<void*>(range + page);
  int value = 42;
  EXPECT_EQ(cudaMemcpy(first, &value, sizeof(value), cudaMemcpyDefault), cudaErrorInvalidValue) << "no access yet";
  cudaGetLastError();

  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_EQ(DRIVER(cuMemSetAccess)(range, 2 * page, &access, 1), CUDA_SUCCESS);
  ASSERT_CUDA(cudaMemcpy(first, &value, sizeof(value), cudaMemcpyDefault));
  int seen = 0;
  ASSERT_CUDA(cudaMemcpy(&seen, second, sizeof(seen), cudaMemcpyDefault));
  EXPECT_EQ(seen, 42);

  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  EXPECT_EQ(DRIVER(cuMemSetAccess)(range, page, &access, 1), CUDA_ERROR_NOT_SUPPORTED);

  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(DRIVER(cuMemRetainAllocationHandle)(&again, second), CUDA_SUCCESS);
  EXPECT_EQ(again, handle);
  EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemRelease)(handle), CUDA_ERROR_INVALID_VALUE) << "mappings keep the memory, not the handle";
  EXPECT_EQ(DRIVER(cuMemUnmap)(range, 2 * page), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(range, 2 * page), CUDA_SUCCESS);
}

class SimulatorPool : public SimulatorMemory {
 protected:
  void SetUp() override {
    SimulatorMemory::SetUp();
    ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool_, 0));
  }

  unsigned long long attribute(cudaMemPoolAttr which) {
    unsigned long long value = 0;
    EXPECT_CUDA(cudaMemPoolGetAttribute(pool_, which, &value));
    return value;
  }
  void* allocate(std::size_t bytes) {
    void* pointer = nullptr;
    EXPECT_CUDA(cudaMallocAsync(&pointer, bytes, nullptr));
    return pointer;
  }
  void free(void* pointer) { EXPECT_CUDA(cudaFreeAsync(pointer, nullptr)); }

  cudaMemPool_t pool_ = nullptr;
};

TEST_F(SimulatorPool, IsOpenToTheDevicesThatAreToldAlone) {
  const auto access = [&](int device) {
    cudaMemLocation place = {cudaMemLocationTypeDevice, device};
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
    EXPECT_CUDA(cudaMemPoolGetAccess(&flags, pool_, &place));
    return flags;
  };
  cudaMemAccessDesc one = {{cudaMemLocationTypeDevice, 1}, cudaMemAccessFlagsProtReadWrite};
  EXPECT_EQ(access(0), cudaMemAccessFlagsProtReadWrite);
  EXPECT_EQ(access(1), cudaMemAccessFlagsProtNone);
  EXPECT_CUDA(cudaMemPoolSetAccess(pool_, &one, 1));
  EXPECT_EQ(access(1), cudaMemAccessFlagsProtReadWrite);
  one.flags = cudaMemAccessFlagsProtNone;
  EXPECT_CUDA(cudaMemPoolSetAccess(pool_, &one, 1));
  EXPECT_EQ(access(1), cudaMemAccessFlagsProtNone);
  one.location.id = 0;
  EXPECT_EQ(cudaMemPoolSetAccess(pool_, &one, 1), cudaErrorInvalidValue) << "its own device";
  cudaGetLastError();
}

TEST_F(SimulatorPool, KeepsWhatIsFreedUntilTheNextSynchronization) {
  void* const first = allocate(kMib);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), kMib);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 32 * kMib);
  free(first);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), 0);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 32 * kMib);
  void* const second = allocate(2 * kMib);
  EXPECT_EQ(second, first);
  free(second);
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 0);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemHigh), 32 * kMib);
}

TEST_F(SimulatorPool, CutsBlocksOfOneRegionAndMergesThemAgain) {
  void* const first = allocate(1);
  void* const second = allocate(20 * kMib);
  EXPECT_EQ(static_cast<char*>(second), static_cast<char*>(first) + 512);
  EXPECT_EQ(attribute(cudaMemPoolAttrUsedMemCurrent), 20 * kMib + 1);
  free(first);
  free(second);
  void* const whole = allocate(32 * kMib);
  EXPECT_EQ(whole, first);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemHigh), 32 * kMib);
  free(whole);
  ASSERT_CUDA(cudaMemPoolTrimTo(pool_, 0));
}

TEST_F(SimulatorPool, DoesNotServeALargeBlockOfWhatIsFreeInTwoRegions) {
  void* const first = allocate(20 * kMib);
  void* const second = allocate(20 * kMib);
  EXPECT_EQ(free_bytes(), 0);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMallocAsync(&pointer, 16 * kMib, nullptr), cudaErrorMemoryAllocation) << "12 MiB are free in each";
  cudaGetLastError();
  free(first);
  free(second);
  ASSERT_CUDA(cudaMemPoolTrimTo(pool_, 0));
}

TEST_F(SimulatorPool, KeepsItsThreshold) {
  unsigned long long threshold = 32 * kMib;
  ASSERT_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold));
  free(allocate(4 * kMib));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(free_bytes(), 32 * kMib);
  ASSERT_CUDA(cudaMemPoolTrimTo(pool_, 0));
  EXPECT_EQ(free_bytes(), 64 * kMib);
  threshold = 0;
  ASSERT_CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &threshold));
}

TEST_F(SimulatorPool, GivesUpWhatItKeepsForALargerBlock) {
  free(allocate(40 * kMib));
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 64 * kMib);
  void* const whole = allocate(60 * kMib);
  EXPECT_EQ(attribute(cudaMemPoolAttrReservedMemCurrent), 64 * kMib);
  free(whole);
  ASSERT_CUDA(cudaMemPoolTrimTo(pool_, 0));
}

TEST_F(SimulatorMemory, ADestroyedPoolLivesUntilItsLastBlockIsFreed) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaMemPoolCreate(&pool, &properties));
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMallocFromPoolAsync(&pointer, 4 * kMib, pool, nullptr));
  ASSERT_CUDA(cudaMemPoolDestroy(pool));
  EXPECT_EQ(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  EXPECT_EQ(free_bytes(), 32 * kMib);
  ASSERT_CUDA(cudaFreeAsync(pointer, nullptr));
  EXPECT_EQ(free_bytes(), 64 * kMib);
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  unsigned long long used = 1;
  ASSERT_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  EXPECT_EQ(used, 0);
}

TEST_F(SimulatorMemory, RowsBeginAtMultiplesOfThePitchsUnit) {
  constexpr std::size_t kHeight = 4096;
  void* rows = nullptr;
  std::size_t pitch = 0;
  ASSERT_CUDA(cudaMallocPitch(&rows, &pitch, 513, kHeight));
  EXPECT_EQ(pitch, 1024u);
  EXPECT_EQ(free_bytes(), 60 * kMib);
  ASSERT_CUDA(cudaFree(rows));
}

TEST_F(SimulatorMemory, LargeCopiesOfRowsAreCheckedAndGiveZeros) {
  constexpr std::size_t kWidth = 1024;
  constexpr std::size_t kHeight = 2048;  // more than `copy_bytes` of CACHALOT_SIM
  void* device = nullptr;
  ASSERT_CUDA(cudaMalloc(&device, kWidth * kHeight));
  std::vector<char> host(kWidth * kHeight, 'x');
  const auto to_host = [&](std::size_t height) {
    return cudaMemcpy2D(host.data(), kWidth, device, kWidth, kWidth, height, cudaMemcpyDeviceToHost);
  };
  ASSERT_CUDA(to_host(kHeight));
  EXPECT_EQ(host, std::vector<char>(kWidth * kHeight));
  EXPECT_EQ(cudaMemset2D(device, kWidth, 1, kWidth, kHeight + 1), cudaErrorInvalidValue) << "beyond the allocation";
  cudaGetLastError();
  ASSERT_CUDA(cudaFree(device));
}

TEST_F(SimulatorMemory, AReservedRangeIsAligned) {
  constexpr std::size_t kAlignment = 64 * kMib;
  CUdeviceptr unaligned = 0;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&unaligned, 2 * kMib, 0, 0, 0), CUDA_SUCCESS);
  CUdeviceptr range = 0;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&range, 2 * kMib, kAlignment, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(range % kAlignment, 0);
  CUdeviceptr none = 0;
  EXPECT_EQ(DRIVER(cuMemAddressReserve)(&none, 2 * kMib, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(range, 2 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(unaligned, 2 * kMib), CUDA_SUCCESS);
}

TEST_F(SimulatorMemory, APointerNobodyKnowsHasAttributesOfZero) {
  int plain = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  unsigned int type = 7;
  void* values[] = {&type};
  EXPECT_EQ(DRIVER(cuPointerGetAttributes)(1, &attribute, values, reinterpret_cast<CUdeviceptr>(&plain)), CUDA_SUCCESS);
  EXPECT_EQ(type, 0);
  EXPECT_EQ(DRIVER(cuPointerGetAttribute)(&type, attribute, reinterpret_cast<CUdeviceptr>(&plain)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimulatorMemory, WhatCannotBeDoneIsRefused) {
  EXPECT_EQ(cudaMalloc(static_cast<void**>(nullptr), 1), cudaErrorInvalidValue);
  int waits = 1;
  EXPECT_EQ(DRIVER(cuDeviceGetAttribute)(&waits, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0), CUDA_SUCCESS);
  EXPECT_EQ(waits, 0) << "cuStreamWaitValue is not there";
  cudaGetLastError();
}

TEST_F(SimulatorMemory, AResetTakesAllThatTheDeviceHadAndNothingOfAnother) {
  unsigned long long before = 0;
  unsigned long long after = 0;
  void* elsewhere = nullptr;
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaMalloc(&elsewhere, kMib));
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_EQ(DRIVER(cuCtxGetId)(nullptr, &before), CUDA_SUCCESS);
  void* memory = nullptr;
  void* pinned = nullptr;
  std::vector<char> registered(kMib);
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  CUdeviceptr range = 0;
  ASSERT_CUDA(cudaMalloc(&memory, 8 * kMib));
  ASSERT_CUDA(cudaMallocHost(&pinned, kMib));
  ASSERT_CUDA(cudaHostRegister(registered.data(), registered.size(), cudaHostRegisterDefault));
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaEventCreate(&event));
  ASSERT_CUDA(cudaEventRecord(event, stream));
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&range, 4 * kMib, 0, 0, 0), CUDA_SUCCESS);
  const std::size_t used = used_bytes();

  ASSERT_CUDA(cudaDeviceReset());

  EXPECT_LE(used_bytes() + 8 * kMib, used);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostUnregister(registered.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(range, 4 * kMib), CUDA_ERROR_INVALID_VALUE);
  cudaGetLastError();
  EXPECT_EQ(DRIVER(cuCtxGetId)(nullptr, &after), CUDA_SUCCESS);
  EXPECT_NE(after, before);
  ASSERT_CUDA(cudaMalloc(&memory, kMib));  // it begins anew
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaFree(elsewhere));
}

TEST_F(SimulatorMemory, LimitsAreKeptForEachDeviceAndTakeNothingFromAContextThatCostsNothing) {
  const auto limit = [](cudaLimit which) {
    std::size_t value = 0;
    EXPECT_CUDA(cudaDeviceGetLimit(&value, which));
    return value;
  };
  ASSERT_CUDA(cudaSetDevice(1));
  const std::size_t before = used_bytes();
  ASSERT_CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
  EXPECT_EQ(DRIVER(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * kMib), CUDA_SUCCESS);
  EXPECT_EQ(limit(cudaLimitStackSize), 4096);
  EXPECT_EQ(limit(cudaLimitMallocHeapSize), 16 * kMib);
  EXPECT_EQ(used_bytes(), before);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(limit(cudaLimitStackSize), 1024);
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaDeviceReset());
  EXPECT_EQ(limit(cudaLimitStackSize), 1024);
}

TEST_F(SimulatorMemory, PeerAccessIsEnabledOnce) {
  int can = 0;
  ASSERT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  ASSERT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  cudaGetLastError();
  EXPECT_CUDA(cudaDeviceDisablePeerAccess(1));
}

}  // namespace
}  // namespace cachalot
