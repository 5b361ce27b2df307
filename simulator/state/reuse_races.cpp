#include "simulator/state/reuse_races.h"

#include <algorithm>
#include <iterator>

namespace cachalot::simulator {
namespace {

Address end_of(const AddressRange& range) { return range.address + range.bytes; }

bool contains(const AddressRange& outer, const AddressRange& inner) {
  return outer.address <= inner.address && end_of(inner) <= end_of(outer);
}

}  // namespace

void ReuseRaces::allocated(Address start, CUstream_st* stream, Place at) {
  freed(start, 0);  // one whose end was not told
  blocks_[start] = Block{.stream = stream, .at = at, .uses = {}};
}

void ReuseRaces::freed(Address start, Place at) {
  const auto found = blocks_.find(start);
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  const auto end = std::make_shared<const Freed>(Freed{block.stream, block.at, at});
  for (const Use& use : block.uses) {
    past_.for_each_filled(use.range.address, use.range.bytes, [&](const auto&, std::vector<PastUse>& uses) {
      uses.push_back({use, end});
    });
  }
  blocks_.erase(found);
}

void ReuseRaces::used(Address start, const AddressRange& range, StreamState& stream, CUstream_st* handle, Place at) {
  const auto found = blocks_.find(start);
  if (found == blocks_.end() || range.bytes == 0 || stream.capture) return;
  Block& block = found->second;
  const Use use{range, stream.order.number, order_.launched(stream.order), handle, at};
  check(block, use, stream.order);
  add(block, use);
}

void ReuseRaces::used_within(const AddressRange& memory, const AddressRange& range, StreamState& stream,
                             CUstream_st* handle, Place at) {
  const auto behind = blocks_.upper_bound(range.address);
  if (behind == blocks_.begin()) return;
  const Address start = std::prev(behind)->first;
  if (start >= memory.address) used(start, range, stream, handle, at);
}

// Reports uses by earlier blocks that are not ordered before this use. Memory that the block has used once is its own from then on:
// the order of later uses is the program's affair.
void ReuseRaces::check(const Block& block, const Use& use, const StreamOrder& order) {
  const std::size_t known = races_.size();
  past_.for_each(use.range.address, use.range.bytes, [&](const auto&, const std::vector<PastUse>& uses) {
    for (const PastUse& past : uses) {
      if (order_.comes_before(past.use.stream, past.use.launch, order) || races_.size() >= kMostRaces) continue;
      const cachalot_sim_race race{.bytes = past.use.range.bytes,
                                   .allocated_for = past.freed->stream,
                                   .used_on = past.use.handle,
                                   .reused_on = use.handle,
                                   .allocated_at = past.freed->allocated_at,
                                   .used_at = past.use.at,
                                   .freed_at = past.freed->at,
                                   .reallocated_at = block.at,
                                   .reused_at = use.at};
      const auto is_it = [&](const cachalot_sim_race& other) {
        return other.used_at == race.used_at && other.freed_at == race.freed_at && other.used_on == race.used_on;
      };
      if (std::none_of(races_.begin() + static_cast<std::ptrdiff_t>(known), races_.end(), is_it))
        races_.push_back(race);
    }
  });
  past_.erase(use.range.address, use.range.bytes);
}

// A later launch of the same stream stands for an earlier one that used no more. A block that is used in very many parts is taken
// as one part by each stream.
void ReuseRaces::add(Block& block, const Use& use) {
  constexpr std::size_t kMostParts = 256;
  const bool is_full = block.uses.size() >= kMostParts;
  Use added = use;
  std::erase_if(block.uses, [&](const Use& old) {
    if (old.stream != use.stream || !(is_full || contains(added.range, old.range))) return false;
    const Address start = std::min(added.range.address, old.range.address);
    added.range = {start, std::max(end_of(added.range), end_of(old.range)) - start};
    return true;
  });
  block.uses.push_back(added);
}

std::optional<cachalot_sim_race> ReuseRaces::take() {
  if (races_.empty()) return std::nullopt;
  const cachalot_sim_race race = races_.front();
  races_.pop_front();
  return race;
}

}  // namespace cachalot::simulator
