#include "guard/guard_books.h"

#include <algorithm>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

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
