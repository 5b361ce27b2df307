// What the page heap gives back and takes beside requests: trim, and memory that no stream has used.
#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "growth/page_growth.h"

CACHALOT_BEGIN

// --- trim -----------------------------------------------------------------------------------------------------------------

std::size_t PageGrowth::trim(const TrimGoal& goal, Growing& growing) {
  clocks_.look_at_idle(pages_.page_bytes(), growing);
  return driver_.release_done(goal, growing);
}

std::size_t PageDriver::release_done(const TrimGoal& goal, Growing& growing) {
  free_orphans(growing);
  std::vector<HandleId> idle = pages_.idle_handles(state_.pools_of(nullptr, growing));
  std::erase_if(idle, [&](HandleId id) {
    holds(growing);
    return !is_idle_and_done(id, growing);
  });
  const auto bytes_of = [&](HandleId id) {
    holds(growing);
    return pages_.pages().bytes(pages_.pages().handle(id));
  };
  const auto [chosen, bytes] = goal.choose(idle, bytes_of);
  pages_.claim_handles(chosen);
  for (auto id = chosen.begin(); id != chosen.end(); ++id) {
    try {
      release_handle(*id, nullptr, growing);
    } catch (...) {
      for (auto kept = std::next(id); kept != chosen.end(); ++kept) pages_.put_back_idle(*kept);
      throw;
    }
  }
  return bytes;
}

bool PageDriver::is_idle_and_done(HandleId id, const Held& held) {
  const PhysicalHandle& handle = pages_.pages().handle(id);
  if (handle.memory == 0 || handle.is_asleep()) return false;
  if (pages_.range_of(handle.views.front().address)->owner != nullptr) return false;
  bool is_done = std::all_of(handle.views.begin(), handle.views.end(), PhysicalPages::is_unused);
  pages_.for_each_home(id, [&](PageRange&, Address begin, Address end) {
    holds(held);
    const Block* block = &pages_.first_block(begin);
    for (; is_done && !block->is_edge() && block->address < end; block = block->next) {
      const StreamClock* const clock = block->is_free() ? clocks_.find(block->arena->stream.key, held) : nullptr;
      is_done = clock != nullptr && clock->is_done(block->bin.epoch);
    }
  });
  return is_done;
}

// --- memory that no stream has used ---------------------------------------------------------------------------------------

// Handle after handle, side by side as long as the addresses allow it: the free memory merges.
bool PageGrowth::add_unused(std::size_t bytes, Growing& growing) {
  Arena& arena = streams_.arena_of_nobody(state_.large(growing), growing);
  const ArenaHold hold(arena);
  const std::size_t wanted = round_up(bytes, pages_.page_bytes());
  for (std::size_t added = 0; added < wanted;) {
    const std::size_t usual = state_.options.page_size != 0 ? state_.options.page_size : usual_handle_bytes(growing);
    const std::size_t part = std::min(usual, wanted - added);
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
