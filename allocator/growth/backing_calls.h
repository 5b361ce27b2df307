// BackingCalls are the driver's part of a BackingPlan. What fails half-way is undone at once; what cannot even be undone is
// left in `orphans`. Runs without the device's mutex, under the growth mutex.
#pragma once

#include <cstddef>
#include <vector>

#include "growth/page_driver.h"

namespace cachalot {

class BackingCalls {
 public:
  BackingCalls(Device& device, const std::vector<int>& peers, const BackingPlan& plan, const PhysicalPages& pages)
      : device_(device), peers_(peers), plan_(plan), pages_(pages) {}

  // False: no memory, for the pages or for their mappings. Throws CudaError. In both cases nothing new is mapped.
  bool make();

  std::size_t dropped = 0;            // of plan.drops: these are unmapped, whatever came after
  std::vector<MemoryHandle> created;  // for plan.growths
  std::vector<Orphan> orphans;

 private:
  struct Mapped {
    Address at;
    std::size_t bytes;
    MemoryHandle memory;
    bool is_new;
  };

  void drop();
  bool create();
  void map();
  void undo();

  Device& device_;
  const std::vector<int>& peers_;
  const BackingPlan& plan_;
  const PhysicalPages& pages_;
  std::vector<Mapped> mapped_;
};

}  // namespace cachalot
