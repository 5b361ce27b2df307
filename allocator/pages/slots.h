// Slots say for one search what the slots of its windows lack: which have no memory, which of these a driver call has to map,
// and where a view is in the way.
//
// Windows of a search overlap. So the slots of windows that do are looked at once, and summed up: what a window lacks is then
// the difference of two sums.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/host_memory.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

// A Lack says what slots side by side lack. An idle page that is mapped there counts as one that may come home, which its window
// decides.
struct Lack {
  std::uint32_t slots = 0;      // without memory
  std::uint32_t to_map = 0;     // of these, those where no idle page is mapped
  std::uint32_t stretches = 0;  // of slots to be mapped
  std::uint32_t drops = 0;  // views in the way that may be unmapped; those that begin before the slots may be left out
  std::uint32_t blocked = 0;  // slots where a view in the way must stay
};

class Slots {
 public:
  Slots(const PageHeap& heap, const IdlePages& idle) : heap_(heap), pages_(heap.pages()), idle_(idle) {}

  // Forgets all. With `may_drop` false every view must stay.
  void begin_search(bool may_drop);
  // Sums up the slots of [begin, end), of which they are whole. Returns the number by which lack_of knows them.
  std::size_t sum_up(const PageRange& range, Address begin, Address end);
  // Returns what the slots [first, last) of those with this number lack.
  Lack lack_of(std::size_t number, std::size_t first, std::size_t last) const;

  // Returns whether the view that shows a page at the slot may be unmapped.
  bool may_drop(Address slot, PageId shown) const;
  bool has_memory(Address slot, PageId shown) const {
    return shown != 0 && shown != PageHeap::kBlocked && pages_.view_at(shown, slot) == pages_.handle_of(shown).home;
  }
  // Beside the object itself.
  std::size_t metadata_bytes() const { return capacity_bytes(sums_); }

 private:
  enum class SlotKind : std::uint8_t {
    memory,   // its page is at home here
    empty,    // nothing is mapped
    idle,     // shows a page of an idle handle, which may come home
    stale,    // shows another page, in a view that may be dropped
    blocked,  // shows another page, in a view that must stay
  };
  // Returns the kind of a slot that shows a page.
  SlotKind kind_of(Address slot, PageId shown) const;

  const PageHeap& heap_;
  const PhysicalPages& pages_;
  const IdlePages& idle_;
  bool may_drop_ = false;
  Vector<Lack> sums_;  // one before the slots of a number, and one behind each of them
};

CACHALOT_END
