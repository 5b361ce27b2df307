// PageGrowth's allocations in one handle: no pages can be brought together, only one handle be found or made.
#include <utility>

#include "base/bytes.h"
#include "growth/page_growth.h"

CACHALOT_BEGIN

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

// What a request takes of a block that was found or made for it; all of it in a pool that does not split.
PageHeap::Stretch PageGrowth::contiguous_part(const Block& block, Request request, const Held& /*held*/) const {
  const bool whole = !may_split(block.arena->pool);
  if (whole && pages_.room_in_one_handle(block, block.size())) return {block.address, block.size()};
  return {*pages_.room_in_one_handle(block, request.rounded), request.rounded};
}

Block* PageGrowth::find_contiguous_anywhere(Request request, Ordering ordering, const Held& held) const {
  Block* found = find_contiguous(request, *request.arena, ordering, held);
  for (const auto& arena : request.pool().arenas()) {
    if (found == nullptr) found = find_contiguous(request, *arena, ordering, held);
  }
  return found;
}

// Of another stream, if it must be: after a wait for it, which costs less than new memory.
Block* PageGrowth::search_contiguous(Request request, Growing& growing) {
  Block* block = find_contiguous_anywhere(request, Ordering::now, growing);
  if (block == nullptr && state_.options.cross_stream == CrossStream::wait && may_wait_for_others(request, growing)) {
    const Block* other = find_contiguous_anywhere(request, Ordering::after_wait, growing);
    if (other != nullptr) {
      clocks_.wait(clocks_.of(request.stream(), growing), clocks_.of(other->arena->stream, growing), other->bin.epoch,
                   growing);
    }
    block = find_contiguous_anywhere(request, Ordering::now, growing);
  }
  if (block == nullptr || block->arena == request.arena) return block;
  const PageHeap::Stretch part = contiguous_part(*block, request, growing);
  return &pages_.hand_over(*block, part.begin, part.begin + part.bytes, *request.arena);
}

Block* PageGrowth::search_or_create_contiguous(Request request, const Context& context, Growing& growing) {
  if (Block* block = search_contiguous(request, growing)) return block;
  if (Block* block = spare_.take_page(request, growing)) return block;
  if (request.rounded > state_.device->properties().total_bytes) return nullptr;
  std::optional<BackingPlan> plan = pages_.plan_handle(*request.arena, request.rounded);
  if (!plan) {
    reserve_range(request, growing);
    plan = pages_.plan_handle(*request.arena, request.rounded);
  }
  return driver_.execute_plan(plan, request, context, growing);
}

// As obtain_anywhere, but for what gives a block.
Block* PageGrowth::obtain_contiguous(Request request, const Context& context, Growing& growing) {
  state_.drain_caches(growing);
  spare_.return_whole_pages(*this, growing);
  refresh_before_planning(request, growing);
  Block* block = search_or_create_contiguous(request, context, growing);
  if (block == nullptr) block = recovery_.borrow(request, growing);
  if (block != nullptr || state_.capturing(growing)) return block;
  if (recovery_.synchronize_frees(growing)) block = search_contiguous(request, growing);
  if (block != nullptr) return block;
  wait_and_release_unused(request, growing);
  if ((block = search_or_create_contiguous(request, context, growing)) != nullptr) return block;
  recovery_.release_default_pools(growing);
  return search_or_create_contiguous(request, context, growing);
}

Block& PageGrowth::cut_contiguous(Block& block, Request request, const Held& held) {
  const PageHeap::Stretch wanted = contiguous_part(block, request, held);
  return pages_.set_apart(block, wanted.begin, wanted.begin + wanted.bytes);
}

CACHALOT_END
