// cachalot through CudaDevice. The variant is its options: "heap:segments", "heap:pages,thread_cache:False", …
#include "bench/peers/peer_main.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/guard.h"

namespace {

using namespace cachalot;

class CachalotPeer : public bench::PeerBase {
 public:
  explicit CachalotPeer(const Options& options) : allocator_(cuda_devices(), options, guard_factory()) {}
  void* allocate(std::size_t bytes, Stream stream) { return allocator_.allocate(bytes, 0, stream); }
  void deallocate(void* pointer, std::size_t, Stream) { allocator_.deallocate(pointer); }

 private:
  CachingAllocator allocator_;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    CachalotPeer peer(parse_options(variant));
    bench::measure_all(peer, effort, groups);
  });
}
