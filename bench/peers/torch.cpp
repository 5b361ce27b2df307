// PyTorch's own caching allocator, from C++. The variant is its settings, as in PYTORCH_CUDA_ALLOC_CONF, or empty.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

class TorchPeer : public bench::PeerBase {
 public:
  explicit TorchPeer(const std::string& settings) : allocator_(c10::cuda::CUDACachingAllocator::get()) {
    if (!settings.empty()) c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings);
    allocator_->init(/*device_count=*/1);
  }
  void* allocate(std::size_t bytes, Stream stream) { return allocator_->raw_alloc_with_stream(bytes, stream); }
  void deallocate(void* pointer, std::size_t, Stream) { allocator_->raw_delete(pointer); }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator_;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    TorchPeer peer(variant);
    bench::measure_all(peer, effort, groups);
  });
}
