#include "growth/growth.h"

#include <algorithm>
#include <numeric>

CACHALOT_BEGIN

std::vector<std::size_t> TrimGoal::choose_of(const std::vector<std::size_t>& sizes) const {
  std::vector<std::size_t> largest_first(sizes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::ranges::stable_sort(largest_first, [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::size_t> chosen;
  std::size_t left = bytes;
  const std::size_t* smallest_left_out = nullptr;
  for (const std::size_t& index : largest_first) {
    if (sizes[index] > left) {
      smallest_left_out = &index;
      continue;
    }
    left -= sizes[index];
    chosen.push_back(index);
  }
  if (may_exceed && left != 0 && smallest_left_out != nullptr) chosen.push_back(*smallest_left_out);
  return chosen;
}

// The functions for memory of the device's malloc.
Block* Growth::find_beside(Request /*request*/, const Held& /*held*/) { return nullptr; }
Block& Growth::cut_contiguous(Block& block, Request /*request*/, const Held& /*held*/) { return block; }
bool Growth::has_leftovers(const PrivatePool& /*pool*/, const Held& /*held*/) const { return false; }
void Growth::release_addresses(const PrivatePool& /*pool*/, Growing& /*growing*/) {}
PoolKind Growth::reserved_in(const Block& head, const Held& /*held*/) const { return head.arena->pool.kind(); }
std::size_t Growth::asleep_bytes(Address /*begin*/, Address /*end*/, const Held& /*held*/) const { return 0; }
std::size_t Growth::handle_count(const Block& /*block*/, const Held& /*held*/) const { return 1; }
std::vector<AddressRange> Growth::mapped_addresses(const Held& /*held*/) const { return {}; }
void Growth::separate_kinds(PrivatePool& /*pool*/, Growing& /*growing*/) {}
std::string Growth::validate(const Held& /*held*/) const { return ""; }
std::size_t Growth::metadata_bytes(const Held& /*held*/) const { return sizeof(*this); }

CACHALOT_END
