#include "simulator/pool_memory.h"

#include <iterator>

namespace cachalot::simulator {

std::optional<Address> PoolMemory::take(std::size_t bytes) {
  const auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return std::nullopt;
  const auto [found, address] = *best;
  erase(free_.find(address));
  if (found != bytes) insert(address + bytes, found - bytes);
  return address;
}

// Pieces of two regions do not merge, even if these lie side by side: the device gave each by itself.
void PoolMemory::give_back(Address address, std::size_t bytes) {
  const auto behind = free_.lower_bound(address);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == address && !regions_.contains(address)) {
      address = before->first;
      bytes += before->second;
      erase(before);
    }
  }
  if (behind != free_.end() && behind->first == address + bytes && !regions_.contains(behind->first)) {
    bytes += behind->second;
    erase(behind);
  }
  insert(address, bytes);
}

void PoolMemory::add(Region region) {
  regions_.emplace(region.address, region.bytes);
  reserved_bytes_ += region.bytes;
  insert(region.address, region.bytes);
}

std::optional<PoolMemory::Region> PoolMemory::remove_idle() {
  for (auto piece = by_size_.rbegin(); piece != by_size_.rend(); ++piece) {
    const auto [bytes, address] = *piece;
    const auto region = regions_.find(address);
    if (region == regions_.end() || region->second != bytes) continue;
    erase(free_.find(address));
    regions_.erase(region);
    reserved_bytes_ -= bytes;
    return Region{address, bytes};
  }
  return std::nullopt;
}

void PoolMemory::insert(Address address, std::size_t bytes) {
  free_.emplace(address, bytes);
  by_size_.emplace(bytes, address);
}

void PoolMemory::erase(std::map<Address, std::size_t>::iterator piece) {
  by_size_.erase({piece->second, piece->first});
  free_.erase(piece);
}

}  // namespace cachalot::simulator
