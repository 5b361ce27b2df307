// RMM's pool_memory_resource, which grows from nothing, and arena_memory_resource, which takes its memory at once. The
// variant is "pool" or "arena".
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>

#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

using Pool = rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>;
using Arena = rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>;

constexpr std::size_t kPoolBytes = 0;
constexpr std::size_t kArenaBytes = std::size_t{64} << 30;  // enough for every figure

template <typename Resource>
class RmmPeer : public bench::PeerBase {
 public:
  static constexpr bool kFixedMemory = std::is_same_v<Resource, Arena>;
  static constexpr bool kLinearInHoles = true;
  static constexpr bool kMillionBlocks = !std::is_same_v<Resource, Arena>;  // an allocation looks at every superblock

  explicit RmmPeer(std::size_t initial_bytes) : resource_(&cuda_, initial_bytes) {}
  void* allocate(std::size_t bytes, Stream stream) { return resource_.allocate(bytes, stream); }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) { resource_.deallocate(pointer, bytes, stream); }

 private:
  rmm::mr::cuda_memory_resource cuda_;
  Resource resource_;
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    if (variant == "pool") {
      RmmPeer<Pool> peer(kPoolBytes);
      bench::measure_all(peer, effort, groups);
    } else if (variant == "arena") {
      RmmPeer<Arena> peer(kArenaBytes);
      bench::measure_all(peer, effort, groups);
    } else {
      throw std::invalid_argument("RMM has no variant '" + variant + "'");
    }
  });
}
