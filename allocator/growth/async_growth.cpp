#include "growth/async_growth.h"

#include "base/check.h"
#include "cachalot/errors.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

// An error says that the legacy default stream may not be asked just now, since a stream captures that it waits for.
bool AsyncGrowth::captures(Stream stream) {
  try {
    return state().device->capture_status(stream).capturing;
  } catch (const CudaError&) {
    return true;
  }
}

std::optional<Address> AsyncGrowth::malloc(std::size_t bytes, const KnownStream& stream) {
  // Memory of CUDA's pool is ordered after the stream that it was asked for on.
  const bool is_of_nobody = stream.key == StreamKey::nobody();
  if (!is_of_nobody && !captures(stream.handle)) return state().device->malloc_async(bytes, stream.handle);
  const std::optional<Address> address = state().device->malloc(bytes);
  if (address) plain_.insert(*address);
  return address;
}

// A stream that is no more orders nothing: then the device is waited for.
void AsyncGrowth::free(const Departing& segment) {
  const KnownStream& stream = segment.arena->stream;
  if (plain_.contains(segment.address) || !still_lives(*state().device, stream) || captures(stream.handle)) {
    state().device->free(segment.address);
  } else {
    state().device->free_async(segment.address, stream.handle);
  }
  plain_.erase(segment.address);
}

SharedMemory AsyncGrowth::share(const Block& block, Address base, Growing& growing) {
  CACHALOT_REQUIRE(plain_.contains(base),
                   "the allocation at {:#x} cannot be shared: heap:async has memory of CUDA's own pool, which other "
                   "processes cannot open; use heap:segments or heap:pages",
                   block.address);
  return SegmentGrowth::share(block, base, growing);
}

CACHALOT_END
