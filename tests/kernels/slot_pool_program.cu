#include "tests/kernels/slot_pool_program.h"

#include "cachalot/slot_pool.cuh"

namespace cachalot {

namespace {

constexpr unsigned kBlock = 128;

__device__ unsigned thread() { return blockIdx.x * kBlock + threadIdx.x; }

__global__ void take(SlotPoolView pool, unsigned threads, void** slots) {
  if (thread() < threads) slots[thread()] = pool.take();
}

__global__ void give(SlotPoolView pool, unsigned threads, void* const* slots) {
  if (thread() < threads) pool.give(slots[thread()]);
}

__global__ void churn(SlotPoolView pool, unsigned threads, unsigned rounds, unsigned long long* shared) {
  if (thread() >= threads) return;
  for (unsigned round = 0; round < rounds; ++round) {
    if ((thread() * 7 + round) % 3 == 0) continue;
    auto* const slot = static_cast<volatile unsigned long long*>(pool.take());
    if (slot == nullptr) continue;
    const unsigned long long mark = thread() + 1;
    *slot = mark;
    __nanosleep(100);
    if (*slot != mark) atomicAdd(shared, 1ull);
    pool.give(const_cast<unsigned long long*>(slot));
  }
}

dim3 blocks_of(unsigned threads) { return dim3((threads + kBlock - 1) / kBlock); }

}  // namespace

cudaError_t launch_take(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, void** slots) {
  take<<<blocks_of(threads), kBlock, 0, stream>>>(pool, threads, slots);
  return cudaGetLastError();
}

cudaError_t launch_give(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, void* const* slots) {
  give<<<blocks_of(threads), kBlock, 0, stream>>>(pool, threads, slots);
  return cudaGetLastError();
}

cudaError_t launch_churn(cudaStream_t stream, const SlotPoolView& pool, unsigned threads, unsigned rounds,
                         unsigned long long* shared) {
  churn<<<blocks_of(threads), kBlock, 0, stream>>>(pool, threads, rounds, shared);
  return cudaGetLastError();
}

}  // namespace cachalot
