#include "pages/page_heap.h"

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

std::size_t Gaps::first_from(Address address) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(gaps_, address, {}, &BlockAt::address) - gaps_.begin());
}

Block* Gaps::last_until(Address address) const {
  const std::size_t behind = first_from(address + 1);
  return behind == 0 ? nullptr : gaps_[behind - 1].block;
}

Block* Gaps::at_or_behind(Address address) const {
  const std::size_t behind = first_from(address + 1);
  if (behind != 0 && address < gaps_[behind - 1].block->end()) return gaps_[behind - 1].block;
  return behind != gaps_.size() ? gaps_[behind].block : nullptr;
}

void Gaps::add(Block& gap) {
  const auto first = gaps_.begin() + static_cast<std::ptrdiff_t>(first_from(gap.address));
  const auto last = gaps_.begin() + static_cast<std::ptrdiff_t>(first_from(gap.end()));
  if (first == last) {
    gaps_.insert(first, {gap.address, &gap});
    return;
  }
  *first = {gap.address, &gap};
  gaps_.erase(first + 1, last);
}

Vector<BlockAt>::iterator Gaps::at(Address address) {
  const auto gap = gaps_.begin() + static_cast<std::ptrdiff_t>(first_from(address));
  CACHALOT_ASSERT(gap != gaps_.end() && gap->address == address);
  return gap;
}

void Gaps::remove(Address address) { gaps_.erase(at(address)); }

void Gaps::move(Address address, Block& gap) { *at(address) = {gap.address, &gap}; }

void Seams::forget(Address begin, Address end) {
  const auto first = first_from(begin);
  auto last = first;
  while (last != seams_.end() && last->address <= end) ++last;
  seams_.erase(first, last);
}

void Seams::look_again(Block& block) noexcept {
  forget(block.address, block.end());
  for (Block* each : {block.next, &block}) {
    if (is_seam(*each)) seams_.insert(first_from(each->address), {each->address, each});
  }
}

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

void PageHeap::remove_ranges(const PrivatePool* owner, FunctionRef<void(const PageRange&)> unreserve) {
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

Block& PageHeap::first_block(Address address, Block* before) {
  Block* const head = std::prev(heap_.segments().upper_bound(address))->second;
  return block_at(before != nullptr && before->address > head->address ? *before : *head, address);
}

Block& PageHeap::cut(PageRange& range, Block& block, Address address) {
  Block& high = heap_.cut(block, address);
  if (&block == range.tail) range.tail = &high;
  return high;
}

// Claims [begin, end) of a free block as a block of its own. The rest of the block stays free.
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

Vector<PageHeap::ShownHandle> PageHeap::views_of(Address begin, Address end) const {
  const PageRange& range = *range_of(begin);
  Vector<ShownHandle> views;
  for (Address slot = round_down(begin, page_bytes()); slot < end;) {
    const PhysicalPage& page = pages_.page(shown_at(range, slot));
    const Address at = pages_.view_at(shown_at(range, slot), slot);
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

// Returns the begin of `bytes` at which nothing is mapped; if there are fewer, that of the unmapped end of the range.
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
      // A stretch does not go on into an adjacent reservation.
      const bool goes_on = slot != 0 && !mapped.empty() && mapped.back().address + mapped.back().bytes == at;
      if (!goes_on) mapped.push_back({at, 0});
      mapped.back().bytes += page_bytes();
    }
  }
  return mapped;
}

// The execution of plans by a PageHeap: pages leave the bins, come home to the window, or return.

// The block or gap in which a plan's window begins. A run may be long, a window is not, and it has a gap or is near one:
// so from the gaps before it and behind it, whichever is nearer.
Block& PageHeap::first_piece(const BackingPlan& plan) {
  Block* before = plan.range->gaps.last_until(plan.begin);
  Block* behind = plan.range->gaps.at_or_behind(plan.begin);
  if (before == nullptr && behind == nullptr) return first_block(plan.begin);
  while (true) {
    if (before != nullptr) {
      if (plan.begin < before->end()) return *before;
      before = before->next;
    }
    if (behind != nullptr) {
      if (behind->address <= plan.begin) return *behind;
      behind = behind->prev;
    }
  }
}

Vector<const Block*> PageHeap::blocks_of(const BackingPlan& plan) {
  Vector<const Block*> blocks;
  for (const Block* block = &first_piece(plan);; block = block->next) {
    if (!block->is_gap()) blocks.push_back(block);
    if (block->end() >= plan.end) break;
  }
  for (const BackingPlan::Move& move : plan.moves) {
    const PhysicalHandle& handle = pages_.handle(move.handle);
    for (const Block* block = &first_block(handle.home);; block = block->next) {
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
      if (block->end() >= end_of(handle)) break;
    }
  }
  return blocks;
}

Vector<PageHeap::VacatedStretch> PageHeap::begin(const BackingPlan& plan) noexcept {
  PageRange& range = *plan.range;
  for (Block* block = &first_piece(plan);; block = block->next) {
    if (!block->is_gap()) {
      block = &isolate(range, *block, std::max(block->address, plan.begin), std::min(block->end(), plan.end));
    }
    if (block->end() >= plan.end) break;
  }

  Vector<HandleHome> homes;
  for (const BackingPlan::Move& move : plan.moves) {
    const PhysicalHandle& handle = pages_.handle(move.handle);
    homes.push_back({handle.home, pages_.bytes(handle), plan.holders.empty() ? nullptr : plan.holders[homes.size()]});
  }
  return vacate_homes(homes);
}

// Vacates from the highest address down: taking a part of a block then leaves its lower part, which is the same object,
// to be the holder of others.
Vector<PageHeap::VacatedStretch> PageHeap::vacate_homes(Vector<HandleHome>& homes) noexcept {
  std::ranges::sort(homes, {}, &HandleHome::address);
  Vector<VacatedStretch> vacated;
  vacated.reserve(homes.size());
  while (!homes.empty()) {
    HandleHome first = homes.back();
    const Address end = first.address + first.bytes;
    PageRange& range = *range_of(first.address);
    for (homes.pop_back(); !homes.empty(); homes.pop_back()) {
      const HandleHome& before = homes.back();
      if (before.address + before.bytes != first.address || before.address < range.base) break;
      first = before;
    }
    Block& holder = first.holder != nullptr ? block_at(*first.holder, first.address) : first_block(first.address);
    claim_stretch(range, holder, first.address, end, [&](Block& part) {
      vacated.push_back({part.arena, part.address, part.size(), part.bin.epoch});
      close(range, part);
    });
  }
  std::ranges::sort(vacated, {}, &VacatedStretch::address);
  return vacated;
}

void PageHeap::move_homes(const BackingPlan& plan, const Vector<VacatedStretch>& vacated,
                          FunctionRef<Ticket(const VacatedStretch&)> ticket_of) {
  for (const BackingPlan::Move& move : plan.moves) {
    const PhysicalHandle& handle = pages_.handle(move.handle);
    auto part = std::prev(std::ranges::upper_bound(vacated, handle.home, {}, &VacatedStretch::address));
    for (; part != vacated.end() && part->address < end_of(handle); ++part) {
      pages_.remember_use(move.handle, ticket_of(*part));
    }
    pages_.move_home(move.handle, move.to);
  }
}

Block& PageHeap::finish(const BackingPlan& plan, Arena& arena) noexcept {
  PageRange& range = *plan.range;
  const Address end = pages_.grid().up(plan.end);
  Block& before = first_piece(plan);
  for (Address at = pages_.grid().down(plan.begin); at < end;) {
    Block* const gap = range.gaps.at_or_behind(at);
    if (gap == nullptr || gap->address >= end) break;
    const Block& filled = open(range, *gap, std::max(gap->address, at), std::min(gap->end(), end), arena);
    at = filled.end();
  }
  Block* block = &block_at(before, plan.begin);
  while (true) {
    block->arena = &arena;
    InactiveSplit change;
    block = &heap_.put_back(*block, change);
    if (!block->next->has(Block::kClaimed)) break;
    block = block->next;
  }
  seams_.look_again(*block);
  return *block;
}

// Reopens vacated addresses. A free block that they merge with keeps its own last user, too: the later of the two counts.
void PageHeap::reopen(const VacatedStretch& part) noexcept {
  PageRange& range = *range_of(part.address);
  Block& block =
      open(range, *range.gaps.at_or_behind(part.address), part.address, part.address + part.bytes, *part.arena);
  std::uint32_t epoch = part.epoch;
  for (const Block* beside : {block.prev, block.next}) {
    const bool merges = beside->is_free() && beside->arena == part.arena;
    if (merges && Reach::has_reached(beside->bin.epoch, epoch)) epoch = beside->bin.epoch;
  }
  InactiveSplit change;
  Block& merged = heap_.put_back(block, change);
  merged.bin.epoch = epoch;
  seams_.look_again(merged);
}

void PageHeap::undo(const BackingPlan& plan, const Vector<VacatedStretch>& vacated) noexcept {
  for (const VacatedStretch& part : vacated) reopen(part);
  InactiveSplit change;
  for (Block* block = &first_piece(plan);; block = block->next) {
    if (block->has(Block::kClaimed)) block = &heap_.put_back(*block, change);
    if (block->end() >= plan.end) break;
  }
}

Block& PageHeap::hand_over(Block& block, Address begin, Address end, Arena& arena) {
  const std::uint32_t epoch = block.bin.epoch;
  const bool same_stream = block.arena->stream == arena.stream;
  Block& part = isolate(*range_of(block.address), block, begin, end);
  part.arena = &arena;
  InactiveSplit change;
  Block& merged = heap_.put_back(part, change);
  seams_.look_again(merged);
  if (same_stream && &merged == &part && merged.size() == end - begin) merged.bin.epoch = epoch;
  return merged;
}

// The ways in which memory leaves a PageHeap: idle handles that go back to the device, and the handles of pools that
// sleep.
Vector<HandleId> PageHeap::idle_handles(const PoolPair& pools) const {
  reach_everything(pools);
  IdlePages pages(*this);
  pages.find(pools);
  Vector<HandleId> idle;
  pages.for_each_handle(pages_, [&](HandleId id) {
    idle.push_back(id);
    return true;
  });
  std::ranges::sort(idle, {}, [&](HandleId id) { return pages_.handle(id).home; });
  return idle;
}

namespace {

// Calls visit(PageRange&, begin, end, is_asleep) for each stretch of homes side by side, all awake or all asleep. There may be
// thousands of handles in one free block: they are not looked up one by one.
template <typename Visit>
void for_each_stretch(PageHeap& heap, const Vector<HandleId>& by_home, Visit visit) {
  for (auto id = by_home.begin(); id != by_home.end();) {
    const Address begin = heap.pages().handle(*id).home;
    const bool is_asleep = heap.pages().handle(*id).is_asleep();
    PageRange& range = *heap.range_of(begin);
    Address end = begin;
    for (; id != by_home.end() && end < range.end(); ++id) {
      const PhysicalHandle& handle = heap.pages().handle(*id);
      if (handle.home != end || handle.is_asleep() != is_asleep) break;
      end = heap.end_of(handle);
    }
    visit(range, begin, end, is_asleep);
  }
}

}  // namespace

void PageHeap::claim_handles(const Vector<HandleId>& idle) {
  Block* block = nullptr;
  for_each_stretch(*this, idle, [&](PageRange& range, Address begin, Address end, bool /*is_asleep*/) {
    block = &first_block(begin, block);
    claim_stretch(range, *block, begin, end, [](Block&) {});
  });
}

void PageHeap::forget_memory(const Vector<HandleId>& idle, FunctionRef<void(const IdleMemory&)> visit) {
  for_each_stretch(*this, idle, [&](PageRange& range, Address begin, Address end, bool is_asleep) {
    while (begin < end) {
      Block& block = first_block(begin);
      begin = block.end();
      visit({range, block, is_asleep});
      close(range, block);
    }
  });
}

void PageHeap::put_back_idle(const Vector<HandleId>& idle) {
  for_each_stretch(*this, idle, [this](PageRange& /*range*/, Address begin, Address end, bool /*is_asleep*/) {
    InactiveSplit change;
    for (Block* block = &first_block(begin); block->has(Block::kClaimed) && block->address < end; block = block->next)
      block = &heap_.put_back(*block, change);
  });
}

// --- sleep ------------------------------------------------------------------------------------------------------------

Vector<HandleId> PageHeap::handles_of(const PrivatePool& owner) const {
  Vector<HandleId> handles;
  for (HandleId id = 0; id < pages_.handle_ids(); ++id) {
    const Vector<View>& views = pages_.handle(id).views;
    if (!views.empty() && range_of(views.front().address)->owner == &owner) handles.push_back(id);
  }
  std::ranges::sort(handles, {}, [this](HandleId id) { return pages_.handle(id).home; });
  return handles;
}

Vector<PageHeap::Run> PageHeap::runs_of(const Vector<HandleId>& by_address) const {
  Vector<Run> runs;
  for (const HandleId id : by_address) {
    const Address at = pages_.handle(id).home;
    const bool joins =
        !runs.empty() && runs.back().begin + runs.back().bytes == at && range_of(runs.back().begin) == range_of(at);
    if (!joins) runs.push_back({at, 0, {}});
    runs.back().bytes += pages_.bytes(pages_.handle(id));
    runs.back().handles.push_back(id);
  }
  return runs;
}

Vector<PageHeap::Run> PageHeap::stale_runs() const {
  Vector<Run> runs;
  for (const auto& [base, range] : ranges_) {
    if (range.owner != nullptr) continue;
    bool joins = false;
    for (Address slot = base; slot < range.top;) {
      const PageId shown = shown_at(range, slot);
      const bool is_stale = shown != 0 && shown != kBlocked && pages_.may_unmap(pages_.handle_of(shown), slot);
      if (is_stale && !joins) runs.push_back({slot, 0, {}});
      joins = is_stale;
      const std::size_t bytes = shown == 0 || shown == kBlocked ? page_bytes() : pages_.bytes(pages_.handle_of(shown));
      slot += bytes;
      if (!is_stale) continue;
      runs.back().bytes += bytes;
      runs.back().handles.push_back(pages_.page(shown).handle);
    }
  }
  return runs;
}

Vector<PageHeap::Stretch> PageHeap::used_stretches(HandleId id) {
  Vector<Stretch> stretches;
  const Address begin = pages_.handle(id).home;
  const Address end = end_of(pages_.handle(id));
  for (const Block* block = &first_block(begin); !block->is_edge() && block->address < end; block = block->next) {
    if (block->is_unused()) continue;
    const Address from = std::max(block->address, begin);
    const std::size_t bytes = std::min(block->end(), end) - from;
    const bool joins = !stretches.empty() && stretches.back().begin + stretches.back().bytes == from;
    if (!joins) stretches.push_back({from, 0});
    stretches.back().bytes += bytes;
  }
  return stretches;
}

std::size_t PageHeap::asleep_bytes(Address begin, Address end) const {
  const PageRange& range = *range_of(begin);
  std::size_t bytes = 0;
  for (Address slot = begin; slot < end; slot += page_bytes()) {
    if (pages_.handle_of(shown_at(range, slot)).is_asleep()) bytes += page_bytes();
  }
  return bytes;
}

// The checks of a PageHeap: its invariants, and what IdlePages finds.

namespace {

std::string validate_seams(const PageHeap& pages, const BlockHeap& heap) {
  const Seams& seams = pages.seams();
  auto noted = seams.all().begin();
  for (const auto& [address, head] : heap.segments()) {
    for (const Block* block = head; pages.holds(address) && !block->is_edge(); block = block->next) {
      if (!seams.is_seam(*block)) continue;
      if (noted == seams.all().end() || noted->address != block->address || noted->block != block)
        return formatted("the seam at {:#x} is not noted", block->address);
      ++noted;
    }
  }
  if (noted != seams.all().end()) return formatted("a seam is noted at {:#x}, where none is", noted->address);
  return "";
}

std::string validate_gaps(const PageHeap& pages, const BlockHeap& heap) {
  for (const auto& [base, range] : pages.ranges()) {
    Address end = base;
    std::size_t runs = 0;
    for (std::size_t i = 0; i < range.gaps.count(); ++i) {
      const auto& [address, gap] = range.gaps[i];
      if (address < end || !gap->is_gap() || gap->address != address)
        return formatted("no gap is at {:#x}, where one is noted", address);
      runs += address != end ? 1 : 0;
      end = gap->end();
    }
    runs += end != range.end() ? 1 : 0;
    const auto first = heap.segments().lower_bound(base);
    const auto last = heap.segments().lower_bound(range.end());
    if (static_cast<std::size_t>(std::distance(first, last)) != runs)
      return formatted("{} runs lie between the gaps of the range at {:#x}", runs, base);
  }
  return "";
}

}  // namespace

std::string PageHeap::validate(std::size_t moving) const {
  if (std::string broken = validate_gaps(*this, heap_); !broken.empty()) return broken;
  if (std::string broken = validate_seams(*this, heap_); !broken.empty()) return broken;
  std::size_t in_blocks = 0;
  for (const auto& [address, head] : heap_.segments()) {
    const PageRange* range = range_of(address);
    if (range == nullptr) continue;
    const Block* block = head;
    while (!block->is_edge()) block = block->next;
    const Address end = block->is_gap() ? block->address : range->end();
    if (address % page_bytes() != 0 || end % page_bytes() != 0)
      return formatted("run [{:#x}, {:#x}) is not made of pages", address, end);
    for (Address slot = address; slot < end; slot += page_bytes()) {
      const PageId page = shown_at(*range, slot);
      if (page == 0) return formatted("no page is mapped at {:#x}, where blocks are", slot);
      if (pages_.handle_of(page).home != pages_.view_at(page, slot))
        return formatted("page {} is not at home at {:#x}", page, slot);
      in_blocks += page_bytes();
    }
  }
  std::size_t in_handles = 0;
  std::size_t views = 0;
  for (HandleId id = 0; id < pages_.handle_ids(); ++id) {
    const PhysicalHandle& handle = pages_.handle(id);
    in_handles += pages_.bytes(handle);
    views += handle.views.size();
    std::size_t homes = 0;
    for (const View& view : handle.views) {
      homes += view.address == handle.home ? 1 : 0;
      const PageRange* range = range_of(view.address);
      for (std::uint32_t i = 0; i < handle.pages; ++i) {
        const Address slot = view.address + i * page_bytes();
        if (range == nullptr || shown_at(*range, slot) != handle.first + i)
          return formatted("view {:#x} of handle {} is not in the table of its range", view.address, id);
      }
    }
    if (handle.pages != 0 && homes != 1) return formatted("handle {} is at home in {} views", id, homes);
  }
  if (in_handles != in_blocks + moving) return formatted("handles hold {} bytes, blocks {}", in_handles, in_blocks);
  if (views != pages_.live_views()) return formatted("{} views are counted, {} there", pages_.live_views(), views);
  return "";
}

// Checks the findings of IdlePages, all arenas within reach, against every block of the pools' ranges.
std::string PageHeap::validate_idle_pages(const PoolPair& pools) const {
  reach_everything(pools);
  IdlePages found(*this);
  found.find(pools);
  std::size_t idle_pages = 0;
  for (const auto& [address, head] : heap_.segments()) {
    const PageRange* range = range_of(address);
    if (range == nullptr || range->owner != pools[0]->owner()) continue;
    const Block* block = head;
    for (Address slot = address; !block->is_edge(); slot += page_bytes()) {
      bool is_idle = true;
      for (; !block->is_edge() && block->address < slot + page_bytes(); block = block->next) {
        is_idle = is_idle && block->is_free();
        if (block->end() > slot + page_bytes()) break;
      }
      idle_pages += is_idle ? 1 : 0;
      if (found.has(shown_at(*range, slot)) != is_idle)
        return formatted("the page at {:#x} is{} idle, unlike what was found", slot, is_idle ? "" : " not");
    }
  }
  if (idle_pages != found.count()) return formatted("{} pages are idle, {} were found", idle_pages, found.count());
  return "";
}

CACHALOT_END
