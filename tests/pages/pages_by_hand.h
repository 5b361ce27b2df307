// A PageHeap without a device: a test sets the mappings.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "pages/driver_costs.h"
#include "pages/page_heap.h"

namespace cachalot {

// One range for large blocks of the default pool, in slots of a page; nothing is mapped. Checks its books when it goes.
struct PagesByHand {
  static constexpr std::size_t kPage = 2 * kMiB;
  static constexpr Address kBase = Address{1} << 40;
  static constexpr std::size_t kSlots = 4096;

  PagesByHand() { range = &pages.add_range(kBase, kSlots * kPage, PoolKind::large, nullptr); }
  PagesByHand(const PagesByHand&) = delete;
  PagesByHand& operator=(const PagesByHand&) = delete;
  ~PagesByHand() { EXPECT_EQ(validate(), ""); }

  std::string validate() const {
    const std::string broken = heap.validate();
    return broken.empty() ? pages.validate(0) : broken;
  }
  static Address at(std::size_t slot) { return kBase + slot * kPage; }
  static Stream stream_number(std::uintptr_t number) { return reinterpret_cast<Stream>(number); }
  PoolPair pools() const { return {&small, &large}; }
  StreamClock& clock_of(const Arena& of) { return clocks_.try_emplace(of.stream.key, of.stream).first->second; }
  PageId page(HandleId handle, std::uint32_t index = 0) const { return pages.pages().page_of(handle, index); }

  // A new handle at a slot where nothing is mapped: free memory.
  HandleId grow(std::size_t slot, std::uint32_t count, Arena& to) {
    BackingPlan plan = plan_for(slot, count);
    plan.growths.push_back({at(slot), count});
    execute(plan, to);
    return pages.pages().page(pages.shown_at(*range, at(slot))).handle;
  }
  HandleId grow(std::size_t slot, std::uint32_t count) { return grow(slot, count, arena); }
  // Grows the heap, and hands all of it out.
  HandleId grow_live(std::size_t slot, std::uint32_t count) {
    const HandleId handle = grow(slot, count);
    take(at(slot), count * kPage);
    return handle;
  }
  // An idle handle comes home to a slot: through a new view, unless it is mapped there.
  void move(HandleId handle, std::size_t slot) {
    BackingPlan plan = plan_for(slot, pages.pages().handle(handle).pages);
    plan.moves.push_back({handle, at(slot), /*is_mapped=*/pages.shown_at(*range, at(slot)) != 0});
    execute(plan, arena);
  }
  // A stale view of an idle handle stays at a slot.
  void leave_view(HandleId handle, std::size_t slot) {
    const Address home = pages.pages().handle(handle).home;
    move(handle, slot);
    move(handle, (home - kBase) / kPage);
  }

  // Executes a plan as PageGrowth does; returns the free block that holds the window.
  Block& execute(const BackingPlan& plan, Arena& to) {
    PhysicalPages& physical = pages.pages();
    const Vector<PageHeap::VacatedStretch> vacated = pages.begin(plan);
    for (const BackingPlan::Mapping& drop : plan.drops) {
      pages.hide(drop.at, physical.bytes(physical.handle(drop.handle)));
      physical.remove_view(drop.handle, drop.at);
    }
    for (const BackingPlan::Growth& growth : plan.growths) {
      pages.show(*plan.range, physical.handle(physical.add(++last_memory_, growth.pages, growth.at)), growth.at);
    }
    for (const BackingPlan::Move& move : plan.moves) {
      if (move.is_mapped) continue;
      physical.add_view(move.handle, move.to);
      pages.show(*plan.range, physical.handle(move.handle), move.to);
    }
    pages.move_homes(plan, vacated, [&](const PageHeap::VacatedStretch& part) {
      return Ticket{&clock_of(*part.arena), part.epoch};
    });
    Block& block = pages.finish(plan, to);
    EXPECT_EQ(validate(), "");
    return block;
  }

  // Hands out bytes that are free.
  Block& take(Address begin, std::size_t bytes) {
    Block& block = pages.set_apart(pages.first_block(begin), begin, begin + bytes);
    heap.allocate(block, bytes, bytes, false);
    return block;
  }
  void free(Block& block) { heap.put_back(block); }

  PageMap page_map;
  BlockPool small{PoolKind::small, {}, nullptr, nullptr, /*has_ranges=*/true};
  BlockPool large{PoolKind::large, {}, nullptr, nullptr, /*has_ranges=*/true};
  Arena& arena = large.add(immortal_stream(nullptr));
  Arena& other = large.add(immortal_stream(stream_number(64)));  // of another stream
  BlockHeap heap{0, page_map};
  PageHeap pages{heap, kPage};
  DriverCosts costs;
  PageRange* range = nullptr;

 private:
  BackingPlan plan_for(std::size_t slot, std::size_t count) const {
    BackingPlan plan;
    plan.range = range;
    plan.begin = at(slot);
    plan.end = at(slot + count);
    return plan;
  }

  std::map<StreamKey, StreamClock> clocks_;
  MemoryHandle last_memory_ = 0;
};

}  // namespace cachalot
