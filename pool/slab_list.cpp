#include "slab_list.h"

#include <utility>

#include "base/bytes.h"

CACHALOT_BEGIN

void SlabList::reserve_one() {
  const std::size_t size = size_ + 1;
  if (size > slabs_.capacity()) slabs_.reserve(2 * size);
}

void SlabList::add(std::unique_ptr<PoolSlab> slab) {
  ++size_;
  reattach(std::move(slab));
}

void SlabList::reattach(std::unique_ptr<PoolSlab> slab) {
  slab->leaves = false;
  for (std::size_t i = 0; i < slab->count; ++i) free_.push(slab->slots[i]);
  slabs_.push_back(std::move(slab));
}

void SlabList::forget(const PoolSlab& slab) {
  for (std::size_t i = 0; i < slab.count; ++i) free_.unreserve(slab.slots[i].stream, 1);
  --size_;
}

void SlabList::count_free() {
  for (const auto& slab : slabs_) slab->free = 0;
  free_.for_each([](const PoolSlot& slot) { ++slot.slab->free; });
}

SlabList::Slabs SlabList::detach_free(std::size_t keep) {
  Slabs detached;
  detached.reserve(slabs_.size());
  count_free();
  std::size_t left = free_.size();
  for (std::size_t i = slabs_.size(); i-- > 0;) {
    auto& slab = slabs_[i];
    if (slab->free < slab->count || left < keep + slab->count) continue;
    left -= slab->count;
    slab->leaves = true;
    detached.push_back(std::move(slab));
  }
  free_.remove_leaving();
  std::erase(slabs_, nullptr);
  return detached;
}

std::size_t SlabList::metadata_bytes() const {
  std::size_t bytes = capacity_bytes(slabs_);
  for (const auto& slab : slabs_) {
    bytes += sizeof(PoolSlab) + slab->count * sizeof(PoolSlot);
    for (std::size_t i = 0; i < slab->count; ++i) {
      if (const auto& others = slab->slots[i].others) bytes += sizeof(std::vector<StreamKey>) + capacity_bytes(*others);
    }
  }
  return bytes;
}

CACHALOT_END
