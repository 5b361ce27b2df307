// cudaMallocAsync and cudaFreeAsync, from the device's default pool. Variants: default (threshold 0: free memory goes back at each
// synchronization) and keep (nothing goes back). Over the simulated runtime it is a model: simulator/state/pools.h.
#include <cstdint>
#include <limits>

#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

class CudaAsyncPeer : public bench::PeerBase {
 public:
  explicit CudaAsyncPeer(std::uint64_t threshold) {
    cudaMemPool_t pool = nullptr;
    bench::check_cuda("cudaDeviceGetDefaultMemPool", cudaDeviceGetDefaultMemPool(&pool, 0));
    bench::check_cuda("cudaMemPoolSetAttribute",
                      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  }
  void* allocate(std::size_t bytes, Stream stream) {
    void* pointer = nullptr;
    bench::check_cuda("cudaMallocAsync", cudaMallocAsync(&pointer, bytes, stream));
    return pointer;
  }
  void deallocate(void* pointer, std::size_t, Stream stream) {
    bench::check_cuda("cudaFreeAsync", cudaFreeAsync(pointer, stream));
  }
};

std::uint64_t threshold_of(const std::string& variant) {
  if (variant == "default") return 0;
  if (variant == "keep") return std::numeric_limits<std::uint64_t>::max();
  throw std::invalid_argument("cudaMallocAsync has the variants default and keep, not '" + variant + "'");
}

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    CudaAsyncPeer peer(threshold_of(variant));
    bench::measure_all(peer, effort, groups);
  });
}
