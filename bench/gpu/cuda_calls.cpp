#include "bench/gpu/cuda_calls.h"

#include <dlfcn.h>

#include <thread>

#include "bench/gpu/report.h"

namespace cachalot::gpu {
namespace {

constexpr std::size_t kControlBytes = 4096;

template <typename Function>
Function* simulators(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

std::string name_of(CUresult result) {
  const char* name = nullptr;
  return cuGetErrorName(result, &name) == CUDA_SUCCESS ? name : "code " + std::to_string(static_cast<int>(result));
}

std::string name_of(cudaError_t error) { return cudaGetErrorName(error); }

void require(const char* call, CUresult result) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(call) + ": " + name_of(result));
}

void require(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the next part is not to see it
  throw std::runtime_error(std::string(call) + ": " + name_of(error));
}

std::chrono::nanoseconds host_time() {
  if (auto* const simulated = simulators<std::int64_t()>("cachalot_sim_clock_ns")) {
    return std::chrono::nanoseconds(simulated());
  }
  return std::chrono::steady_clock::now().time_since_epoch();
}

void sleep_for(std::chrono::milliseconds duration) {
  if (auto* const advance = simulators<int(std::int64_t)>("cachalot_sim_advance")) {
    advance(std::chrono::nanoseconds(duration).count());
  } else {
    std::this_thread::sleep_for(duration);
  }
}

bool OwnStream::is_busy() const {
  const cudaError_t state = cudaStreamQuery(stream_);
  if (state != cudaErrorNotReady) require("cudaStreamQuery", state);
  return state == cudaErrorNotReady;
}

WrongWords::WrongWords() {
  load_kernels();
  void* memory = nullptr;
  require("cudaMalloc", cudaMalloc(&memory, kControlBytes + sizeof(*count_)));
  count_ = reinterpret_cast<unsigned long long*>(static_cast<char*>(memory) + kControlBytes);
  require("cudaMemset", cudaMemset(count_, 0, sizeof(*count_)));
  if (!is_simulated()) require_that_it_counts();
}

WrongWords::~WrongWords() { cudaFree(reinterpret_cast<char*>(count_) - kControlBytes); }

// The control: words that are all wrong, and words that are right.
void WrongWords::require_that_it_counts() {
  const OwnStream stream;
  const Words words = words_at(reinterpret_cast<char*>(count_) - kControlBytes, kControlBytes);
  fill(stream, words, 1);
  check(stream, words, 2, count_);
  const std::uint64_t wrong_ones = read();
  check(stream, words, 1, count_);
  if (wrong_ones != words.count || read() != words.count) {
    throw std::runtime_error("the kernels do not count: " + std::to_string(wrong_ones) + " of " +
                             std::to_string(words.count) + " wrong words");
  }
  require("cudaMemset", cudaMemset(count_, 0, sizeof(*count_)));
}

std::uint64_t WrongWords::read() const {
  require("cudaDeviceSynchronize", cudaDeviceSynchronize());
  unsigned long long count = 0;
  require("cudaMemcpy", cudaMemcpy(&count, count_, sizeof(count), cudaMemcpyDeviceToHost));
  return count;
}

CUmemAllocationProp allocation_properties(int handle_kind, bool for_rdma) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_kind);
  properties.allocFlags.gpuDirectRDMACapable = for_rdma ? 1 : 0;
  return properties;
}

void open_access(CUdeviceptr address, std::size_t bytes) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  require("cuMemSetAccess", cuMemSetAccess(address, bytes, &access, 1));
}

Views::Views(std::size_t bytes, int count) : bytes_(bytes), count_(count) {
  const CUmemAllocationProp properties = allocation_properties();
  require("cuMemCreate", cuMemCreate(&handle_, bytes, &properties, 0));
  require("cuMemAddressReserve", cuMemAddressReserve(&range_, bytes * static_cast<std::size_t>(count), 0, 0, 0));
  for (int view = 0; view < count; ++view) map(view);
}

Views::~Views() {
  cudaDeviceSynchronize();
  for (int view = 0; view < count_; ++view) cuMemUnmap(address(view), bytes_);
  cuMemAddressFree(range_, bytes_ * static_cast<std::size_t>(count_));
  cuMemRelease(handle_);
}

void Views::map(int view) {
  require("cuMemMap", cuMemMap(address(view), bytes_, 0, handle_, 0));
  open_access(address(view), bytes_);
}

void Views::unmap(int view) { require("cuMemUnmap", cuMemUnmap(address(view), bytes_)); }

}  // namespace cachalot::gpu
