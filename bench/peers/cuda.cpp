// cudaMalloc and cudaFree themselves. The variant is empty.
#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

class CudaPeer : public bench::PeerBase {
 public:
  void* allocate(std::size_t bytes, Stream) {
    void* pointer = nullptr;
    bench::check_cuda("cudaMalloc", cudaMalloc(&pointer, bytes));
    return pointer;
  }
  void deallocate(void* pointer, std::size_t, Stream) { bench::check_cuda("cudaFree", cudaFree(pointer)); }
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    if (!variant.empty()) throw std::invalid_argument("cudaMalloc has no variant '" + variant + "'");
    CudaPeer peer;
    bench::measure_all(peer, effort, groups);
  });
}
