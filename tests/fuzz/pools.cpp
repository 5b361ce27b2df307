// Tensor pools and pinned host memory, used from several streams while calls of the device fail (tests/programs).
#include "tests/fuzz/bytes.h"
#include "tests/programs/small_plays.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cachalot;
  Bytes bytes(data, size);
  const SmallPlay& play = kSmallPlays[bytes.below(std::size(kSmallPlays))];
  const SmallPlayResult result = play.run(bytes, std::nullopt);
  if (!result.trouble.empty()) fuzz::broken(std::string(play.name) + ": " + result.trouble);
  return 0;
}
