#include <algorithm>
#include <utility>

#include "device/pattern.h"
#include "kernels/launches.h"

namespace cachalot {

namespace {

using Pair = ulonglong2;  // what a thread stores or loads at once

constexpr unsigned kThreads = 256;
constexpr std::size_t kBytesAThread = 8 * sizeof(Pair);
constexpr std::size_t kMostBlocks = 4096;  // of one launch: several for each multiprocessor of any GPU

// Spans as a kernel's arguments. Two sizes: an argument is copied whole at each launch.
template <std::size_t kCapacity>
struct Batch {
  PatternSpan spans[kCapacity];
};
using FewSpans = Batch<16>;
using ManySpans = Batch<kSpansALaunch>;
static_assert(sizeof(ManySpans) + sizeof(unsigned long long*) <= 32764);

// A span is pairs at multiples of their size, and at most 15 edge bytes before and after them.
struct Layout {
  __device__ explicit Layout(const PatternSpan& span)
      : before(min(span.bytes, (sizeof(Pair) - span.address % sizeof(Pair)) % sizeof(Pair))),
        pairs((span.bytes - before) / sizeof(Pair)),
        edges(span.bytes - pairs * sizeof(Pair)) {}
  __device__ std::size_t pair_offset(std::size_t pair) const { return before + pair * sizeof(Pair); }
  __device__ std::size_t edge_offset(std::size_t edge) const {
    return edge < before ? edge : edge + pairs * sizeof(Pair);
  }
  std::size_t before;
  std::size_t pairs;
  std::size_t edges;
};

// Blocks of one blockIdx.y share a span; its pairs and edges are dealt to their threads in turn.
__device__ std::size_t first_place() { return std::size_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ std::size_t stride() { return std::size_t{gridDim.x} * kThreads; }

__device__ Pair pattern_pair(Address address, std::uint64_t seed) {
  return {pattern_word(address / 8, seed), pattern_word(address / 8 + 1, seed)};
}

template <typename Spans>
__global__ void __launch_bounds__(kThreads) fill(const __grid_constant__ Spans batch) {
  const PatternSpan span = batch.spans[blockIdx.y];
  const Layout layout(span);
  for (std::size_t i = first_place(); i < layout.pairs; i += stride()) {
    const Address at = span.address + layout.pair_offset(i);
    *reinterpret_cast<Pair*>(at) = pattern_pair(at, span.seed);
  }
  for (std::size_t i = first_place(); i < layout.edges; i += stride()) {
    const Address at = span.address + layout.edge_offset(i);
    *reinterpret_cast<unsigned char*>(at) = pattern_byte(at, span.seed);
  }
}

// The place of the first byte that is not 0 in little-endian words of which one is not 0.
__device__ unsigned first_byte(unsigned long long low, unsigned long long high) {
  return low != 0 ? (__ffsll(low) - 1) / 8 : 8 + (__ffsll(high) - 1) / 8;
}

// The first difference that this thread sees, which goes up in its pairs.
__device__ unsigned long long difference_in_pairs(const PatternSpan& span, const Layout& layout) {
  for (std::size_t i = first_place(); i < layout.pairs; i += stride()) {
    const std::size_t offset = layout.pair_offset(i);
    const Pair held = *reinterpret_cast<const Pair*>(span.address + offset);
    const Pair right = pattern_pair(span.address + offset, span.seed);
    if (held.x != right.x || held.y != right.y) return offset + first_byte(held.x ^ right.x, held.y ^ right.y);
  }
  return kNoDifference;
}

__device__ unsigned long long difference_in_edges(const PatternSpan& span, const Layout& layout) {
  for (std::size_t i = first_place(); i < layout.edges; i += stride()) {
    const std::size_t offset = layout.edge_offset(i);
    const Address at = span.address + offset;
    if (*reinterpret_cast<const unsigned char*>(at) != pattern_byte(at, span.seed)) return offset;
  }
  return kNoDifference;
}

// A block's threads agree in shared memory, so that a span that is all wrong costs one atomic a block.
template <typename Spans>
__global__ void __launch_bounds__(kThreads) verify(const __grid_constant__ Spans batch, unsigned long long* answers) {
  __shared__ unsigned long long first;
  if (threadIdx.x == 0) first = kNoDifference;
  __syncthreads();
  const PatternSpan span = batch.spans[blockIdx.y];
  const Layout layout(span);
  const unsigned long long mine = min(difference_in_pairs(span, layout), difference_in_edges(span, layout));
  if (mine != kNoDifference) atomicMin(&first, mine);
  __syncthreads();
  if (threadIdx.x == 0 && first != kNoDifference) atomicMin(&answers[blockIdx.y], first);
}

dim3 grid_for(Span<const PatternSpan> spans) {
  std::size_t most_bytes = 0;
  for (const PatternSpan& span : spans) most_bytes = std::max(most_bytes, span.bytes);
  const std::size_t wanted = most_bytes / (kThreads * kBytesAThread) + 1;
  const std::size_t allowed = std::max<std::size_t>(kMostBlocks / spans.size(), 1);
  return {static_cast<unsigned>(std::min(wanted, allowed)), static_cast<unsigned>(spans.size()), 1};
}

template <typename Spans, typename... Arguments>
cudaError_t launch_batch(void (*kernel)(Spans, Arguments...), cudaStream_t stream, Span<const PatternSpan> spans,
                         Arguments... arguments) {
  Spans batch{};
  std::copy(spans.begin(), spans.end(), batch.spans);
  void* pointers[] = {&batch, &arguments...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid_for(spans), dim3(kThreads), pointers, 0, stream);
}

bool are_few(Span<const PatternSpan> spans) { return spans.size() <= std::size(FewSpans{}.spans); }

}  // namespace

cudaError_t launch_fill(cudaStream_t stream, Span<const PatternSpan> spans) {
  return are_few(spans) ? launch_batch<FewSpans>(fill<FewSpans>, stream, spans)
                        : launch_batch<ManySpans>(fill<ManySpans>, stream, spans);
}

cudaError_t launch_verify(cudaStream_t stream, Span<const PatternSpan> spans, unsigned long long* answers) {
  return are_few(spans) ? launch_batch<FewSpans>(verify<FewSpans>, stream, spans, answers)
                        : launch_batch<ManySpans>(verify<ManySpans>, stream, spans, answers);
}

}  // namespace cachalot
