// What nvcc compiles, for callers that it need not compile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cachalot/kernels.h"

namespace cachalot {

// A launch carries its spans, or moves, as arguments: of 32,764 bytes at most, since CUDA 12.1 and compute capability
// 7.0.
inline constexpr std::size_t kSpansALaunch = 1360;
inline constexpr std::size_t kMovesALaunch = 1360;

// The answer for a span that is as the pattern has it; any other is the offset of the first byte that differs.
inline constexpr unsigned long long kNoDifference = ~0ull;

// Each queues one launch on the current device, for 1 to kSpansALaunch spans. `answers`: device memory, one a span, all
// kNoDifference before.
cudaError_t launch_fill(cudaStream_t stream, Span<const PatternSpan> spans);
cudaError_t launch_verify(cudaStream_t stream, Span<const PatternSpan> spans, unsigned long long* answers);

// Device memory that the moves of one launch work in: a list of them, and what CUB needs besides.
struct MoveScratch {
  BlockMove* list = nullptr;  // of kMovesALaunch
  void* temp = nullptr;
  std::size_t temp_bytes = 0;
};
// How many bytes of `temp` any number of moves up to kMovesALaunch needs, on the current device.
cudaError_t move_temp_bytes(std::size_t& bytes);
// Queues 1 to kMovesALaunch moves on the current device. Nobody else may use the scratch before they are done.
cudaError_t launch_moves(cudaStream_t stream, Span<const BlockMove> moves, const MoveScratch& scratch);

}  // namespace cachalot
