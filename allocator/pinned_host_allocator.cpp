#include "cachalot/pinned_host_allocator.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/pinned_host_memory.h"

CACHALOT_BEGIN

namespace {

constexpr Stream kHost = nullptr;  // what buffers are handed out for

std::vector<std::shared_ptr<Device>> host_of(std::shared_ptr<Device> gpu, const Options& options) {
  CACHALOT_REQUIRE(gpu != nullptr, "the device that pins host memory is null");
  const HeapKind heap = selected_heap(options);
  CACHALOT_REQUIRE(heap == HeapKind::segments, "heap is {}, but pinned host memory has the segment heap only",
                   to_string(heap));
  CACHALOT_REQUIRE(!has_guard(options) && !options.debug,
                   "{} is True, but pinned host memory has no guard: a free would wait for the GPU",
                   options.debug ? "debug" : "guard");
  return {pinned_host_memory(std::move(gpu))};
}

}  // namespace

PinnedHostAllocator::PinnedHostAllocator(std::shared_ptr<Device> device, const Options& options)
    : cache_(std::make_unique<CachingAllocator>(host_of(std::move(device), options), options)) {}

PinnedHostAllocator::~PinnedHostAllocator() = default;

// The allocator's own message speaks of a GPU.
void* PinnedHostAllocator::allocate(std::size_t bytes) try {
  return cache_->allocate(bytes, 0, kHost);
} catch (const OutOfMemory&) {
  throw OutOfMemory(formatted("out of pinned host memory: tried to allocate {}; {} is allocated, {} is reserved",
                              format_bytes(bytes), format_bytes(memory_allocated()), format_bytes(memory_reserved())),
                    0, bytes);
}

void PinnedHostAllocator::record_stream(void* buffer, Stream stream) {
  cache_->record_stream(buffer, stream == nullptr ? kLegacyStream : stream);
}

void PinnedHostAllocator::deallocate(void* buffer) { cache_->deallocate(buffer); }

CACHALOT_END
