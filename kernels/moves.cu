#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_memcpy.cuh>

#include "kernels/launches.h"

namespace cachalot {

namespace {

constexpr unsigned kThreads = 256;

// Moves as a kernel's arguments. Two sizes: an argument is copied whole at each launch.
template <std::size_t kCapacity>
struct Batch {
  BlockMove moves[kCapacity];
};
using FewMoves = Batch<16>;
using ManyMoves = Batch<kMovesALaunch>;
static_assert(sizeof(ManyMoves) + sizeof(BlockMove*) + sizeof(unsigned) <= 32764);

// CUB's threads copy their iterators: with the moves themselves in them that was 39 KiB of stack for each
// thread. So this kernel's arguments bring them, and CUB reads a list in memory.
template <typename Moves>
__global__ void __launch_bounds__(kThreads)
    write_list(const __grid_constant__ Moves batch, unsigned count, BlockMove* list) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) list[i] = batch.moves[i];
}

struct SourceOf {
  const BlockMove* list;
  __host__ __device__ void* operator()(unsigned i) const { return reinterpret_cast<void*>(list[i].from); }
};
struct DestinationOf {
  const BlockMove* list;
  __host__ __device__ void* operator()(unsigned i) const { return reinterpret_cast<void*>(list[i].to); }
};
struct BytesOf {
  const BlockMove* list;
  __host__ __device__ std::size_t operator()(unsigned i) const { return list[i].bytes; }
};

cudaError_t copy_listed(cudaStream_t stream, const BlockMove* list, std::size_t count, void* temp, std::size_t& bytes) {
  const thrust::counting_iterator<unsigned> place(0);
  return cub::DeviceMemcpy::Batched(temp, bytes, thrust::make_transform_iterator(place, SourceOf{list}),
                                    thrust::make_transform_iterator(place, DestinationOf{list}),
                                    thrust::make_transform_iterator(place, BytesOf{list}),
                                    static_cast<std::int64_t>(count), stream);
}

template <typename Moves>
cudaError_t launch_write(cudaStream_t stream, Span<const BlockMove> moves, BlockMove* list) {
  Moves batch{};
  std::copy(moves.begin(), moves.end(), batch.moves);
  auto count = static_cast<unsigned>(moves.size());
  void* arguments[] = {&batch, &count, &list};
  return cudaLaunchKernel(reinterpret_cast<const void*>(write_list<Moves>), dim3((count + kThreads - 1) / kThreads),
                          dim3(kThreads), arguments, 0, stream);
}

}  // namespace

cudaError_t move_temp_bytes(std::size_t& bytes) { return copy_listed(nullptr, nullptr, kMovesALaunch, nullptr, bytes); }

cudaError_t launch_moves(cudaStream_t stream, Span<const BlockMove> moves, const MoveScratch& scratch) {
  const bool are_few = moves.size() <= std::size(FewMoves{}.moves);
  const cudaError_t written = are_few ? launch_write<FewMoves>(stream, moves, scratch.list)
                                      : launch_write<ManyMoves>(stream, moves, scratch.list);
  if (written != cudaSuccess) return written;
  std::size_t bytes = scratch.temp_bytes;
  return copy_listed(stream, scratch.list, moves.size(), scratch.temp, bytes);
}

}  // namespace cachalot
