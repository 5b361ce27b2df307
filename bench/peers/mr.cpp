// cachalot through cachalot::MemoryResource, by the calls of CCCL's memory resources. The variant is its options, as of cachalot;
// "any:" in front of them takes CCCL's handle for any resource instead of the resource itself.
#include "cachalot/mr.h"
#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

#if CACHALOT_MR_HAS_SYNC_CALLS
using AnyResource = ::cuda::mr::resource_ref<::cuda::mr::device_accessible>;
#else
using AnyResource = ::cuda::mr::async_resource_ref<::cuda::mr::device_accessible>;
#endif

template <typename Resource>
class MrPeer : public bench::PeerBase {
 public:
  explicit MrPeer(const Options& options) : allocator_(cuda_devices(), options), own_(allocator_), resource_(own_) {}
  void* allocate(std::size_t bytes, Stream stream) {
    return allocate_from(resource_, {bytes, kDefaultAlignment, stream, false});
  }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) {
    deallocate_to(resource_, pointer, {bytes, kDefaultAlignment, stream, false});
  }

 private:
  CachingAllocator allocator_;
  MemoryResource own_;
  Resource resource_;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](std::string variant, const auto& effort, const auto& groups) {
    const std::string any = "any:";
    if (variant.starts_with(any)) {
      MrPeer<AnyResource> peer(parse_options(variant.substr(any.size())));
      bench::measure_all(peer, effort, groups);
    } else {
      MrPeer<MemoryResource> peer(parse_options(variant));
      bench::measure_all(peer, effort, groups);
    }
  });
}
