#include "examples/async_transfer/break_even.h"

#include <cmath>
#include <vector>

#include "examples/common/cuda.h"

namespace async_transfer {

namespace {

constexpr int kRounds = 8;

double copy_us(void* to, const void* from, std::size_t bytes) {
  const examples::Stream stream;
  const auto copy = [&] {
    EXAMPLES_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()));
    stream.synchronize();
  };
  copy();  // the first touches pages and wakes the bus
  return examples::microseconds([&] {
           for (int i = 0; i < kRounds; ++i) copy();
         }) /
         kRounds;
}

double pinning_us(std::size_t bytes) {
  return examples::microseconds([&] {
           for (int i = 0; i < kRounds; ++i) {
             void* memory = nullptr;
             EXAMPLES_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
             EXAMPLES_CHECK(cudaFreeHost(memory));
           }
         }) /
         kRounds;
}

}  // namespace

std::optional<long> BreakEven::copies() const {
  constexpr double kNoise = 0.02;  // a gain of less than this share counts as noise
  if (gain_us() <= kNoise * pageable_us) return std::nullopt;
  return std::lround(std::ceil(pinning_us / gain_us()));
}

BreakEven measure_break_even(std::size_t bytes) {
  BreakEven measured{.bytes = bytes, .pinning_us = pinning_us(bytes)};
  void* on_gpu = nullptr;
  EXAMPLES_CHECK(cudaMalloc(&on_gpu, bytes));
  const std::vector<char> pageable(bytes, 1);
  measured.pageable_us = copy_us(on_gpu, pageable.data(), bytes);
  void* pinned = nullptr;
  EXAMPLES_CHECK(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
  measured.pinned_us = copy_us(on_gpu, pinned, bytes);
  EXAMPLES_CHECK(cudaFreeHost(pinned));
  EXAMPLES_CHECK(cudaFree(on_gpu));
  return measured;
}

}  // namespace async_transfer
