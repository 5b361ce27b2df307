// Kernels that write words, check words and take time, for programs that a C++ compiler compiles.
//
// Word i of memory filled with `seed` is seed + i.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace cachalot::gpu {

using Word = std::uint32_t;

struct Words {
  Word* first = nullptr;
  std::size_t count = 0;
};

// dependent: programmatic dependent launch. The kernel may be on the GPU while the one before it still runs, and waits there
// for that one's memory before it reads or writes, as CUTLASS and FlashAttention-3 do. From compute capability 9.0 on.
enum class Launch { ordinary, dependent };

void fill(cudaStream_t stream, Words words, Word seed, Launch how = Launch::ordinary);
// Adds the number of words that are not as filled with `seed` to *wrong, which is device memory. Reads pass the L1 cache.
void check(cudaStream_t stream, Words words, Word seed, unsigned long long* wrong, Launch how = Launch::ordinary);
// Checks words that are all `value`.
void check_equal(cudaStream_t stream, Words words, Word value, unsigned long long* wrong);
// Checks as check does; but each word is also read before the kernel waits for its predecessor. CUDA does not define what
// reading early at another address of the same memory does to the second read.
void check_after_early_read(cudaStream_t stream, Words words, Word seed, unsigned long long* wrong);
// Loads the kernels, which CUDA else does at their first launch: then there may be no memory left, or a capture forbids it.
void load_kernels();
// Keeps the stream busy. On the simulated runtime in virtual time.
void run_for(cudaStream_t stream, std::chrono::nanoseconds duration);
// Reads the words over and over for that long.
void read_for(cudaStream_t stream, Words words, std::chrono::nanoseconds duration);

}  // namespace cachalot::gpu
