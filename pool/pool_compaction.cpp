// PoolCore: tensors that are out are moved together, so that more slabs are wholly free.
//
// The emptiest slabs are chosen, as many as free slots beyond `keep` can make up for; each tensor in them gets a free
// slot elsewhere, last used on its own stream if there is such. What one stream's tensors need is one call of the
// mover.
#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "cachalot/kernels.h"
#include "pool_core.h"

namespace cachalot {

struct PoolCore::Relocation {
  PoolSlot* from;
  PoolSlot* to;
  bool is_in_order = false;  // the tensor's stream comes after all other work on both
};

struct PoolCore::Compaction {
  std::vector<PoolSlot*> tensors;  // to be moved; those of a stream together
  std::vector<PoolSlot*> aside;    // the free slots beside them, where none is to be moved to, and those they leave
  CompactReport report;
};

CompactReport PoolCore::compact(std::size_t keep) {
  const Lock lock(mutex_);
  while (trimming_) changed_.wait(mutex_);
  Compaction compaction;
  compaction.report.bytes_freed = trim_now(keep);
  if (ever_grows(options_)) move_together(compaction, keep);
  compaction.report.bytes_freed += trim_now(keep);
  return compaction.report;
}

void PoolCore::move_together(Compaction& compaction, std::size_t keep) {
  trimming_ = true;
  begin_recall();
  std::exception_ptr failure;
  try {
    set_aside(compaction, sparse_slabs(keep));
    move_tensors(compaction);
  } catch (...) {
    failure = std::current_exception();
  }
  for (PoolSlot* slot : compaction.aside) free_.put(*slot);
  end_recall();
  trimming_ = false;
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
}

// Under a recall; no slab is wholly free that might go. Those with the fewest tensors for a slot come first.
std::vector<PoolSlab*> PoolCore::sparse_slabs(std::size_t keep) {
  count_free_slots();
  std::vector<PoolSlab*> in_use;
  for (const auto& slab : slabs_) {
    if (slab->free < slab->count && can_move_all(*slab)) in_use.push_back(slab.get());
  }
  std::ranges::stable_sort(in_use, [](const PoolSlab* a, const PoolSlab* b) {
    return (a->count - a->free) * b->count < (b->count - b->free) * a->count;
  });
  std::vector<PoolSlab*> sparse;
  std::size_t left = free_.size() - std::min(keep, free_.size());
  for (PoolSlab* slab : in_use) {
    if (slab->count > left) continue;
    left -= slab->count;
    sparse.push_back(slab);
  }
  return sparse;
}

// Its free slots are counted.
bool PoolCore::can_move_all(const PoolSlab& slab) {
  const std::span tensors(slab.tensors.get(), slab.count);
  return static_cast<std::size_t>(std::ranges::count(tensors, nullptr)) == slab.free;
}

// Everything that can fail comes before slots are taken from the list.
void PoolCore::set_aside(Compaction& compaction, const std::vector<PoolSlab*>& slabs) {
  std::vector<PoolSlot*> free;
  for (const PoolSlab* slab : slabs) {
    for (std::size_t i = 0; i < slab->count; ++i) {
      PoolSlot& slot = slab->slots[i];
      (slab->tensor_in(slot) == nullptr ? free : compaction.tensors).push_back(&slot);
    }
  }
  free.reserve(free.size() + compaction.tensors.size());
  std::ranges::stable_sort(compaction.tensors,
                           [](const PoolSlot* a, const PoolSlot* b) { return a->stream < b->stream; });
  compaction.aside = std::move(free);
  for (PoolSlab* slab : slabs) slab->leaves = true;
  free_.remove_if([](const PoolSlot& slot) { return slot.slab->leaves; });
  for (PoolSlab* slab : slabs) slab->leaves = false;
}

void PoolCore::move_tensors(Compaction& compaction) {
  const std::vector<PoolSlot*>& tensors = compaction.tensors;
  for (auto first = tensors.begin(); first != tensors.end();) {
    const auto end =
        std::find_if(first, tensors.end(), [&](const PoolSlot* slot) { return slot->stream != (*first)->stream; });
    if (memory_.lives((*first)->stream)) move_tensors_of_a_stream(compaction, {first, end});
    first = end;
  }
}

// Places first, then the order of the streams, then the copies. A place that nothing came of goes back to the list.
void PoolCore::move_tensors_of_a_stream(Compaction& compaction, std::span<PoolSlot* const> tensors) {
  const StreamKey stream = tensors.front()->stream;
  std::vector<Relocation> relocations;
  std::vector<BlockMove> moves;
  relocations.reserve(tensors.size());
  moves.reserve(tensors.size());
  free_.expect(stream, tensors.size());
  for (PoolSlot* from : tensors) {
    PoolSlot* const own = free_.take(stream);
    relocations.push_back({from, own != nullptr ? own : free_.take_any()});
  }
  put_in_order(relocations, stream);
  for (const auto& [from, to, is_in_order] : relocations) {
    moves.push_back({reinterpret_cast<Address>(from->data), reinterpret_cast<Address>(to->data), tensor_bytes()});
  }
  try {
    const Unlocked unlocked(mutex_);
    options_.mover->move_blocks(memory_.handle_of(stream), moves);
  } catch (...) {
    for (const Relocation& relocation : relocations) free_.put(*relocation.to);
    throw;
  }
  for (const Relocation& relocation : relocations) {
    hand_over(*relocation.from, *relocation.to);
    compaction.aside.push_back(relocation.from);
  }
  compaction.report.blocks_moved += moves.size();
  compaction.report.bytes_moved += moves.size() * tensor_bytes();
}

// Leaves those that can be put in order, with places that are the stream's from now on: it is expected to get one for
// each.
void PoolCore::put_in_order(std::vector<Relocation>& relocations, StreamKey stream) {
  std::uint64_t waits = 0;
  std::exception_ptr failure;
  try {
    const Unlocked unlocked(mutex_);
    follow_others(relocations, stream, waits);
  } catch (...) {
    failure = std::current_exception();
    for (Relocation& relocation : relocations) relocation.is_in_order = false;
  }
  stats_.stream_waits += waits;
  for (const Relocation& relocation : relocations) settle(*relocation.to, stream, relocation.is_in_order);
  std::erase_if(relocations, [](const Relocation& relocation) { return !relocation.is_in_order; });
  if (failure) std::rethrow_exception(failure);
}

// The new place is the stream's, or goes back as it was.
void PoolCore::settle(PoolSlot& place, StreamKey stream, bool is_the_streams) {
  free_.expect_fewer(is_the_streams ? place.stream : stream, 1);
  if (!is_the_streams) return free_.put(place);
  place.stream = stream;
  if (place.others != nullptr) place.others->clear();
  place.attention &= ~PoolSlot::kOtherStreams;
}

// Without the mutex held: the slots are nobody else's. Each other stream is waited for once.
void PoolCore::follow_others(std::span<Relocation> relocations, StreamKey stream, std::uint64_t& waits) {
  if (memory_.captures(stream)) return;
  std::map<StreamKey, bool> followed;  // false: it captures
  const auto follow = [&](const PoolSlot& slot) {
    bool all = true;
    for_each_user(slot, [&](StreamKey user) {
      if (user == stream) return;
      const auto [known, is_new] = followed.try_emplace(user, false);
      if (is_new && !memory_.captures(user)) {
        memory_.put_before(user, stream);
        known->second = true;
        ++waits;
      }
      all = all && known->second;
    });
    return all;
  };
  for (Relocation& relocation : relocations)
    relocation.is_in_order = follow(*relocation.from) && follow(*relocation.to);
}

// Both are of one stream. The tensor takes along which others have used it.
void PoolCore::hand_over(PoolSlot& from, PoolSlot& to) {
  std::swap(from.others, to.others);
  to.attention = std::exchange(from.attention, from.attention & PoolSlot::kMustBeFilled);
  PooledTensor& tensor = *std::exchange(from.slab->tensor_in(from), nullptr);
  tensor.slot_ = &to;
  tensor.data_ = to.data;
  tensor.enter(&to.slab->tensor_in(to));
}

}  // namespace cachalot
