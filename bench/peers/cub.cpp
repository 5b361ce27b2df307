// CUB's CachingDeviceAllocator. The variant is "powers of two": bins of 512 bytes to 1 TiB, each twice the last, all of
// them cached without limit. By default it caches 6 MiB in bins that grow by 8, and calls the driver for the rest.
#include <cub/util_allocator.cuh>

#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

class CubPeer : public bench::PeerBase {
 public:
  void* allocate(std::size_t bytes, Stream stream) {
    void* pointer = nullptr;
    call("DeviceAllocate", [&] { return allocator_.DeviceAllocate(&pointer, bytes, stream); });
    return pointer;
  }
  void deallocate(void* pointer, std::size_t, Stream) {
    call("DeviceFree", [&] { return allocator_.DeviceFree(pointer); });
  }

 private:
  // A search that finds a block still in use leaves cudaErrorNotReady as the runtime's last error, which CUB's next call
  // takes for its own and returns, having done nothing.
  template <typename Call>
  static void call(const char* name, Call&& call) {
    cudaError_t error = call();
    if (error == cudaErrorNotReady) error = call();
    bench::check_cuda(name, error);
  }

  cub::CachingDeviceAllocator allocator_{/*bin_growth=*/2, /*min_bin=*/9, /*max_bin=*/40,
                                         cub::CachingDeviceAllocator::INVALID_SIZE, /*skip_cleanup=*/true};
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    if (variant != "powers of two") throw std::invalid_argument("CUB has no variant '" + variant + "'");
    CubPeer peer;
    bench::measure_all(peer, effort, groups);
  });
}
