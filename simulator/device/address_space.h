// Numbers for device addresses: nothing is mapped on the host and no address is ever dereferenced.
//
// Within one AddressSpace addresses ascend and are never handed out twice, except those that recycle gives back. All
// AddressSpaces of the process draw chunks from one pool of 47-bit numbers, so that their ranges are disjoint; a chunk
// returns to the pool when its space dies.
// Thread safety: one AddressSpace is guarded by its device; several may be used at once.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cachalot/simulated_device.h"

CACHALOT_BEGIN

inline constexpr std::size_t kPhysicalUnit = std::size_t{2} << 20;  // granularity of cudaMalloc's segments and of VMM

// From now on, new chunks come from this range alone; multiples of kPhysicalUnit. Addresses handed out before stay.
void limit_addresses(const AddressRange& range);

class AddressSpace {
 public:
  AddressSpace() = default;
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // `bytes` fresh addresses, a multiple of kPhysicalUnit, aligned to it and above all handed out before.
  // nullopt when the process has used up its 47 bits.
  std::optional<Address> allocate(std::size_t bytes);

  // Sets addresses aside for the next calls of allocate: the n-th one for a size gets an address that lies among the others
  // as that of the n-th range of this size, rounded up, does.
  void plan(const std::vector<AddressRange>& ranges);

  // Gives all addresses back to the process but those in `live`, which allocate returned and which are still in use; the
  // next ones may be lower.
  void recycle(std::vector<AddressRange> live);

 private:
  bool refill(std::size_t bytes);

  std::vector<AddressRange> chunks_;                              // ours; neighbours are one
  std::unordered_map<std::size_t, std::deque<Address>> planned_;  // by bytes, the next first
  Address next_ = 0;
  Address end_ = 0;
};

CACHALOT_END
