// cachalot through its C API, libcachalot.so. The variant is its options, as in CACHALOT_CONF, or empty for the defaults.
#include "cachalot/c_api.h"
#include "bench/peers/peer_main.h"

namespace {

using namespace cachalot;

class CApiPeer : public bench::PeerBase {
 public:
  explicit CApiPeer(const std::string& options) {
    if (cachalot_configure(options.c_str()) != CACHALOT_OK) throw std::runtime_error(cachalot_last_error());
  }
  void* allocate(std::size_t bytes, Stream stream) { return cachalot_malloc(bytes, 0, stream); }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) { cachalot_free(pointer, bytes, 0, stream); }
};

}  // namespace

int main(int argc, char** argv) {
  return bench::peer_main(argc, argv, [](const std::string& variant, const auto& effort, const auto& groups) {
    CApiPeer peer(variant);
    bench::measure_all(peer, effort, groups);
  });
}
