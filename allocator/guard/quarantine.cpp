#include "guard/quarantine.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

bool Quarantine::make_room(std::size_t bytes, Reports& found) {
  if (bytes > most_bytes_ || heap_.pools.is_capturing()) return false;
  shrink_to(most_bytes_ - bytes, found);
  return true;
}

bool Quarantine::empty_all(Reports& found) { return shrink_to(0, found); }

// The oldest leave until at most so many bytes are left.
bool Quarantine::shrink_to(std::size_t keep_bytes, Reports& found) {
  if (heap_.pools.is_capturing()) return false;
  Blocks leaving;
  try {
    {
      const SharedLock looking(memory_.mutex);
      leaving = take_oldest(keep_bytes);
      std::vector<GuardQuestion> questions;
      for (GuardedBlock& block : leaving) cachalot::append_questions(block, questions);
      memory_.compare(std::move(questions), nullptr, found);
    }
    const bool freed_any = !leaving.empty();
    for (; !leaving.empty(); leaving.pop_front()) blocks_.free(leaving.front(), /*was_waited_for=*/true);
    return freed_any;
  } catch (...) {
    put_back(std::move(leaving));
    throw;
  }
}

Quarantine::Blocks Quarantine::take_oldest(std::size_t keep_bytes) {
  const Lock lock(mutex_);
  Blocks leaving;
  while (bytes_ > keep_bytes) {
    bytes_ -= kept_.front().footprint();
    leaving.splice(leaving.end(), kept_, kept_.begin());
  }
  return leaving;
}

void Quarantine::put_back(Blocks leaving) {
  const Lock lock(mutex_);
  for (const GuardedBlock& block : leaving) bytes_ += block.footprint();
  kept_.splice(kept_.begin(), leaving);
}

// Until the block is in the list its pattern is unknown.
void Quarantine::add(GuardedBlock& block, GuardedMemory& memory) {
  memory.poison(block);
  const Lock lock(mutex_);
  kept_.push_back(std::move(block));
  kept_.back().pattern = GuardedBlock::Pattern::poison;
  bytes_ += kept_.back().footprint();
}

void Quarantine::forget(Address address) {
  const Lock lock(mutex_);
  const auto found = std::ranges::find(kept_, address, &GuardedBlock::address);
  if (found == kept_.end()) return;
  bytes_ -= found->footprint();
  kept_.erase(found);
}

void Quarantine::append_questions(std::vector<GuardQuestion>& questions, GuardedMemory& /*memory*/) {
  const Lock lock(mutex_);
  for (GuardedBlock& block : kept_) cachalot::append_questions(block, questions);
}

std::size_t Quarantine::bytes() const {
  const Lock lock(mutex_);
  return bytes_;
}

std::optional<GuardSighting> Quarantine::sight(Address at) const {
  const Lock lock(mutex_);
  const auto found = std::ranges::find_if(kept_, [&](const GuardedBlock& block) { return block.contains(at); });
  return found == kept_.end() ? std::nullopt : std::optional(GuardSighting{*found, at});
}

std::string Quarantine::validate(const std::function<bool(const GuardedBlock&)>& holds) const {
  const Lock lock(mutex_);
  std::size_t bytes = 0;
  for (const GuardedBlock& block : kept_) {
    if (!holds(block)) return formatted("guard: {:#x} is in quarantine, but not live in the heap", block.address);
    bytes += block.footprint();
  }
  return bytes == bytes_ ? "" : formatted("guard: quarantine_bytes is {}, not {}", bytes_, bytes);
}

std::size_t Quarantine::metadata_bytes() const {
  const Lock lock(mutex_);
  return kept_.size() * sizeof(GuardedBlock);
}

CACHALOT_END
