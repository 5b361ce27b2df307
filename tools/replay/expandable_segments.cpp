#include "tools/replay/expandable_segments.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "cachalot/simulated_device.h"
#include "policy/torch_policy.h"

namespace cachalot::tools {
namespace {

using Block = ExpandableSegments::Block;

bool is_usable(const Block* block) { return block != nullptr && !block->is_allocated; }

// Returns the size that a block could reach with the unmapped memory behind it.
std::size_t reach(const Block* block) {
  return block->bytes + (block->after != nullptr && !block->after->is_mapped ? block->after->bytes : 0);
}

bool has_room(const Block* block, std::size_t bytes) {
  std::size_t room = 0;
  for (; room < bytes && is_usable(block); block = block->after) room += block->bytes;
  return room >= bytes;
}

}  // namespace

ExpandableSegments::ExpandableSegments(std::size_t device_bytes, std::vector<std::uint16_t> pools)
    : device_bytes_(device_bytes), pools_(std::move(pools)) {}

Block* ExpandableSegments::allocate(std::size_t bytes, std::uint32_t stream) {
  if (bytes > device_bytes_) {  // more than any segment has room for
    release_cached();
    return nullptr;
  }
  const std::size_t size = round_to_block(bytes);
  Pool& pool = pool_for(size, stream);
  Block* block = take_free(pool, size);
  if (block == nullptr) block = grow(pool, size);
  if (block == nullptr) {
    release_cached();
    block = grow(pool, size);
  }
  if (block == nullptr) return nullptr;
  if (block->bytes > size) split(block, size);
  block->is_allocated = true;
  return block;
}

void ExpandableSegments::free(Block* block) {
  block->is_allocated = false;
  merge(block, block->before);
  merge(block, block->after);
  block->pool->free.insert(block);
}

ExpandableSegments::Pool& ExpandableSegments::pool_for(std::size_t bytes, std::uint32_t stream) {
  const bool is_small = bytes <= kSmallSize;
  Pool& pool = (is_small ? small_ : large_)[stream];
  pool.page_bytes = is_small ? kSmallBuffer : kLargeBuffer;
  return pool;
}

// Best fit; but of blocks that are large enough a smaller reach is better than the block that can grow without end.
Block* ExpandableSegments::take_free(Pool& pool, std::size_t bytes) {
  const Block wanted{.address = 0, .bytes = bytes};
  auto found = pool.free.lower_bound(const_cast<Block*>(&wanted));
  if (found == pool.free.end()) return nullptr;
  for (auto next = std::next(found); next != pool.free.end() && reach(*next) < reach(*found); ++next) found = next;
  Block* const block = *found;
  pool.free.erase(found);
  return block;
}

// Maps memory behind, before and between free blocks until `bytes` are in one piece. Memory mapped so far stays mapped
// if a later piece fails.
Block* ExpandableSegments::grow(Pool& pool, std::size_t bytes) {
  Block* block = find_room(pool, bytes);
  if (!block->is_mapped && !map(block, std::min(block->bytes, bytes))) return nullptr;
  while (block->bytes < bytes) {
    Block* const next = block->after;
    if (!map(next, std::min(bytes - block->bytes, next->bytes))) return nullptr;
    block = next;  // the two are one now
  }
  pool.free.erase(block);
  return block;
}

Block* ExpandableSegments::find_room(Pool& pool, std::size_t bytes) {
  for (Block* unmapped : pool.unmapped) {
    Block* const block = is_usable(unmapped->before) ? unmapped->before : unmapped;
    if (has_room(block, bytes)) return block;
  }
  return add_segment(pool);
}

// A segment has room for the whole device and an eighth more.
Block* ExpandableSegments::add_segment(Pool& pool) {
  const std::size_t bytes = round_up(device_bytes_ + device_bytes_ / 8, pool.page_bytes);
  const std::uint64_t address = round_up(next_address_, pool.page_bytes);
  next_address_ = address + bytes;
  Block* const block = make_block({.address = address, .bytes = bytes, .pool = &pool});
  pool.unmapped.insert(block);
  return block;
}

// Maps the pages of the first bytes of an unmapped block; the block becomes a free one with its neighbours. Returns
// false if the device does not have the memory.
bool ExpandableSegments::map(Block* block, std::size_t bytes) {
  Pool& pool = *block->pool;
  const std::size_t mapped = round_up(bytes, pool.page_bytes);
  if (mapped > device_bytes_ - reserved_bytes_) return false;
  pool.unmapped.erase(block);
  if (mapped < block->bytes) {
    Block* const rest = make_block({.address = block->address + mapped,
                                    .bytes = block->bytes - mapped,
                                    .pool = &pool,
                                    .before = block,
                                    .after = block->after});
    if (rest->after != nullptr) rest->after->before = rest;
    block->after = rest;
    block->bytes = mapped;
    pool.unmapped.insert(rest);
  }
  block->is_mapped = true;
  merge(block, block->before);
  merge(block, block->after);
  pool.free.insert(block);
  reserved_bytes_ += mapped;
  peak_reserved_bytes_ = std::max(peak_reserved_bytes_, reserved_bytes_);
  ++maps_;
  handles_ += mapped / pool.page_bytes;
  return true;
}

void ExpandableSegments::release_cached() {
  for (auto* pools : {&large_, &small_}) {
    for (auto& [stream, pool] : *pools) {
      if (stream < pools_.size() && pools_[stream] != 0) continue;
      for (Block* block : std::vector<Block*>(pool.free.begin(), pool.free.end())) unmap(block);
    }
  }
}

// Unmaps the whole pages in a free block; the rests at its two ends stay free. A segment without memory goes.
void ExpandableSegments::unmap(Block* block) {
  Pool& pool = *block->pool;
  const std::uint64_t begin = round_up(block->address, pool.page_bytes);
  const std::uint64_t end = round_down(block->address + block->bytes, pool.page_bytes);
  if (begin >= end) return;
  pool.free.erase(block);
  if (begin > block->address) {
    Block* const head = make_block({.address = block->address,
                                    .bytes = begin - block->address,
                                    .pool = &pool,
                                    .before = block->before,
                                    .after = block,
                                    .is_mapped = true});
    if (head->before != nullptr) head->before->after = head;
    block->before = head;
    block->bytes -= head->bytes;
    block->address = begin;
    pool.free.insert(head);
  }
  if (block->bytes > end - begin) split(block, end - begin);
  block->is_mapped = false;
  merge(block, block->before);
  merge(block, block->after);
  reserved_bytes_ -= end - begin;
  ++unmaps_;
  if (block->before == nullptr && block->after == nullptr) return drop(block);
  pool.unmapped.insert(block);
}

// The block keeps its first bytes; the rest becomes a free block.
void ExpandableSegments::split(Block* block, std::size_t bytes) {
  Block* const rest = make_block({.address = block->address + bytes,
                                  .bytes = block->bytes - bytes,
                                  .pool = block->pool,
                                  .before = block,
                                  .after = block->after,
                                  .is_mapped = true});
  if (rest->after != nullptr) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  block->pool->free.insert(rest);
}

// Takes a neighbour that is of the same state into the block, which itself is in no set.
void ExpandableSegments::merge(Block* block, Block* neighbour) {
  if (!is_usable(neighbour) || neighbour->is_mapped != block->is_mapped) return;
  if (neighbour->is_mapped) {
    block->pool->free.erase(neighbour);
  } else {
    block->pool->unmapped.erase(neighbour);
  }
  if (neighbour == block->before) {
    block->address = neighbour->address;
    block->before = neighbour->before;
    if (block->before != nullptr) block->before->after = block;
  } else {
    block->after = neighbour->after;
    if (block->after != nullptr) block->after->before = block;
  }
  block->bytes += neighbour->bytes;
  drop(neighbour);
}

Block* ExpandableSegments::make_block(const Block& block) {
  if (spare_.empty()) return &blocks_.emplace_back(block);
  Block* const made = spare_.back();
  spare_.pop_back();
  *made = block;
  return made;
}

void ExpandableSegments::drop(Block* block) { spare_.push_back(block); }

double driver_us_of_growth(const ExpandableFigures& figures) {
  const LatencyModel latency = LatencyModel::published();
  const auto us = [&](DeviceCall call) { return latency.call_us[static_cast<std::size_t>(call)]; };
  return static_cast<double>(figures.handles) * (us(DeviceCall::create) + us(DeviceCall::map)) +
         static_cast<double>(figures.maps) * us(DeviceCall::set_access);
}

ExpandableFigures play_on_expandable_segments(const Trace& trace, std::size_t device_bytes, bool until_failure) {
  ExpandableSegments model(device_bytes, trace.pools);
  std::vector<Block*> blocks(trace.slots);
  ExpandableFigures figures;
  for_each_part(trace, [&](std::span<const TraceEvent> events, std::size_t) {
    for (const TraceEvent& event : events) {
      if (event.empties_cache()) {
        model.release_cached();
        continue;
      }
      Block*& block = blocks[event.slot];
      if (event.is_free()) {
        if (block != nullptr) model.free(std::exchange(block, nullptr));
      } else if (event.bytes > 0) {
        block = model.allocate(event.bytes, event.stream);
        if (block != nullptr) continue;
        ++figures.ooms;
        if (until_failure) return false;
      }
    }
    return true;
  });
  figures.peak_reserved_bytes = model.peak_reserved_bytes();
  figures.reserved_bytes = model.reserved_bytes();
  figures.maps = model.maps();
  figures.unmaps = model.unmaps();
  figures.handles = model.handles();
  return figures;
}

}  // namespace cachalot::tools
