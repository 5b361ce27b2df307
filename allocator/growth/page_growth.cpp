#include "growth/page_growth.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

Arena& SparePages::large_arena_beside(Request request, const Held& held) {
  PrivatePool* const owner = request.pool().owner();
  return streams_.arena_of(owner != nullptr ? owner->large : state_.large(held), request.stream(), held);
}

Block* SparePages::find_beside(Request request, const Held& held) {
  if (request.pool().kind() != PoolKind::small) return nullptr;
  Block* block = large_arena_beside(request, held).bins.best_fit(request.rounded);
  return block != nullptr && block->size() < pages_.page_bytes() ? block : nullptr;
}

Block* SparePages::take_page(Request request, const Held& held) {
  if (request.pool().kind() != PoolKind::small) return nullptr;
  return take_page_of(large_arena_beside(request, held), request, held);
}

// Takes a page for small blocks (or the pages that the request takes) from the smallest free block that holds one.
Block* SparePages::take_page_of(const Arena& arena, Request request, const Held& /*held*/) {
  const std::size_t page = pages_.page_bytes();
  const std::size_t bytes = round_up(request.rounded, page);
  Block* found = nullptr;
  arena.bins.for_each_of_at_least(bytes, [&](Block& block) {
    if (found == nullptr && round_up(block.address, page) + bytes <= block.end()) found = &block;
  });
  if (found == nullptr) return nullptr;
  const Address begin = round_up(found->address, page);
  return &pages_.hand_over(*found, begin, begin + bytes, *request.arena);
}

Block* SparePages::take_unused(Request request, const Held& held) {
  if (request.pool().owner() != nullptr) return nullptr;
  const Arena* const unused = state_.large(held).find(StreamKey::nobody());
  if (unused == nullptr) return nullptr;
  if (request.pool().kind() == PoolKind::small) return take_page_of(*unused, request, held);
  Block* const block = unused->bins.best_fit(request.rounded);
  if (block == nullptr) return nullptr;
  return &pages_.hand_over(*block, block->address, block->address + request.rounded, *request.arena);
}

void SparePages::return_whole_pages(const Growth& growth, const Held& held) {
  const std::size_t page = pages_.page_bytes();
  pools_.for_each(
      [&](const BlockPool& pool) {
        holds(held);
        if (pool.kind() != PoolKind::small || pool.growth != &growth) return;
        BlockPool& large_pool = pool.owner() != nullptr ? pool.owner()->large : state_.large(held);
        for (const auto& arena : pool.arenas()) {
          if (arena->bins.best_fit(page) == nullptr) continue;
          Vector<Block*> whole;
          arena->bins.for_each_of_at_least(page, [&](Block& block) {
            holds(held);
            const bool holds_page = round_up(block.address, page) + page <= block.end();
            if (holds_page && pages_.range_of(block.address)->kind == PoolKind::large) whole.push_back(&block);
          });
          for (Block* block : whole) {
            Arena& to = streams_.arena_of(large_pool, arena->stream, held);
            pages_.hand_over(*block, round_up(block->address, page), round_down(block->end(), page), to);
          }
        }
      },
      held);
}

namespace {

// Larger handles take fewer driver calls, smaller ones move more freely. So memory that is to move comes in single pages, and
// other memory in handles that are large while memory is plenty, and the smaller the less of it is left, down to a page.
// Measured: docs/page_heap.md.
constexpr std::size_t kLargestHandle = std::size_t{32} << 20;
constexpr std::size_t kHandlesInTheRest = 4096;
constexpr double kMostUsOfGiB = 25'000;  // of new memory that is to move, if larger handles allow it
constexpr std::size_t kMappingsOfAPage = 3;
constexpr std::size_t kFewMappings = 8192;
// Addresses reserved at once for a private pool.
constexpr std::size_t kPrivateRange = std::size_t{8} << 30;

}  // namespace

PageGrowth::PageGrowth(HeapState& state, const Parts& parts, std::size_t page_bytes)
    : state_(state),
      pools_(parts.pools),
      clocks_(parts.clocks),
      streams_(parts.streams),
      caches_(parts.caches),
      recovery_(parts.recovery),
      pages_(state.blocks, page_bytes),
      spare_(state, pages_, parts.pools, parts.streams),
      placement_(pages_, costs_),
      driver_(state, pages_, costs_, parts.clocks, parts.handles, parts.saved) {
  clocks_.set_referred([this](const Held& held) {
    holds(held);
    return pages_.pages().forget_done_uses();  // those that stale views still name
  });
}

// --- mappings that pages have left --------------------------------------------------------------------------------------

// Keeps the mappings within the device's max_mappings, and within some for each page: handles that leave them may come back to
// these, but drivers slow down with the number. At least a quarter of them go at once. Where work still uses them, which a look
// at all of them tells, the next look waits until a quarter more are there.
void PageGrowth::drop_stale_views(Growing& growing) {
  const PhysicalPages& pages = pages_.pages();
  if (!pages.has_aliases() || state_.capturing(growing)) return;
  const std::size_t limit = state_.device->properties().max_mappings;
  const std::size_t usual = std::max(kFewMappings, kMappingsOfAPage * std::size_t{pages.page_ids()});
  const std::size_t most = std::min(limit, usual);
  if (pages.live_views() <= std::min(limit, std::max(most, views_at_next_look_))) return;
  const std::size_t enough = most - most / 4;
  drop_done_views(enough, growing);
  if (pages.live_views() > limit) {
    clocks_.finish_all_work(growing);
    drop_done_views(enough, growing);
  }
  views_at_next_look_ = pages.live_views() + most / 4;
}

void PageGrowth::drop_done_views(std::size_t enough, Growing& growing) {
  const Vector<PageHeap::Run> runs = pages_.stale_runs();
  Vector<Orphan> views;
  for (auto run = runs.rbegin(); run != runs.rend() && pages_.pages().live_views() > enough; ++run) {
    for (Address at = run->begin; const HandleId id : run->handles) {
      const std::size_t bytes = pages_.pages().bytes(pages_.pages().handle(id));
      views.push_back({0, bytes, {at}});
      driver_.forget_view(id, at, growing);
      at += bytes;
    }
  }
  driver_.free_all(std::move(views), growing);
}

// --- a block for a request --------------------------------------------------------------------------------------------

// Finds a free block beside large ones. The rest of a page beside large blocks may cross a border of handles.
Block* PageGrowth::find_beside(Request request, const Held& held) {
  Block* block = spare_.find_beside(request, held);
  const bool serves = block == nullptr || !request.contiguous || pages_.room_in_one_handle(*block, request.rounded);
  return serves ? block : nullptr;
}

// Returns the smallest size that the driver's time allows.
std::size_t PageGrowth::movable_handle_bytes(const Held& held) const {
  const std::size_t most = large_handle_bytes(held);
  if (state_.options.page_size != 0) return most;
  const DriverCosts::Prices& prices = costs_.prices();
  const double handle_us = prices.create + prices.map + prices.set_access_mapping;
  std::size_t bytes = pages_.page_bytes();
  const double least = handle_us * static_cast<double>(kGiB) / kMostUsOfGiB;
  while (2 * bytes <= most && static_cast<double>(bytes) < least) bytes *= 2;
  return bytes;
}

std::size_t PageGrowth::large_handle_bytes(const Held& held) const {
  if (state_.options.page_size != 0) return state_.options.page_size;
  const std::size_t page = pages_.page_bytes();
  const std::size_t most = std::min(state_.ledger.limit(held), state_.device->properties().total_bytes);
  const std::size_t left = most - std::min(most, state_.ledger.held_bytes(held));
  return std::max(page, round_down(std::min(kLargestHandle, left / kHandlesInTheRest), page));
}

// --- addresses --------------------------------------------------------------------------------------------------------

// Addresses are plentiful: as many as the device has memory (fewer for a private pool, of which there may be hundreds), and
// more when these are used up.
void PageGrowth::reserve_range(Request request, Growing& growing) {
  const std::size_t usual = request.pool().owner() == nullptr ? state_.device->properties().total_bytes : kPrivateRange;
  const std::size_t bytes = round_up(std::max(usual, 2 * request.rounded), pages_.page_bytes());
  std::optional<Address> base;
  {
    const Unlocked<Held> unlocked(growing);
    base = state_.device->reserve(bytes);
  }
  if (!base) return;
  try {
    pages_.add_range(*base, bytes, request.pool().kind(), request.pool().owner());
  } catch (...) {
    const Unlocked<Held> unlocked(growing);
    state_.device->unreserve(*base, bytes);
    throw;
  }
}

// Releases the addresses of a pool that is going; all its memory is gone.
void PageGrowth::release_addresses(const PrivatePool& pool, Growing& growing) {
  pages_.remove_ranges(&pool, [&](const PageRange& range) {
    holds(growing);
    const Unlocked<Held> unlocked(growing);
    state_.device->unreserve(range.base, range.bytes);
  });
}

// --- giving memory back -------------------------------------------------------------------------------------------------

void PageGrowth::collect_garbage(Growing& growing) {
  const std::size_t bytes = garbage_bytes(state_, growing);
  if (bytes == 0) return;
  const std::size_t kept = state_.ledger.kept_bytes(growing);
  const std::size_t most = kept == 0 ? PageDriver::kEverything : state_.ledger.held_bytes(growing) - kept;
  driver_.release_pages(nullptr, bytes, most, growing);
}

void PageGrowth::release_free(PrivatePool* owner, Reservation reservation, Growing& growing) {
  driver_.release_pages(owner, PageDriver::kEverything, PageDriver::kEverything, growing, reservation);
}

bool PageGrowth::has_leftovers(const PrivatePool& pool, const Held& held) const {
  return driver_.has_orphans(pool, held);
}

void PageGrowth::give_back_everything() noexcept { driver_.give_back_everything(); }

// --- queries ------------------------------------------------------------------------------------------------------------

// A page of large blocks that serves small ones counts as large.
PoolKind PageGrowth::reserved_in(const Block& head, const Held& /*held*/) const {
  return pages_.range_of(head.address)->kind;
}

std::size_t PageGrowth::asleep_bytes(Address begin, Address end, const Held& /*held*/) const {
  return pages_.asleep_bytes(begin, end);
}

std::size_t PageGrowth::handle_count(const Block& block, const Held& /*held*/) const {
  return pages_.views_of(block.address, block.end()).size();
}

std::vector<AddressRange> PageGrowth::mapped_addresses(const Held& /*held*/) const { return pages_.mapped_addresses(); }

SharedMemory PageGrowth::share(const Block& block, Address /*base*/, Growing& growing) {
  return driver_.share(block, growing);
}

// All blocks of the pool are free.
void PageGrowth::separate_kinds(PrivatePool& pool, Growing& growing) {
  Vector<Block*> heads;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena->pool.owner() == &pool && head->arena->in_ranges) heads.push_back(head);
  }
  for (Block* block : heads) {
    BlockPool& to = pages_.range_of(block->address)->kind == PoolKind::small ? pool.small : pool.large;
    for (; !block->is_edge(); block = block->next) {
      if (&block->arena->pool == &to) continue;
      Arena& arena = streams_.arena_of(to, block->arena->stream, growing);
      block = &pages_.hand_over(*block, block->address, block->end(), arena);
    }
  }
}

std::string PageGrowth::validate(const Held& held) const {
  if (std::string broken = pages_.validate(state_.ledger.moving_bytes(held)); !broken.empty()) return broken;
  std::string broken = pages_.validate_idle_pages(state_.pools_of(nullptr, held));
  for (const auto& [id, pool] : pools_.all(held)) {
    if (broken.empty() && pool->large.growth == this)
      broken = pages_.validate_idle_pages(state_.pools_of(pool.get(), held));
  }
  return broken;
}

std::size_t PageGrowth::metadata_bytes(const Held& /*held*/) const {
  return sizeof(*this) + pages_.metadata_bytes() + placement_.metadata_bytes();
}

// PageGrowth's allocations in one handle: no pages can be brought together, only one handle be found or made.
Block* PageGrowth::find(Request request, const Held& held) {
  return request.contiguous ? find_contiguous(request, *request.arena, Ordering::now, held)
                            : state_.find_free_and_age(request, held);
}

// The smallest free block of which a part that suffices lies in one handle.
Block* PageGrowth::find_contiguous(Request request, const Arena& arena, Ordering ordering, const Held& held) const {
  Block* found = nullptr;
  arena.bins.for_each_of_at_least(request.rounded, [&](Block& block) {
    holds(held);
    if (found != nullptr || !clocks_.may_take(block, request.stream(), ordering, held)) return;
    if (pages_.room_in_one_handle(block, may_split(arena.pool) ? request.rounded : block.size())) found = &block;
  });
  return found;
}

// Returns the part that a request takes of a block that was found or made for it; the whole block in a pool that does
// not split.
PageHeap::Stretch PageGrowth::contiguous_part(const Block& block, Request request, const Held& /*held*/) const {
  const bool whole = !may_split(block.arena->pool);
  if (whole && pages_.room_in_one_handle(block, block.size())) return {block.address, block.size()};
  return {*pages_.room_in_one_handle(block, request.rounded), request.rounded};
}

Block& PageGrowth::cut_contiguous(Block& block, Request request, const Held& held) {
  const PageHeap::Stretch wanted = contiguous_part(block, request, held);
  return pages_.set_apart(block, wanted.begin, wanted.begin + wanted.bytes);
}

// The memory that the page heap gives back and takes beside requests: trim, and memory that no stream has used.

// --- trim -----------------------------------------------------------------------------------------------------------------

std::size_t PageGrowth::trim(const TrimGoal& goal, Growing& growing) {
  clocks_.look_at_idle(pages_.page_bytes(), growing);
  return driver_.release_done(goal, growing);
}

// --- memory that no stream has used ---------------------------------------------------------------------------------------

// Handle after handle, side by side as long as the addresses allow it: the free memory merges.
bool PageGrowth::add_unused(std::size_t bytes, Growing& growing) {
  Arena& arena = streams_.arena_of_nobody(state_.large(growing), growing);
  const ArenaHold hold(arena);
  const std::size_t wanted = round_up(bytes, pages_.page_bytes());
  for (std::size_t added = 0; added < wanted;) {
    const std::size_t part = std::min(large_handle_bytes(growing), wanted - added);
    const Request request{.bytes = part, .rounded = part, .arena = &arena};
    std::optional<BackingPlan> plan = pages_.plan_handle(arena, part);
    if (!plan) {
      reserve_range({.bytes = wanted, .rounded = wanted, .arena = &arena}, growing);
      plan = pages_.plan_handle(arena, part);
    }
    if (driver_.execute_plan(plan, request, nullptr, growing) == nullptr) return false;
    added += part;
  }
  return true;
}

CACHALOT_END
