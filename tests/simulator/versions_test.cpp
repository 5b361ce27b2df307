// Tests of programs that load CUDA by name: they find the simulated driver, and the simulated runtime of the version they ask
// for, with that version's ABI.
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda_check.h"

namespace cachalot {
namespace {

// A library that was loaded by name.
class Loaded {
 public:
  explicit Loaded(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) ADD_FAILURE() << dlerror();
  }
  ~Loaded() {
    if (handle_) dlclose(handle_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  template <typename... Arguments>
  cudaError_t call(const char* name, Arguments... arguments) const {
    void* function = handle_ ? dlsym(handle_, name) : nullptr;
    if (!function) {
      ADD_FAILURE() << "no " << name;
      return cudaErrorSymbolNotFound;
    }
    return reinterpret_cast<cudaError_t (*)(Arguments...)>(function)(arguments...);
  }

 private:
  void* handle_;
};

int runtime_version(const std::string& library) {
  int version = -1;
  EXPECT_CUDA(Loaded(library).call("cudaRuntimeGetVersion", &version));
  return version;
}

// The real libcudart, which the test is linked with.
std::string path_of_real_runtime() {
  std::string path;
  const auto look = [](dl_phdr_info* library, std::size_t, void* result) -> int {
    const std::string name = library->dlpi_name;
    if (name.find("libcudart.so") == name.npos || name.find("/simulator/cudart/") != name.npos) return 0;
    *static_cast<std::string*>(result) = name;
    return 1;
  };
  dl_iterate_phdr(look, &path);
  return path;
}

class SimulatorVersions : public SimulatorTest {
 protected:
  void* allocate() {
    void* pointer = nullptr;
    EXPECT_CUDA(cudaMalloc(&pointer, kMib));
    return pointer;
  }
};

TEST_F(SimulatorVersions, EachRuntimeIsFoundByItsName) {
  EXPECT_EQ(runtime_version("libcudart.so.12"), 12090);
  EXPECT_EQ(runtime_version("libcudart.so.12.4.127"), 12090);
  EXPECT_EQ(runtime_version("libcudart.so.13"), 13000);
  EXPECT_EQ(runtime_version("libcudart-d0da41ae.so.12"), 12090) << "a copy in a wheel";
  EXPECT_EQ(runtime_version("libcudart.3c9a6f9b.so.13"), 13000);
  EXPECT_EQ(runtime_version("libcudart.so"), 13000) << "the version that the program is linked with";
}

TEST_F(SimulatorVersions, ARealRuntimesPathLeadsToTheSimulatedOne) {
  const std::string path = path_of_real_runtime();
  ASSERT_NE(path, "");
  int devices = 0;
  EXPECT_CUDA(Loaded(path).call("cudaGetDeviceCount", &devices));
  EXPECT_EQ(devices, 2);
}

TEST_F(SimulatorVersions, TheDriverIsFoundByItsNames) {
  for (const char* name : {"libcuda.so.1", "libcuda.so"}) {
    int version = -1;
    EXPECT_CUDA(Loaded(name).call("cuDriverGetVersion", &version)) << name;
    EXPECT_EQ(version, 13000) << name;
  }
}

TEST_F(SimulatorVersions, NcclIsFoundByItsName) {
  int version = 0;
  EXPECT_CUDA(Loaded("libnccl.so.2").call("ncclGetVersion", &version));
  EXPECT_EQ(version, 22809);
}

TEST_F(SimulatorVersions, AMathLibraryThatIsLoadedByNameHasTheSimulatedFunctions) {
  const Loaded library(CACHALOT_MATH_LIBRARY);
  int count = -1;
  void* const handle = nullptr;
  EXPECT_CUDA(library.call("cublasGetSmCountTarget", handle, &count));
  EXPECT_EQ(count, 0);
  EXPECT_EQ(library.call("cublasOnlyHere"), 3);
  void* const real = dlopen(CACHALOT_MATH_LIBRARY, RTLD_NOW);
  ASSERT_NE(real, nullptr);
  EXPECT_EQ(dlsym(real, "cublasGetMathMode"), nullptr) << "it does not have that one";
  dlclose(real);
}

TEST_F(SimulatorVersions, WhatIsNotThereIsNotLoaded) {
  for (const char* name :
       {"/nowhere/libcudart.so.12", "/nowhere/libcuda.so.1", "libcudart.so.10.0", "libcudart.so.99"}) {
    EXPECT_EQ(dlopen(name, RTLD_NOW), nullptr) << name;
    const char* message = dlerror();
    ASSERT_NE(message, nullptr) << name;
    EXPECT_NE(std::string(message).find(name), std::string::npos) << message;
  }
}

TEST_F(SimulatorVersions, AllRuntimesOfAProcessShareItsDevices) {
  const std::size_t before = free_bytes();
  void* pointer = nullptr;
  ASSERT_CUDA(Loaded("libcudart.so.12").call("cudaMalloc", &pointer, std::size_t{4 * kMib}));
  EXPECT_EQ(free_bytes(), before - 4 * kMib);
  EXPECT_CUDA(Loaded("libcudart.so.13").call("cudaMemset", pointer, 7, std::size_t{16}));
  unsigned char value = 0;
  EXPECT_CUDA(cudaMemcpy(&value, pointer, 1, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 7);
  EXPECT_CUDA(cudaFree(pointer));
}

TEST_F(SimulatorVersions, PointerAttributesOf12Take24Bytes) {
  void* pointer = allocate();
  std::array<unsigned char, 64> bytes;
  bytes.fill(0xa5);
  ASSERT_CUDA(Loaded("libcudart.so.12").call("cudaPointerGetAttributes", bytes.data(), pointer));
  int type = -1;
  void* device_pointer = nullptr;
  std::memcpy(&type, bytes.data(), sizeof(type));
  std::memcpy(&device_pointer, &bytes[8], sizeof(device_pointer));
  EXPECT_EQ(type, cudaMemoryTypeDevice);
  EXPECT_EQ(device_pointer, pointer);
  EXPECT_TRUE(std::all_of(bytes.begin() + 24, bytes.end(), [](unsigned char byte) { return byte == 0xa5; }));
  EXPECT_CUDA(cudaFree(pointer));
}

// Offsets by the headers of CUDA 12.9.
class Properties12 {
 public:
  explicit Properties12(const char* function) {
    bytes_.fill(kUntouched);
    EXPECT_CUDA(Loaded("libcudart.so.12").call(function, static_cast<void*>(bytes_.data()), 1));
  }

  template <typename Value>
  Value at(std::size_t offset) const {
    Value value;
    std::memcpy(&value, &bytes_[offset], sizeof(value));
    return value;
  }
  const char* name() const { return bytes_.data(); }
  // Returns the end of the function's output.
  std::size_t written() const {
    const auto last = std::find_if(bytes_.rbegin(), bytes_.rend(), [](char byte) { return byte != kUntouched; });
    return static_cast<std::size_t>(bytes_.rend() - last);
  }

 private:
  static constexpr char kUntouched = 0x5a;
  std::array<char, 2048> bytes_;
};

TEST_F(SimulatorVersions, DevicePropertiesOf12HaveTheirLayout) {
  cudaDeviceProp properties{};
  ASSERT_CUDA(cudaGetDeviceProperties(&properties, 1));
  for (const char* function : {"cudaGetDeviceProperties_v2", "cudaGetDeviceProperties"}) {
    const Properties12 of_12(function);
    EXPECT_STREQ(of_12.name(), properties.name);
    EXPECT_EQ(of_12.at<std::size_t>(288), properties.totalGlobalMem);
    EXPECT_GT(of_12.at<int>(348), 1'000'000) << "clockRate, in kHz";
    EXPECT_EQ(of_12.at<int>(360), properties.major);
    EXPECT_EQ(of_12.at<int>(388), properties.multiProcessorCount);
    EXPECT_EQ(of_12.at<int>(600), properties.asyncEngineCount);
    EXPECT_EQ(of_12.at<int>(612), properties.memoryBusWidth);
    EXPECT_EQ(of_12.at<std::size_t>(696), properties.sharedMemPerBlockOptin);
  }
  EXPECT_EQ(Properties12("cudaGetDeviceProperties_v2").written(), 1032u);
  EXPECT_EQ(Properties12("cudaGetDeviceProperties_v2").at<int>(744), properties.memoryPoolsSupported);
  EXPECT_LE(Properties12("cudaGetDeviceProperties").written(), 728u) << "CUDA 11's struct";
}

TEST_F(SimulatorVersions, GraphsOf12HaveEdgesWithoutData) {
  const Loaded runtime("libcudart.so.12");
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaGraphCreate(&graph, 0));
  std::array<cudaGraphNode_t, 2> nodes{};
  for (cudaGraphNode_t& node : nodes) ASSERT_CUDA(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));

  ASSERT_CUDA(runtime.call("cudaGraphAddDependencies", graph, &nodes[0], &nodes[1], std::size_t{1}));
  cudaGraphNode_t from = nullptr;
  cudaGraphNode_t to = nullptr;
  std::size_t count = 1;
  EXPECT_CUDA(runtime.call("cudaGraphGetEdges", graph, &from, &to, &count));
  EXPECT_EQ(std::pair(from, to), std::pair(nodes[0], nodes[1]));
  EXPECT_CUDA(runtime.call("cudaGraphNodeGetDependencies", nodes[1], &from, &count));
  EXPECT_EQ(from, nodes[0]);
  EXPECT_CUDA(runtime.call("cudaGraphNodeGetDependentNodes", nodes[0], &to, &count));
  EXPECT_EQ(to, nodes[1]);

  EXPECT_CUDA(runtime.call("cudaGraphRemoveDependencies", graph, &nodes[0], &nodes[1], std::size_t{1}));
  EXPECT_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], nullptr, 1), cudaErrorInvalidValue)
      << "it is gone";
  cudaGetLastError();
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(SimulatorVersions, CapturesOf12TellStatusAndNumber) {
  const Loaded runtime("libcudart.so.12");
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  unsigned long long expected = 0;
  cudaStreamCaptureStatus status{};
  ASSERT_CUDA(cudaStreamGetCaptureInfo(stream, &status, &expected, nullptr, nullptr, nullptr, nullptr));
  for (const char* function : {"cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_ptsz"}) {
    unsigned long long number = 0;
    status = cudaStreamCaptureStatusNone;
    EXPECT_CUDA(runtime.call(function, stream, &status, &number));
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    EXPECT_EQ(number, expected);
  }
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(SimulatorVersions, ManagedMemoryIsAdvisedByADevicesNumberIn12) {
  const Loaded runtime("libcudart.so.12");
  void* pointer = nullptr;
  ASSERT_CUDA(cudaMallocManaged(&pointer, kMib));
  EXPECT_CUDA(runtime.call("cudaMemAdvise", pointer, kMib, cudaMemAdviseSetPreferredLocation, 0));
  EXPECT_CUDA(runtime.call("cudaMemPrefetchAsync", pointer, kMib, 0, cudaStream_t{}));
  EXPECT_CUDA(cudaFree(pointer));
}

// ---- The driver's functions by version ------------------------------------------------------------------------------

struct EntryPoint {
  void* function = nullptr;
  CUdriverProcAddressQueryResult result{};
};

EntryPoint entry_point(const char* name, int version) {
  EntryPoint found;
  cuGetProcAddress(name, &found.function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found.result);
  return found;
}

TEST_F(SimulatorVersions, AVersionOfCudaHasItsFormOfADriversFunction) {
  const auto expect = [](const char* name, int version, const char* symbol) {
    const EntryPoint found = entry_point(name, version);
    EXPECT_EQ(found.result, CU_GET_PROC_ADDRESS_SUCCESS) << name << " of " << version;
    EXPECT_EQ(found.function, dlsym(RTLD_DEFAULT, symbol)) << name << " of " << version;
  };
  expect("cuMemAlloc", 12000, "cuMemAlloc_v2");
  expect("cuCtxCreate", 11000, "cuCtxCreate_v2");
  expect("cuCtxCreate", 12040, "cuCtxCreate_v3");
  expect("cuCtxCreate", 13000, "cuCtxCreate_v4");
  expect("cuStreamGetCaptureInfo", 11000, "cuStreamGetCaptureInfo");
  expect("cuStreamGetCaptureInfo", 12000, "cuStreamGetCaptureInfo_v2");
  expect("cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3");
  expect("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags");
  EXPECT_EQ(entry_point("cuCtxGetId", 11000).result, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(entry_point("cuNoSuchFunction", 13000).result, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

// The form of a function for programs with a default stream for each thread, as the driver hands it out.
void* per_thread_form(const char* name) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult result{};
  EXPECT_EQ(cuGetProcAddress(name, &function, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &result),
            CUDA_SUCCESS)
      << name;
  return function;
}

TEST_F(SimulatorVersions, AProgramWithAStreamPerThreadHasFormsForIt) {
  EXPECT_EQ(per_thread_form("cuMemcpyHtoD"), dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(per_thread_form("cuStreamBeginCapture"), dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2_ptsz"));
  EXPECT_EQ(per_thread_form("cuMemAlloc"), dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  const auto id_of = reinterpret_cast<CUresult (*)(CUstream, unsigned long long*)>(per_thread_form("cuStreamGetId"));
  ASSERT_NE(id_of, nullptr);
  unsigned long long own = 0;
  unsigned long long of_no_stream = 0;
  ASSERT_CUDA(cudaStreamGetId(cudaStreamPerThread, &own));
  ASSERT_EQ(id_of(nullptr, &of_no_stream), CUDA_SUCCESS);
  EXPECT_EQ(of_no_stream, own);
}

TEST_F(SimulatorVersions, AFillWaitsForTheStreamOfItsForm) {
  const auto fill =
      reinterpret_cast<CUresult (*)(CUdeviceptr, unsigned int, std::size_t)>(per_thread_form("cuMemsetD32"));
  ASSERT_NE(fill, nullptr);
  void* const memory = allocate();
  cudaStream_t capturing = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&capturing));
  ASSERT_CUDA(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
  // The legacy stream must not be used by then; the thread's own may.
  EXPECT_EQ(cuMemsetD32(reinterpret_cast<CUdeviceptr>(memory), 7, 4), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(capturing, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  ASSERT_CUDA(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
  EXPECT_EQ(fill(reinterpret_cast<CUdeviceptr>(memory), 7, 4), CUDA_SUCCESS);
  EXPECT_CUDA(cudaStreamEndCapture(capturing, &graph));
  int value = 0;
  EXPECT_CUDA(cudaMemcpy(&value, memory, sizeof(value), cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 7);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(capturing));
  EXPECT_CUDA(cudaFree(memory));
}

TEST_F(SimulatorVersions, AFormWith32BitAddressesIsNotSupported) {
  const auto allocate32 =
      reinterpret_cast<CUresult (*)(unsigned int*, unsigned int)>(dlsym(RTLD_DEFAULT, "cuMemAlloc"));
  ASSERT_NE(allocate32, nullptr);
  unsigned int address = 0;
  EXPECT_EQ(allocate32(&address, 1024), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(SimulatorVersions, EntryPointsOf12AreThoseOf12) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  ASSERT_CUDA(Loaded("libcudart.so.12")
                  .call("cudaGetDriverEntryPoint", "cuCtxGetId", &function,
                        static_cast<unsigned long long>(cudaEnableDefault), &result));
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  ASSERT_CUDA(Loaded("libcudart.so.13")
                  .call("cudaGetDriverEntryPointByVersion", "cuMemPrefetchAsync", &function, 12000u,
                        static_cast<unsigned long long>(cudaEnableDefault), &result));
  EXPECT_EQ(function, dlsym(RTLD_DEFAULT, "cuMemPrefetchAsync"));
}

}  // namespace
}  // namespace cachalot
