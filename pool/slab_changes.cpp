#include "slab_changes.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

bool ever_grows(const TensorPoolOptions& options) {
  return options.when_empty == WhenEmpty::grow || (options.when_empty == WhenEmpty::wait && options.max_slots != 0);
}

std::size_t next_slab_slots(const PoolBooks& books) {
  const TensorPoolOptions& options = books.options;
  if (!ever_grows(options)) return 0;
  if (options.max_slots == 0) return options.growth_step;
  return std::min(options.growth_step, options.max_slots - books.figures.slots());
}

// Everything that can fail comes before the slab is the pool's.
void add_slab(PoolBooks& books, std::size_t slots, StreamKey stream) {
  books.memory.require_fits(slots);
  books.slabs.reserve_one();
  books.free.reserve(stream, slots);
  books.growing = true;
  std::unique_ptr<PoolSlab> slab;
  try {
    const Unlocked unlocked(books.mutex);
    slab = books.memory.allocate(slots, stream);
  } catch (...) {
    books.free.unreserve(stream, slots);
    books.growing = false;
    books.changed.notify_all();
    throw;
  }
  books.figures.slab_allocated(*slab);
  books.slabs.add(std::move(slab));
  books.stacks.set_pool_slots(books.figures.slots());
  books.growing = false;
  books.changed.notify_all();
}

namespace {

// A slab that the allocator refuses stays; the first error is thrown when the others have gone.
std::size_t deallocate_detached(PoolBooks& books, SlabList::Slabs slabs) CACHALOT_REQUIRES(books.mutex) {
  std::size_t bytes = 0;
  std::exception_ptr failure;
  books.trimming = true;
  {
    const Unlocked unlocked(books.mutex);
    for (const auto& slab : slabs) {
      try {
        books.memory.deallocate(*slab);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
  }
  for (auto& slab : slabs) {
    if (slab->memory != nullptr) {
      books.slabs.reattach(std::move(slab));
    } else {
      bytes += slab->bytes;
      books.slabs.forget(*slab);
      books.figures.slab_deallocated(*slab);
    }
  }
  books.stacks.set_pool_slots(books.figures.slots());
  books.trimming = false;
  books.changed.notify_all();
  if (failure) std::rethrow_exception(failure);
  return bytes;
}

SlabList::Slabs detach_free_slabs(PoolBooks& books, std::size_t keep) CACHALOT_REQUIRES(books.mutex) {
  const StackRecall recall(books.stacks);
  return books.slabs.detach_free(keep);
}

}  // namespace

// A pool that never grows keeps what it has: it could not come back.
std::size_t trim_slabs(PoolBooks& books, std::size_t keep) {
  if (!ever_grows(books.options)) return 0;
  SlabList::Slabs slabs = detach_free_slabs(books, keep);
  return slabs.empty() ? 0 : deallocate_detached(books, std::move(slabs));
}

void trim_above_high_water(PoolBooks& books) noexcept {
  const std::optional<std::size_t>& high_water = books.options.high_water;
  if (!high_water || books.closed || books.trimming || !books.memory.has_allocator()) return;
  const std::size_t keep = *high_water - books.stacks.may_hold();  // so many more may become free unseen
  if (as_signed(books.figures.slots()) - books.figures.live() <= as_signed(keep)) return;
  try {
    trim_slabs(books, keep);
  } catch (const std::exception&) {
  }
}

CACHALOT_END
