#include "pages/gaps.h"

#include <algorithm>

#include "base/check.h"

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

std::vector<BlockAt>::iterator Gaps::at(Address address) {
  const auto gap = gaps_.begin() + static_cast<std::ptrdiff_t>(first_from(address));
  CACHALOT_ASSERT(gap != gaps_.end() && gap->address == address);
  return gap;
}

void Gaps::remove(Address address) { gaps_.erase(at(address)); }

void Gaps::move(Address address, Block& gap) { *at(address) = {gap.address, &gap}; }

CACHALOT_END
