// BackingCalls make the driver's calls of a BackingPlan, without the device's mutex and under the growth mutex. A
// failure undoes the calls before it; memory that cannot even be returned is left in `orphans`.
#pragma once

#include <cstddef>
#include <vector>

#include "growth/page_driver.h"

CACHALOT_BEGIN

class BackingCalls {
 public:
  BackingCalls(Device& device, const std::vector<int>& peers, const BackingPlan& plan, const PhysicalPages& pages)
      : device_(device), peers_(peers), plan_(plan), pages_(pages) {}

  // Returns false if there is no memory for the pages or for their mappings. Throws CudaError. In both cases nothing
  // new is mapped.
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

CACHALOT_END
