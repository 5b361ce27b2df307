#include "cachalot/stream_check.h"

#include "base/check.h"

CACHALOT_BEGIN

void require_stream_of_device(Device& device, Stream stream) {
  CACHALOT_REQUIRE(stream == nullptr || device.has_stream(stream),
                   "stream {} is a stream of another device: work on memory of device {} needs a stream of device {}",
                   static_cast<const void*>(stream), device.index(), device.index());
}

CACHALOT_END
