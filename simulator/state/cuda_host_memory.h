// Host memory that CUDA knows: pinned, registered, managed, and the host's copies of device variables.
// process_mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <map>

#include "base/bytes.h"
#include "simulator/models/cuda_abi.h"

namespace cachalot::simulator {

struct HostRange {
  enum class Kind { pinned, registered, managed, variable };
  Kind kind = Kind::pinned;
  char* start = nullptr;
  std::size_t bytes = 0;
  unsigned int flags = 0;
  int device = 0;
};

class HostMemory {
 public:
  // Managed memory, which is ours; null when the host has not that much.
  void* allocate_managed(std::size_t bytes, unsigned int flags, int device) {
    if (bytes > SIZE_MAX - kPageBytes) return nullptr;
    void* start = std::aligned_alloc(kPageBytes, round_up(bytes, kPageBytes));
    if (start) add({HostRange::Kind::managed, static_cast<char*>(start), bytes, flags, device});
    return start;
  }
  void add(const HostRange& range) { ranges_[number(range.start)] = range; }
  // The range that holds the address; null if none does.
  const HostRange* find(const void* address) const {
    const auto after = ranges_.upper_bound(number(address));
    if (after == ranges_.begin()) return nullptr;
    const HostRange& range = std::prev(after)->second;
    return number(address) - number(range.start) < range.bytes ? &range : nullptr;
  }
  // Returns false if no range of this kind starts there. Pinned memory is its device's to free, registered memory the
  // program's.
  bool forget(HostRange::Kind kind, void* start) {
    const auto at = ranges_.find(number(start));
    if (at == ranges_.end() || at->second.kind != kind) return false;
    ranges_.erase(at);
    if (kind == HostRange::Kind::managed) std::free(start);
    return true;
  }
  // Forgets all ranges of the device except variables, which are the program's.
  void forget_all(int device) {
    std::erase_if(ranges_, [&](const auto& entry) {
      const HostRange& range = entry.second;
      if (range.device != device || range.kind == HostRange::Kind::variable) return false;
      if (range.kind == HostRange::Kind::managed) std::free(range.start);
      return true;
    });
  }
  bool overlaps(const void* start, std::size_t bytes) const {
    if (find(start)) return true;
    const auto next = ranges_.lower_bound(number(start));
    return next != ranges_.end() && next->first - number(start) < bytes;
  }
  // All of it, so that the device reaches it by itself.
  bool is_pinned(const void* start, std::size_t bytes) const {
    const HostRange* range = find(start);
    if (!range || bytes > range->bytes - (number(start) - number(range->start))) return false;
    return range->kind == HostRange::Kind::pinned || range->kind == HostRange::Kind::registered;
  }

 private:
  static constexpr std::size_t kPageBytes = 4096;  // managed memory begins a page

  static std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

  std::map<std::uintptr_t, HostRange> ranges_;
};

}  // namespace cachalot::simulator
