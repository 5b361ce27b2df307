#include "growth/spare_pages.h"

#include <vector>

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

// Of the smallest free block that holds one, a page for small blocks (or what pages it takes).
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
          std::vector<Block*> whole;
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

CACHALOT_END
