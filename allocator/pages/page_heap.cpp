#include "pages/page_heap.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

CACHALOT_BEGIN

// --- ranges ----------------------------------------------------------------------------------------------------------

PageRange& PageHeap::add_range(Address base, std::size_t bytes, PoolKind kind, const PrivatePool* owner) {
  PageRange& range = ranges_[base];
  try {
    range = {.base = base,
             .bytes = bytes,
             .kind = kind,
             .owner = owner,
             .shown = {},
             .top = base,
             .tail = &heap_.add_range(base, bytes),
             .gaps = {},
             .next_gap = base};
    range.gaps.add(*range.tail);
  } catch (...) {
    ranges_.erase(base);
    throw;
  }
  return range;
}

void PageHeap::remove_ranges(const PrivatePool* owner, const std::function<void(const PageRange&)>& unreserve) {
  for (auto next = ranges_.begin(); next != ranges_.end();) {
    const auto entry = next++;
    PageRange& range = entry->second;
    if (range.owner != owner || range.tail == nullptr || range.tail->address != range.base) continue;
    unreserve(range);
    heap_.remove_range(*range.tail);
    ranges_.erase(entry);
  }
}

const PageRange* PageHeap::range_of(Address address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const PageRange& range = std::prev(after)->second;
  return address < range.end() ? &range : nullptr;
}

PageId* PageHeap::slots_for(PageRange& range, Address at, std::size_t bytes) {
  const std::size_t slot = (at - range.base) / page_bytes();
  const std::size_t end = slot + bytes / page_bytes();
  if (range.shown.size() < end) range.shown.resize(std::max(end, 2 * range.shown.size()));
  range.top = std::max(range.top, at + bytes);
  return range.shown.data() + slot;
}

void PageHeap::show(PageRange& range, const PhysicalHandle& handle, Address at) {
  PageId* const slots = slots_for(range, at, pages_.bytes(handle));
  for (std::uint32_t i = 0; i < handle.pages; ++i) slots[i] = handle.first + i;
}

void PageHeap::block(Address at, std::size_t bytes) {
  std::fill_n(slots_for(*range_of(at), at, bytes), bytes / page_bytes(), kBlocked);
}

void PageHeap::hide(Address at, std::size_t bytes) {
  std::fill_n(slots_for(*range_of(at), at, bytes), bytes / page_bytes(), PageId{0});
}

std::size_t PageHeap::metadata_bytes() const {
  std::size_t bytes = sizeof(*this) + pages_.metadata_bytes() + seams_.metadata_bytes();
  for (const auto& [base, range] : ranges_) {
    bytes += sizeof(PageRange) + range.shown.capacity() * sizeof(PageId) + range.gaps.metadata_bytes();
  }
  return bytes;
}

// --- blocks and gaps of a range ---------------------------------------------------------------------------------------

Block& PageHeap::block_at(Block& before, Address address) {
  Block* block = &before;
  while (block->end() <= address) block = block->next;
  CACHALOT_ASSERT(block->address <= address);
  return *block;
}

Block& PageHeap::first_block(Address address) {
  return block_at(*std::prev(heap_.segments().upper_bound(address))->second, address);
}

Block& PageHeap::cut(PageRange& range, Block& block, Address address) {
  Block& high = heap_.cut(block, address);
  if (&block == range.tail) range.tail = &high;
  return high;
}

// [begin, end) of a free block, by itself and claimed; what lies beside it stays free.
Block& PageHeap::isolate(PageRange& range, Block& block, Address begin, Address end) {
  const std::uint32_t epoch = block.bin.epoch;
  heap_.claim(block);
  Block* middle = &block;
  InactiveSplit change;
  const auto give = [&](Block& part) { heap_.put_back(part, change).bin.epoch = epoch; };
  if (block.address < begin) {
    middle = &cut(range, block, begin);
    give(block);
  }
  if (end < middle->end()) give(cut(range, *middle, end));
  return *middle;
}

void PageHeap::close(PageRange& range, Block& block) {
  seams_.forget(block.address, block.end());
  Block& gap = heap_.close_gap(block);
  range.gaps.add(gap);
  if (gap.end() == range.end()) range.tail = &gap;
}

Block& PageHeap::open(PageRange& range, Block& gap, Address begin, Address end, Arena& arena) {
  CACHALOT_ASSERT(gap.is_gap() && gap.address <= begin && end <= gap.end());
  Block* middle = gap.address < begin ? &cut(range, gap, begin) : &gap;
  Block* const rest = end < middle->end() ? &cut(range, *middle, end) : nullptr;
  if (middle != &gap && rest != nullptr) {
    range.gaps.add(*rest);
  } else if (rest != nullptr) {
    range.gaps.move(begin, *rest);
  } else if (middle == &gap) {
    range.gaps.remove(begin);
  }
  if (middle == range.tail) range.tail = nullptr;
  heap_.open_gap(*middle, arena);
  return *middle;
}

// --- handles behind addresses -----------------------------------------------------------------------------------------

std::vector<PageHeap::ShownHandle> PageHeap::views_of(Address begin, Address end) const {
  const PageRange& range = *range_of(begin);
  std::vector<ShownHandle> views;
  for (Address slot = round_down(begin, page_bytes()); slot < end;) {
    const PhysicalPage& page = pages_.page(shown_at(range, slot));
    const Address at = slot - page.index * page_bytes();
    views.push_back({page.handle, at});
    slot = at + pages_.bytes(pages_.handle(page.handle));
  }
  return views;
}

std::optional<Address> PageHeap::room_in_one_handle(const Block& block, std::size_t bytes) const {
  for (const ShownHandle& view : views_of(block.address, block.end())) {
    const Address begin = std::max(block.address, view.at);
    const Address end = std::min(block.end(), view.at + pages_.bytes(pages_.handle(view.handle)));
    if (end - begin >= bytes) return begin;
  }
  return std::nullopt;
}

// Where so many bytes begin at which nothing is mapped; if there are fewer, what is unmapped at the end of the range.
Address PageHeap::first_unmapped(const PageRange& range, std::size_t bytes) const {
  Address begin = range.base;
  for (Address slot = range.base; slot < range.top && slot - begin < bytes; slot += page_bytes()) {
    if (shown_at(range, slot) != 0) begin = slot + page_bytes();
  }
  return begin;
}

std::optional<BackingPlan> PageHeap::plan_handle(const Arena& arena, std::size_t bytes) {
  const std::size_t whole = round_up(bytes, page_bytes());
  for (auto& [base, range] : ranges_) {
    if (range.owner != arena.pool.owner() || range.kind != arena.pool.kind()) continue;
    const Address at = first_unmapped(range, whole);
    if (range.end() - at < whole) continue;
    BackingPlan plan;
    plan.range = &range;
    plan.begin = at;
    plan.end = at + bytes;
    plan.new_pages = whole / page_bytes();
    plan.growths.push_back({at, static_cast<std::uint32_t>(plan.new_pages)});
    return plan;
  }
  return std::nullopt;
}

Block& PageHeap::set_apart(Block& block, Address begin, Address end) noexcept {
  Block& part = isolate(*range_of(block.address), block, begin, end);
  heap_.unclaim(part);
  return part;
}

std::vector<AddressRange> PageHeap::mapped_addresses() const {
  std::vector<AddressRange> mapped;
  for (const auto& [base, range] : ranges_) {
    for (std::size_t slot = 0; slot < range.shown.size(); ++slot) {
      const PageId shown = range.shown[slot];
      if (shown == 0 || shown == kBlocked || pages_.handle_of(shown).is_asleep()) continue;
      const Address at = base + slot * page_bytes();
      // Not into the next reservation, should it lie side by side.
      const bool goes_on = slot != 0 && !mapped.empty() && mapped.back().address + mapped.back().bytes == at;
      if (!goes_on) mapped.push_back({at, 0});
      mapped.back().bytes += page_bytes();
    }
  }
  return mapped;
}

CACHALOT_END
