#include <cuda_runtime.h>
#include <dlfcn.h>

#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/kernels.h"

namespace cachalot::gpu {
namespace {

constexpr unsigned kBlocks = 512, kThreads = 256;

// Both are nothing in a kernel that was launched the ordinary way.
__device__ void let_the_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ void wait_for_the_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ std::size_t first_index() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::size_t stride() { return std::size_t{gridDim.x} * blockDim.x; }

// Through L1 on purpose: a stale line there is what the checks look for.
__device__ Word load(const Word* word) {
  Word value;
  asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void fill_words(Words words, Word seed) {
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  for (std::size_t i = first_index(); i < words.count; i += stride()) words.first[i] = seed + static_cast<Word>(i);
}

// Word i should be seed + step * i.
__device__ void count_wrong(Words words, Word seed, Word step, unsigned long long* wrong) {
  for (std::size_t i = first_index(); i < words.count; i += stride()) {
    if (load(words.first + i) != seed + step * static_cast<Word>(i)) atomicAdd(wrong, 1ull);
  }
}

__global__ void check_words(Words words, Word seed, Word step, unsigned long long* wrong) {
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  count_wrong(words, seed, step, wrong);
}

__global__ void check_words_after_early_read(Words words, Word seed, unsigned long long* wrong) {
  for (std::size_t i = first_index(); i < words.count; i += stride()) load(words.first + i);
  let_the_next_kernel_start();
  wait_for_the_kernel_before();
  count_wrong(words, seed, 1, wrong);
}

__global__ void spin(unsigned long long ns) {
  const unsigned long long start = now_ns();
  while (now_ns() - start < ns) {
  }
}

// Past L1, whose lines might be served without a look at the mapping.
__global__ void read_words(Words words, unsigned long long ns) {
  const unsigned long long start = now_ns();
  while (now_ns() - start < ns) {
    for (std::size_t i = first_index(); i < words.count; i += stride()) {
      static_cast<void>(*const_cast<const volatile Word*>(words.first + i));
    }
  }
}

template <typename... Parameters, typename... Arguments>
void launch(cudaStream_t stream, Launch how, void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchAttribute dependent = {};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = how == Launch::dependent ? 1 : 0;
  require("cudaLaunchKernelEx", cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

using SimulatedLaunch = int (*)(cudaStream_t, std::int64_t);
SimulatedLaunch simulated_launch() {
  return reinterpret_cast<SimulatedLaunch>(dlsym(RTLD_DEFAULT, "cachalot_sim_launch"));
}

}  // namespace

void fill(cudaStream_t stream, Words words, Word seed, Launch how) { launch(stream, how, fill_words, words, seed); }

void check(cudaStream_t stream, Words words, Word seed, unsigned long long* wrong, Launch how) {
  launch(stream, how, check_words, words, seed, 1, wrong);
}

void check_equal(cudaStream_t stream, Words words, Word value, unsigned long long* wrong) {
  launch(stream, Launch::ordinary, check_words, words, value, 0, wrong);
}

void check_after_early_read(cudaStream_t stream, Words words, Word seed, unsigned long long* wrong) {
  launch(stream, Launch::dependent, check_words_after_early_read, words, seed, wrong);
}

void load_kernels() {
  const auto load_one = [](auto* kernel) {
    cudaFuncAttributes attributes = {};
    require("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel));
  };
  load_one(fill_words);
  load_one(check_words);
  load_one(check_words_after_early_read);
  load_one(spin);
  load_one(read_words);
}

void run_for(cudaStream_t stream, std::chrono::nanoseconds duration) {
  if (const SimulatedLaunch simulated = simulated_launch()) {
    simulated(stream, duration.count());
    return;
  }
  spin<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(duration.count()));
  require("spin", cudaGetLastError());
}

void read_for(cudaStream_t stream, Words words, std::chrono::nanoseconds duration) {
  if (simulated_launch()) return run_for(stream, duration);
  read_words<<<kBlocks, kThreads, 0, stream>>>(words, static_cast<unsigned long long>(duration.count()));
  require("read_words", cudaGetLastError());
}

}  // namespace cachalot::gpu
