// What validate() of a pool compares: everything that PoolBooks holds twice.
#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/bytes.h"
#include "base/format.h"
#include "pool_books.h"

CACHALOT_BEGIN

namespace {

// The slots that the slabs have, beside those that the list has.
struct Census {
  std::unordered_set<const PoolSlot*> free;
  std::size_t slabs = 0;
  std::size_t slots = 0;
  std::size_t bytes = 0;
  std::unordered_map<StreamKey, std::size_t> slots_of_stream;
};

// "" as in first_broken_rule.
std::string check_users(const PoolSlot& slot) {
  const std::size_t others = slot.others == nullptr ? 0 : slot.others->size();
  if (slot.has_other_users() != (others > 0))
    return formatted("a slot names {} other streams, and its flag says otherwise", others);
  std::unordered_set<StreamKey> users;
  std::string broken;
  for_each_user(slot, [&](StreamKey user) {
    if (!users.insert(user).second) broken = "a slot names a stream twice";
  });
  return broken;
}

std::string check_slot(const PoolSlot& slot, bool is_free) {
  const bool is_unused = (slot.attention & PoolSlot::kUnused) != 0;
  if (is_unused && !is_free) return "a slot in use counts as never used";
  if (is_unused && slot.has_other_users()) return "a slot that was never used names other streams";
  return check_users(slot);
}

std::string check_slab(const PoolSlab& slab, const PoolMemory& memory, Census& census) {
  if (std::string broken = memory.first_broken_rule(slab); !broken.empty()) return broken;
  if (slab.leaves) return "a slab that stays is marked as leaving";
  ++census.slabs;
  census.slots += slab.count;
  census.bytes += slab.bytes;
  for (std::size_t i = 0; i < slab.count; ++i) {
    const PoolSlot& slot = slab.slots[i];
    ++census.slots_of_stream[slot.stream];
    if (std::string broken = check_slot(slot, census.free.contains(&slot)); !broken.empty()) return broken;
  }
  return "";
}

// The list has a place for each slot under its stream.
std::string check_places(const FreeSlots& free, const Census& census) {
  for (const auto& [stream, slots] : census.slots_of_stream) {
    if (free.reserved(stream) != slots)
      return formatted("the list has places for {} slots of a stream with {}", free.reserved(stream), slots);
  }
  if (free.reserved() != census.slots)
    return formatted("the list has places for {} slots, and there are {}", free.reserved(), census.slots);
  return "";
}

std::string check_figures(const PoolFigures& figures, const Census& census) {
  if (census.slots != figures.slots())
    return formatted("{} slots are counted but the slabs have {}", figures.slots(), census.slots);
  if (census.bytes != figures.bytes())
    return formatted("{} bytes are counted but the slabs have {}", figures.bytes(), census.bytes);
  if (as_signed(census.free.size()) + figures.live() != as_signed(census.slots))
    return formatted("{} slots are free and {} live, of {}", census.free.size(), figures.live(), census.slots);
  return figures.first_broken_rule();
}

// The slots of the list, each once.
std::string list_free(const FreeSlots& free, const SlabList& slabs, Census& census) {
  std::unordered_set<const PoolSlab*> known;
  for (const auto& slab : slabs) known.insert(slab.get());
  std::string broken;
  free.for_each([&](const PoolSlot& slot) {
    if (!census.free.insert(&slot).second) broken = "a slot is free twice";
    if (!known.contains(slot.slab)) broken = "a free slot is of no slab";
  });
  return broken.empty() ? free.first_broken_rule() : broken;
}

}  // namespace

std::string first_broken_rule(PoolBooks& books) {
  const StackRecall recall(books.stacks);
  books.stacks.gather(books.figures);
  if (books.growing || books.trimming || books.waiters > 0) return "a thread is said to be in the pool";
  if (std::string broken = books.stacks.first_broken_rule(books.figures.slots()); !broken.empty()) return broken;
  Census census;
  if (std::string broken = list_free(books.free, books.slabs, census); !broken.empty()) return broken;
  for (const auto& slab : books.slabs) {
    if (std::string broken = check_slab(*slab, books.memory, census); !broken.empty()) return broken;
  }
  if (census.slabs != books.slabs.size_with_detached())
    return formatted("{} slabs are counted, and there are {}", books.slabs.size_with_detached(), census.slabs);
  if (std::string broken = check_places(books.free, census); !broken.empty()) return broken;
  return check_figures(books.figures, census);
}

CACHALOT_END
