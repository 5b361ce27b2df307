#include "cachalot/pinned_memory_resource.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN

// std::pmr asks for a pointer that is not null for 0 bytes, too.
void* PinnedMemoryResource::do_allocate(std::size_t bytes, std::size_t alignment) {
  CACHALOT_REQUIRE(std::has_single_bit(alignment) && alignment <= kUsualAlignment,
                   "an alignment of {}: pinned memory is aligned to powers of two up to {}", alignment,
                   kUsualAlignment);
  CACHALOT_REQUIRE(!life_.expired(), "an allocation of {} bytes: the resource's PinnedHostAllocator was destroyed",
                   bytes);
  return host_->allocate(std::max<std::size_t>(bytes, 1));
}

void PinnedMemoryResource::do_deallocate(void* memory, std::size_t, std::size_t) {
  if (!life_.expired()) host_->cache().deallocate_when_possible(memory);
}

bool PinnedMemoryResource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const resource = dynamic_cast<const PinnedMemoryResource*>(&other);
  return resource != nullptr && resource->host_ == host_;
}

CACHALOT_END
