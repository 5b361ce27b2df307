#include "pages/slots.h"

#include <algorithm>

CACHALOT_BEGIN

void Slots::begin_search(bool may_drop) {
  may_drop_ = may_drop;
  sums_.clear();
}

bool Slots::may_drop(Address slot, PageId shown) const {
  return may_drop_ && shown != PageHeap::kBlocked &&
         pages_.may_unmap(pages_.handle_of(shown), pages_.view_at(shown, slot));
}

// Most slots of a hole show nothing.
std::size_t Slots::sum_up(const PageRange& range, Address begin, Address end) {
  const std::size_t number = sums_.size();
  const std::size_t first = pages_.grid().whole_in(begin - range.base);
  const std::size_t count = pages_.grid().whole_in(end - begin);
  sums_.resize(number + count + 1);
  Lack sum;
  SlotKind before = SlotKind::memory;
  bool follows_one = false;  // to be mapped
  for (std::size_t i = 0; i < count; ++i) {
    const PageId shown = first + i < range.shown.size() ? range.shown[first + i] : 0;
    const SlotKind kind = shown == 0 ? SlotKind::empty : kind_of(begin + i * heap_.page_bytes(), shown);
    const bool is_to_map = kind != SlotKind::memory && kind != SlotKind::idle;
    sum.slots += kind != SlotKind::memory ? 1 : 0;
    sum.to_map += is_to_map ? 1 : 0;
    sum.stretches += is_to_map && !follows_one ? 1 : 0;
    sum.drops += kind == SlotKind::stale && before != SlotKind::stale ? 1 : 0;
    sum.blocked += kind == SlotKind::blocked ? 1 : 0;
    before = kind;
    follows_one = is_to_map;
    sums_[number + i + 1] = sum;
  }
  return number;
}

Slots::SlotKind Slots::kind_of(Address slot, PageId shown) const {
  if (has_memory(slot, shown)) return SlotKind::memory;
  if (shown != PageHeap::kBlocked && idle_.has_all(pages_.handle_of(shown))) return SlotKind::idle;
  return may_drop(slot, shown) ? SlotKind::stale : SlotKind::blocked;
}

// A stretch that begins before the first slot has been counted there, so it is counted once more. A run of views in the way that
// begins before it is left out: a sum does not tell it from other slots to be mapped.
Lack Slots::lack_of(std::size_t number, std::size_t first, std::size_t last) const {
  const Lack& before = sums_[number + first];
  const Lack& behind = sums_[number + last];
  const Lack& next = sums_[number + std::min(first + 1, last)];
  const bool goes_on = next.to_map != before.to_map && next.stretches == before.stretches;
  return {behind.slots - before.slots, behind.to_map - before.to_map,
          behind.stretches - before.stretches + (goes_on ? 1 : 0), behind.drops - before.drops,
          behind.blocked - before.blocked};
}

CACHALOT_END
