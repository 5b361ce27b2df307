#include "simulator/state/reuse_races.h"

#include <algorithm>
#include <iterator>

#include "simulator/base/watch.h"

namespace cachalot::simulator {
namespace {

Address end_of(const AddressRange& range) { return range.address + range.bytes; }

bool contains(const AddressRange& outer, const AddressRange& inner) {
  return outer.address <= inner.address && end_of(inner) <= end_of(outer);
}

}  // namespace

void ReuseRaces::allocated(int device, const AddressRange& range) {
  freed(range.address);  // one whose end was not told
  Block block{.bytes = range.bytes, .device = device, .number = allocations_[device]++, .uses = {}};
  blocks_.emplace(range.address, std::move(block));
}

// The line is found for blocks that several streams have used: others can race only with a stream that does not wait for theirs, and a
// record_stream before the free would not help.
void ReuseRaces::freed(Address start) {
  const auto found = blocks_.find(start);
  if (found == blocks_.end()) return;
  const std::vector<Use>& uses = found->second.uses;
  const auto is_of_first = [&](const Use& use) { return use.stream == uses.front().stream; };
  const char* const at = std::ranges::all_of(uses, is_of_first) ? "" : line_or("");
  const auto end = std::make_shared<const Freed>(Freed{found->second.number, at});
  for (const Use& use : uses) {
    past_.for_each_filled(use.range.address, use.range.bytes, [&](const auto&, std::vector<PastUse>& past) {
      past.push_back({use, end});
    });
  }
  blocks_.erase(found);
}

// Returns the line of Python that runs, or the text where there is none; it lasts as long as this.
const char* ReuseRaces::line_or(const char* text) {
  const std::string line = line_in_python();
  return line.empty() ? text : lines_.insert(line).first->c_str();
}

ReuseRaces::Blocks::iterator ReuseRaces::find(const AddressRange& range) {
  const auto behind = blocks_.upper_bound(range.address);
  if (behind == blocks_.begin()) return blocks_.end();
  const auto at = std::prev(behind);
  return contains({at->first, at->second.bytes}, range) ? at : blocks_.end();
}

std::optional<int> ReuseRaces::device_of(const AddressRange& range) {
  const auto at = find(range);
  return at == blocks_.end() ? std::nullopt : std::optional(at->second.device);
}

void ReuseRaces::used(const AddressRange& range, StreamState& stream, CUstream_st* handle, Place at) {
  note(find(range), {.range = range, .handle = handle, .at = at}, stream);
}

void ReuseRaces::used_by(const char* call, const AddressRange& range, StreamState& stream, CUstream_st* handle) {
  const auto block = find(range);
  if (block == blocks_.end() || stream.capture) return;  // a line is not found for nothing
  note(block, {.range = range, .handle = handle, .line = line_or(call)}, stream);
}

void ReuseRaces::note(Blocks::iterator block, Use use, StreamState& stream) {
  if (block == blocks_.end() || use.range.bytes == 0 || stream.capture) return;
  use.stream = stream.order.number;
  use.launch = order_.launched(stream.order);
  check(block->second, use, stream.order);
  add(block->second, use);
}

// Reports uses by earlier blocks that are not ordered before this use. Memory that the block has used once is its own from then on:
// the order of later uses is the program's affair.
void ReuseRaces::check(const Block& block, const Use& use, const StreamOrder& order) {
  const auto known = static_cast<std::ptrdiff_t>(races_.size());
  past_.for_each(use.range.address, use.range.bytes, [&](const auto&, const std::vector<PastUse>& uses) {
    for (const PastUse& past : uses) {
      if (order_.comes_before(past.use.stream, past.use.launch, order) || races_.size() >= kMostRaces) continue;
      const cachalot_sim_race race{.bytes = past.use.range.bytes,
                                   .allocation = past.freed->number,
                                   .reallocation = block.number,
                                   .freed_at = past.freed->at,
                                   .used_line = past.use.line,
                                   .reused_line = use.line,
                                   .used_on = past.use.handle,
                                   .reused_on = use.handle,
                                   .used_at = past.use.at,
                                   .reused_at = use.at,
                                   .device = block.device};
      const auto is_it = [&](const cachalot_sim_race& other) {
        return other.used_at == race.used_at && other.used_line == race.used_line &&
               other.allocation == race.allocation && other.used_on == race.used_on;
      };
      if (std::none_of(races_.begin() + known, races_.end(), is_it)) races_.push_back(race);
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

std::uint64_t ReuseRaces::blocks() const {
  std::uint64_t sum = 0;
  for (const auto& [device, allocations] : allocations_) sum += allocations;
  return sum;
}

std::optional<cachalot_sim_race> ReuseRaces::take() {
  if (races_.empty()) return std::nullopt;
  const cachalot_sim_race race = races_.front();
  races_.pop_front();
  return race;
}

}  // namespace cachalot::simulator
