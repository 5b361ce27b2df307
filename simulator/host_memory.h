// Host memory that CUDA knows: pinned, registered, managed, and the host's copies of device variables.
// process_mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "simulator/abi.h"

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
  void* allocate_managed(std::size_t bytes, unsigned int flags, int device);
  void add(const HostRange& range) { ranges_[reinterpret_cast<std::uintptr_t>(range.start)] = range; }
  // The range that holds the address; null if none does.
  const HostRange* find(const void* address) const;
  // False: no range of this kind starts there. Pinned memory is its device's to free, registered memory the program's.
  bool forget(HostRange::Kind kind, void* start);
  // Of the device, but for variables, which are the program's.
  void forget_all(int device);
  bool overlaps(const void* start, std::size_t bytes) const;
  // All of it, so that the device reaches it by itself.
  bool is_pinned(const void* start, std::size_t bytes) const;

 private:
  std::map<std::uintptr_t, HostRange> ranges_;
};

}  // namespace cachalot::simulator
