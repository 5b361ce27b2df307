// Slots say for one search what each slot of the address space has: memory, nothing, an idle page, or another page, in a
// view that may be dropped or must stay.
//
// Windows of a search overlap, so the findings on a slot or a view are kept until the next search.
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/host_memory.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

enum class SlotKind : std::uint8_t {
  memory,   // its page is at home here
  empty,    // nothing is mapped
  idle,     // shows a page of an idle handle, which may come home
  stale,    // shows another page, in a view that may be dropped
  blocked,  // shows another page, in a view that must stay
};

class Slots {
 public:
  Slots(const PageHeap& heap, const IdlePages& idle) : pages_(heap.pages()), idle_(idle) {}

  // Forgets all. With `may_drop` false every view must stay.
  void begin_search(bool may_drop);
  // `index` is that of the slot in its range.
  SlotKind kind(const PageRange& range, std::size_t index, Address slot);
  // stale or blocked, of a slot that shows a page which is not at home there.
  SlotKind kind_in_the_way(Address slot, PageId shown) {
    return may_drop(slot, shown) ? SlotKind::stale : SlotKind::blocked;
  }
  // Returns whether the view that shows a page at the slot may be unmapped.
  bool may_drop(Address slot, PageId shown);

  bool has_memory(Address slot, PageId shown) const {
    return shown != 0 && shown != PageHeap::kBlocked && pages_.view_at(shown, slot) == pages_.handle_of(shown).home;
  }
  // Beside the object itself.
  std::size_t metadata_bytes() const { return capacity_bytes(known_); }

 private:
  struct KnownSlot {
    std::uint32_t at = 0;  // Slots::now_ when it was found
    SlotKind kind = SlotKind::empty;
  };
  struct AskedView {
    Address view = 0;
    std::uint32_t at = 0;
    bool may_drop = false;
  };

  void forget();
  void look_at(const PageRange& range);
  SlotKind find_kind(Address slot, PageId shown);

  const PhysicalPages& pages_;
  const IdlePages& idle_;
  bool may_drop_ = false;
  std::uint32_t now_ = 0;            // earlier entries have another number, and stay where they are
  std::array<AskedView, 64> asked_;  // by the page of the view
  const PageRange* range_ = nullptr;
  Vector<KnownSlot> known_;  // its
};

CACHALOT_END
