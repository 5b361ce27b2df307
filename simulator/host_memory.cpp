#include "simulator/host_memory.h"

#include <cstdlib>
#include <iterator>

#include "base/bytes.h"

namespace cachalot::simulator {
namespace {

constexpr std::size_t kPageBytes = 4096;  // managed memory begins a page

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

void* HostMemory::allocate_managed(std::size_t bytes, unsigned int flags, int device) {
  if (bytes > SIZE_MAX - kPageBytes) return nullptr;
  void* start = std::aligned_alloc(kPageBytes, round_up(bytes, kPageBytes));
  if (start) add({HostRange::Kind::managed, static_cast<char*>(start), bytes, flags, device});
  return start;
}

const HostRange* HostMemory::find(const void* address) const {
  const auto after = ranges_.upper_bound(number(address));
  if (after == ranges_.begin()) return nullptr;
  const HostRange& range = std::prev(after)->second;
  return number(address) - number(range.start) < range.bytes ? &range : nullptr;
}

bool HostMemory::forget(HostRange::Kind kind, void* start) {
  const auto at = ranges_.find(number(start));
  if (at == ranges_.end() || at->second.kind != kind) return false;
  ranges_.erase(at);
  if (kind == HostRange::Kind::managed) std::free(start);
  return true;
}

void HostMemory::forget_all(int device) {
  std::erase_if(ranges_, [&](const auto& entry) {
    const HostRange& range = entry.second;
    if (range.device != device || range.kind == HostRange::Kind::variable) return false;
    if (range.kind == HostRange::Kind::managed) std::free(range.start);
    return true;
  });
}

bool HostMemory::is_pinned(const void* start, std::size_t bytes) const {
  const HostRange* range = find(start);
  if (!range || bytes > range->bytes - (number(start) - number(range->start))) return false;
  return range->kind == HostRange::Kind::pinned || range->kind == HostRange::Kind::registered;
}

bool HostMemory::overlaps(const void* start, std::size_t bytes) const {
  if (find(start)) return true;
  const auto next = ranges_.lower_bound(number(start));
  return next != ranges_.end() && next->first - number(start) < bytes;
}

}  // namespace cachalot::simulator
