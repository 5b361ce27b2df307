#include "device/allocation_table.h"

CACHALOT_BEGIN

AllocationTable::Leaf* AllocationTable::leaf_of(Address address) const {
  const std::size_t branch = address / kBranchBytes;
  if (branch >= kBranches || !branches_[branch]) return nullptr;
  return branches_[branch]->leaves[address % kBranchBytes / kLeafBytes].get();
}

AllocationTable::Leaf& AllocationTable::make_leaf(Address address) {
  auto& branch = branches_[address / kBranchBytes];
  if (!branch) branch = std::make_unique<Branch>();
  auto& leaf = branch->leaves[address % kBranchBytes / kLeafBytes];
  if (!leaf) {
    leaf = std::make_unique<Leaf>();
    leaf->begin = address - address % kLeafBytes;
  }
  if (leaf.get() == idle_) idle_ = nullptr;
  return *leaf;
}

void AllocationTable::leave(Leaf& leaf) {
  if (--leaf.users > 0) return;
  if (idle_) branches_[idle_->begin / kBranchBytes]->leaves[idle_->begin % kBranchBytes / kLeafBytes].reset();
  idle_ = &leaf;
}

void AllocationTable::insert(Address address, const Allocation& allocation) {
  Leaf& first = make_leaf(address);
  first.allocations[slot_of(address)] = allocation;
  ++first.users;
  for (Address begin = first.begin + kLeafBytes; begin < address + allocation.bytes; begin += kLeafBytes) {
    Leaf& leaf = make_leaf(begin);
    leaf.held_by = address;
    ++leaf.users;
  }
}

void AllocationTable::erase(Address address) {
  Leaf& first = *leaf_of(address);
  const Address end = address + first.allocations[slot_of(address)].bytes;
  first.allocations[slot_of(address)] = {};
  for (Address begin = first.begin + kLeafBytes; begin < end; begin += kLeafBytes) {
    Leaf& leaf = *leaf_of(begin);
    leaf.held_by = 0;
    leave(leaf);
  }
  leave(first);
}

const Allocation* AllocationTable::find(Address address) const {
  const Leaf* leaf = leaf_of(address);
  if (!leaf || address % kPhysicalUnit != 0) return nullptr;
  const Allocation& allocation = leaf->allocations[slot_of(address)];
  return allocation.bytes > 0 ? &allocation : nullptr;
}

AllocationTable::Found AllocationTable::holding(Address address) const {
  const Leaf* leaf = leaf_of(address);
  if (!leaf) return {};
  Found found;
  std::size_t slot = slot_of(address) + 1;
  while (slot > 0 && leaf->allocations[slot - 1].bytes == 0) --slot;
  if (slot > 0) {
    found = {leaf->begin + (slot - 1) * kPhysicalUnit, &leaf->allocations[slot - 1]};
  } else if (leaf->held_by != 0) {
    found = {leaf->held_by, find(leaf->held_by)};
  }
  return found.allocation && address - found.begin < found.allocation->bytes ? found : Found{};
}

CACHALOT_END
