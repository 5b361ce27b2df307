#include "pool_compaction.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "cachalot/kernels.h"
#include "pool_core.h"
#include "slab_changes.h"

CACHALOT_BEGIN

CompactReport PoolCompaction::run(std::size_t keep) {
  const Lock lock(books_.mutex);
  books_.await_trimming();
  report_.bytes_freed = trim_slabs(books_, keep);
  if (ever_grows(books_.options)) move_together(keep);
  report_.bytes_freed += trim_slabs(books_, keep);
  return report_;
}

void PoolCompaction::move_together(std::size_t keep) {
  books_.trimming = true;
  std::exception_ptr failure;
  {
    const StackRecall recall(books_.stacks);
    try {
      choose_tensors(sparse_slabs(keep));
      move_tensors();
    } catch (...) {
      failure = std::current_exception();
    }
    for (PoolSlot* slot : aside_) books_.free.push(*slot);
  }
  books_.trimming = false;
  books_.changed.notify_all();
  if (failure) std::rethrow_exception(failure);
}

namespace {

// Its free slots are counted.
bool can_move_all(const PoolSlab& slab) {
  const std::span tensors(slab.tensors.get(), slab.count);
  return static_cast<std::size_t>(std::ranges::count(tensors, nullptr)) == slab.free;
}

}  // namespace

// No slab is wholly free that might go. Those with the fewest tensors for a slot come first.
std::vector<PoolSlab*> PoolCompaction::sparse_slabs(std::size_t keep) {
  books_.slabs.count_free();
  std::vector<PoolSlab*> in_use;
  for (const auto& slab : books_.slabs) {
    if (slab->free < slab->count && can_move_all(*slab)) in_use.push_back(slab.get());
  }
  std::ranges::stable_sort(in_use, [](const PoolSlab* a, const PoolSlab* b) {
    return (a->count - a->free) * b->count < (b->count - b->free) * a->count;
  });
  std::vector<PoolSlab*> sparse;
  std::size_t left = books_.free.size() - std::min(keep, books_.free.size());
  for (PoolSlab* slab : in_use) {
    if (slab->count > left) continue;
    left -= slab->count;
    sparse.push_back(slab);
  }
  return sparse;
}

// Everything that can fail comes before slots are taken from the list.
void PoolCompaction::choose_tensors(const std::vector<PoolSlab*>& slabs) {
  std::vector<PoolSlot*> free;
  for (const PoolSlab* slab : slabs) {
    for (std::size_t i = 0; i < slab->count; ++i) {
      PoolSlot& slot = slab->slots[i];
      (slab->tensor_in(slot) == nullptr ? free : tensors_).push_back(&slot);
    }
  }
  free.reserve(free.size() + tensors_.size());  // the slots that the tensors leave come in here, too
  std::ranges::stable_sort(tensors_, [](const PoolSlot* a, const PoolSlot* b) { return a->stream < b->stream; });
  aside_ = std::move(free);
  for (PoolSlab* slab : slabs) slab->leaves = true;
  books_.free.remove_leaving();
  for (PoolSlab* slab : slabs) slab->leaves = false;
}

void PoolCompaction::move_tensors() {
  for (auto first = tensors_.begin(); first != tensors_.end();) {
    const auto end =
        std::find_if(first, tensors_.end(), [&](const PoolSlot* slot) { return slot->stream != (*first)->stream; });
    if (books_.memory.streams().lives((*first)->stream)) move_tensors_of_a_stream({first, end});
    first = end;
  }
}

void PoolCompaction::move_tensors_of_a_stream(std::span<PoolSlot* const> tensors) {
  const StreamKey stream = tensors.front()->stream;
  std::vector<Relocation> relocations = choose_places(tensors);
  keep_those_in_order(relocations, stream);
  copy(relocations, stream);
  for (const Relocation& relocation : relocations) {
    PoolCore::move_tensor(*relocation.from, *relocation.to);
    aside_.push_back(relocation.from);
  }
  report_.blocks_moved += relocations.size();
  report_.bytes_moved += relocations.size() * books_.memory.tensor_bytes();
}

// A place in the list is reserved for each tensor, under its stream.
std::vector<PoolCompaction::Relocation> PoolCompaction::choose_places(std::span<PoolSlot* const> tensors) {
  const StreamKey stream = tensors.front()->stream;
  std::vector<Relocation> relocations;
  relocations.reserve(tensors.size());
  books_.free.reserve(stream, tensors.size());
  for (PoolSlot* from : tensors) {
    PoolSlot* const own = books_.free.pop(stream);
    relocations.push_back({from, own != nullptr ? own : books_.free.pop_any()});
  }
  return relocations;
}

// The places of those that remain are the stream's from now on; the other places are free again.
void PoolCompaction::keep_those_in_order(std::vector<Relocation>& relocations, StreamKey stream) {
  std::uint64_t waits = 0;
  std::exception_ptr failure;
  try {
    const Unlocked unlocked(books_.mutex);
    put_users_before(relocations, stream, waits);
  } catch (...) {
    failure = std::current_exception();
    for (Relocation& relocation : relocations) relocation.is_in_order = false;
  }
  books_.figures.streams_waited(waits);
  for (const Relocation& relocation : relocations) assign_place(relocation, stream);
  std::erase_if(relocations, [](const Relocation& relocation) { return !relocation.is_in_order; });
  if (failure) std::rethrow_exception(failure);
}

void PoolCompaction::assign_place(const Relocation& relocation, StreamKey stream) {
  PoolSlot& place = *relocation.to;
  if (relocation.is_in_order) {
    books_.free.unreserve(place.stream, 1);
    place.set_only_user(stream);
  } else {
    books_.free.unreserve(stream, 1);
    books_.free.push(place);
  }
}

// Without the mutex held: the slots are in no list. Each other stream is waited for once.
void PoolCompaction::put_users_before(std::span<Relocation> relocations, StreamKey stream, std::uint64_t& waits) {
  PoolStreams& streams = books_.memory.streams();
  if (streams.captures(stream)) return;
  std::map<StreamKey, bool> waited_for;  // false: it captures
  const auto put_before = [&](const PoolSlot& slot) {
    bool all = true;
    for_each_user(slot, [&](StreamKey user) {
      if (user == stream) return;
      const auto [known, is_new] = waited_for.try_emplace(user, false);
      if (is_new && !streams.captures(user)) {
        streams.put_before(user, stream);
        known->second = true;
        ++waits;
      }
      all = all && known->second;
    });
    return all;
  };
  for (Relocation& relocation : relocations)
    relocation.is_in_order = put_before(*relocation.from) && put_before(*relocation.to);
}

// Where this fails the new places are free again.
void PoolCompaction::copy(std::span<const Relocation> relocations, StreamKey stream) {
  const auto address = [](const PoolSlot& slot) { return reinterpret_cast<Address>(slot.data); };
  try {
    std::vector<BlockMove> moves;
    moves.reserve(relocations.size());
    for (const auto& [from, to, is_in_order] : relocations)
      moves.push_back({address(*from), address(*to), books_.memory.tensor_bytes()});
    const Unlocked unlocked(books_.mutex);
    books_.options.mover->move_blocks(books_.memory.streams().handle_of(stream), moves);
  } catch (...) {
    for (const Relocation& relocation : relocations) books_.free.push(*relocation.to);
    throw;
  }
}

CACHALOT_END
