#include "pages/slots.h"

CACHALOT_BEGIN

void Slots::begin_search(bool may_drop) {
  may_drop_ = may_drop;
  range_ = nullptr;
  forget();
}

void Slots::forget() {
  if (++now_ != 0) return;
  asked_ = {};  // numbers come again
  known_.clear();
  now_ = 1;
}

SlotKind Slots::kind(const PageRange& range, std::size_t index, Address slot) {
  if (index >= range.shown.size()) return SlotKind::empty;
  if (range_ != &range) look_at(range);
  KnownSlot& known = known_[index];
  if (known.at != now_) known = {now_, find_kind(slot, range.shown[index])};
  return known.kind;
}

void Slots::look_at(const PageRange& range) {
  range_ = &range;
  forget();
  if (known_.size() < range.shown.size()) known_.resize(range.shown.size());
}

SlotKind Slots::find_kind(Address slot, PageId shown) {
  if (shown == 0) return SlotKind::empty;
  if (has_memory(slot, shown)) return SlotKind::memory;
  if (shown != PageHeap::kBlocked && idle_.has_all(pages_.handle_of(shown))) return SlotKind::idle;
  return kind_in_the_way(slot, shown);
}

bool Slots::may_drop(Address slot, PageId shown) {
  if (!may_drop_ || shown == PageHeap::kBlocked) return false;
  const Address view = pages_.view_at(shown, slot);
  AskedView& asked = asked_[pages_.grid().whole_in(view) % asked_.size()];
  if (asked.view != view || asked.at != now_) {
    asked = {view, now_, pages_.may_unmap(pages_.handle_of(shown), view)};
  }
  return asked.may_drop;
}

CACHALOT_END
