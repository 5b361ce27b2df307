#include "guard/guard_books.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

void FreedBlocks::add(GuardedBlock block, const GuardCall& call) {
  block.freed = call;
  if (blocks_.size() == kKept) erase(blocks_.find(by_free_.begin()->second));
  const Address begin = block.heap_address();
  const auto known = by_free_.emplace(call.number, begin).first;
  try {
    blocks_.emplace(begin, std::move(block));
  } catch (...) {
    by_free_.erase(known);
    throw;
  }
}

void FreedBlocks::forget(const GuardedBlock& block) {
  const Address begin = block.heap_address();
  const Address end = begin + block.footprint();
  for (auto next = first_behind(begin); next != blocks_.end() && next->first < end;) erase(next++);
}

const GuardedBlock* FreedBlocks::find(Address at) const {
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return nullptr;
  --block;
  return block->second.contains(at) ? &block->second : nullptr;
}

// The first that ends behind `at`.
FreedBlocks::Blocks::iterator FreedBlocks::first_behind(Address at) {
  const auto block = blocks_.upper_bound(at);
  if (block != blocks_.begin() && std::prev(block)->second.contains(at)) return std::prev(block);
  return block;
}

void FreedBlocks::erase(Blocks::iterator block) {
  by_free_.erase(block->second.freed->number);
  blocks_.erase(block);
}

std::string FreedBlocks::validate() const {
  if (by_free_.size() != blocks_.size()) {
    return formatted("guard: {} freed blocks are remembered by address, {} by their free", blocks_.size(),
                     by_free_.size());
  }
  Address end = 0;
  for (const auto& [begin, block] : blocks_) {
    if (begin < end) return formatted("guard: the freed block at {:#x} overlaps the one before", block.address);
    end = begin + block.footprint();
  }
  return "";
}

std::size_t FreedBlocks::metadata_bytes() const {
  return blocks_.size() * (sizeof(Blocks::value_type) + sizeof(decltype(by_free_)::value_type));
}

void GuardBooks::add(GuardedBlock block) {
  const Lock lock(mutex_);
  freed_.forget(block);
  const Address address = block.address;
  live_.insert_or_assign(address, std::move(block));
}

GuardBooks::Entry GuardBooks::take(Address address, const std::optional<KnownStream>& user, GuardCall call) {
  const Lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return {};
  if (user) found->second.add_use(*user);
  if (remembers_freed_) freed_.add(found->second, call);
  Entry entry = live_.extract(found);
  entry.mapped().freed = std::move(call);
  return entry;
}

void GuardBooks::put_back(Entry entry) {
  const Lock lock(mutex_);
  freed_.forget(entry.mapped());
  entry.mapped().freed.reset();
  live_.insert(std::move(entry));
}

GuardBooks::Entry GuardBooks::extract(Address address) {
  const Lock lock(mutex_);
  return live_.extract(address);
}

bool GuardBooks::add_use(Address address, const KnownStream& stream) {
  const Lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  found->second.add_use(stream);
  return true;
}

void GuardBooks::forget_stream(const KnownStream& stream) {
  const Lock lock(mutex_);
  for (auto& [address, block] : live_) {
    if (block.stream == stream) block.stream = {};
    std::erase(block.recorded, stream);
  }
}

const GuardedBlock* GuardBooks::find(Address address) const {
  const auto found = live_.find(address);
  return found == live_.end() ? nullptr : &found->second;
}

std::optional<std::size_t> GuardBooks::requested_bytes(Address address) const {
  const Lock lock(mutex_);
  const GuardedBlock* const block = find(address);
  return block == nullptr ? std::nullopt : std::optional(block->bytes);
}

std::optional<std::size_t> GuardBooks::footprint(Address address) const {
  const Lock lock(mutex_);
  const GuardedBlock* const block = find(address);
  return block == nullptr ? std::nullopt : std::optional(block->footprint());
}

std::optional<GuardSighting> GuardBooks::sight(Address at) const {
  const Lock lock(mutex_);
  if (const GuardedBlock* const exact = find(at)) return GuardSighting{*exact, at};
  const auto live = std::ranges::find_if(live_, [&](const auto& entry) { return entry.second.contains(at); });
  if (live != live_.end()) return GuardSighting{live->second, at};
  if (const GuardedBlock* const freed = freed_.find(at)) return GuardSighting{*freed, at};
  return std::nullopt;
}

std::string GuardBooks::validate(const std::function<bool(const GuardedBlock&)>& holds) const {
  const Lock lock(mutex_);
  for (const auto& [address, block] : live_) {
    if (!holds(block)) return formatted("guard: the live block at {:#x} is not live in the heap", address);
  }
  return freed_.validate();
}

std::size_t GuardBooks::metadata_bytes() const {
  const Lock lock(mutex_);
  return live_.size() * sizeof(GuardedBlock) + freed_.metadata_bytes();
}

CACHALOT_END
