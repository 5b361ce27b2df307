// Our kernels. Clang compiles them to device_code.ptx, which is kept beside this file (write_device_code.cmake says why),
// without any of CUDA's headers.
#define __CUDACC__  // for CACHALOT_HOST_DEVICE
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))

#include <cstdlib>  // before others: Clang's own <new> for CUDA needs it

#include "kernels/device_code.h"

CACHALOT_BEGIN

namespace {

// In the address space of device memory, so that no instruction has to find out which space an address is of.
template <typename Type>
using InDeviceMemory = __attribute__((address_space(1))) Type;

// A thread of a grid.
struct Gpu {
  using Pair = std::uint64_t __attribute__((vector_size(16)));

  __device__ static unsigned thread() { return __nvvm_read_ptx_sreg_tid_x(); }
  __device__ static unsigned block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
  __device__ static unsigned blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
  __device__ static Word load(Address address) {
    const Pair pair = *reinterpret_cast<const InDeviceMemory<Pair>*>(address);
    return {pair[0], pair[1]};
  }
  __device__ static void store(Address address, const Word& word) {
    *reinterpret_cast<InDeviceMemory<Pair>*>(address) = Pair{word.low, word.high};
  }
  __device__ static unsigned char load_byte(Address address) {
    return *reinterpret_cast<const InDeviceMemory<unsigned char>*>(address);
  }
  __device__ static void store_byte(Address address, unsigned char byte) {
    *reinterpret_cast<InDeviceMemory<unsigned char>*>(address) = byte;
  }
  // Looks first: where a whole span is wrong, few of its threads find a smaller one.
  __device__ static void lower(unsigned long long* place, unsigned long long value) {
    if (value < *static_cast<volatile unsigned long long*>(place)) __nvvm_atom_min_gen_ull(place, value);
  }
};

}  // namespace

extern "C" {

#define CACHALOT_KERNEL __global__ void __attribute__((launch_bounds(kThreadsABlock)))

CACHALOT_KERNEL cachalot_fill(const Batch<PatternSpan> batch) { fill_patterns(Gpu(), batch); }

CACHALOT_KERNEL cachalot_verify(const Batch<PatternSpan> batch, unsigned long long* answers) {
  verify_patterns(Gpu(), batch, answers);
}

CACHALOT_KERNEL cachalot_move(const Batch<BlockMove> batch) { move_blocks(Gpu(), batch); }

}  // extern "C"

CACHALOT_END
