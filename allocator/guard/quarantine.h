// Quarantine keeps the freed blocks of one device for a while: first in, first out, bounded in bytes. What leaves is
// compared with its poison, and only then freed. Nothing leaves while a graph is captured on the device.
//
// Thread safety: any thread; `mutex_` guards the list. It is taken after GuardedMemory's, and held for look-ups only.
// Errors: of the device and of the heap. What cannot be freed stays.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/locks.h"
#include "guard/guard_books.h"
#include "guard/guarded_memory.h"

CACHALOT_BEGIN

// The most freed memory of a device that is kept: a late write comes mostly soon after the free, and this is 0.3 % of an 80 GB
// GPU. Tests alone set less, before they make an allocator.
inline std::size_t most_quarantined_bytes = std::size_t{256} << 20;

class Quarantine {
 public:
  using Reports = GuardLog::Reports;

  Quarantine(const DeviceAllocator& heap, GuardedHeap& blocks, GuardedMemory& memory, std::size_t most_bytes)
      : heap_(heap), blocks_(blocks), memory_(memory), most_bytes_(most_bytes) {}
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;

  // Returns whether a block of so many bytes may be added; older ones leave for it.
  bool make_room(std::size_t bytes, Reports& found);
  // All leave. Returns whether anything was freed.
  bool empty_all(Reports& found);

  // Fills the block with poison and adds it. If that fails, the block stays the caller's. `memory`: that of the
  // constructor.
  void add(GuardedBlock& block, GuardedMemory& memory) CACHALOT_REQUIRES_SHARED(memory.mutex);
  // Takes the block of that user's address out, which is freed already.
  void forget(Address address);
  // The questions point at blocks in here.
  void append_questions(std::vector<GuardQuestion>& questions, GuardedMemory& memory) CACHALOT_REQUIRES(memory.mutex);

  std::size_t bytes() const;
  // The block whose memory holds the address.
  std::optional<GuardSighting> sight(Address at) const;
  // `holds`: whether a block is live in the heap.
  std::string validate(const std::function<bool(const GuardedBlock&)>& holds) const;
  std::size_t metadata_bytes() const;

 private:
  using Blocks = std::list<GuardedBlock>;  // spliced: nothing is lost on the way

  bool shrink_to(std::size_t keep_bytes, Reports& found);
  Blocks take_oldest(std::size_t keep_bytes);
  void put_back(Blocks leaving);

  const DeviceAllocator& heap_;
  GuardedHeap& blocks_;
  GuardedMemory& memory_;
  const std::size_t most_bytes_;

  mutable SleepingMutex mutex_;
  Blocks kept_ CACHALOT_GUARDED_BY(mutex_);            // oldest first
  std::size_t bytes_ CACHALOT_GUARDED_BY(mutex_) = 0;  // footprints
};

CACHALOT_END
