// DriverCosts say what the driver's calls cost on this machine. They are learned from the calls that the page heap makes anyway: none
// is made to measure. Drivers differ by ten times, and a call may take longer while kernels run.
//
// A call's own cost is near the least that was seen. So a smaller sample pulls the estimate halfway, a larger one by a sixteenth, and
// a plan that took far longer than its calls by the estimates has waited for something, which says nothing about calls. Such waits of
// plans that remap memory have a price of their own.
//
// Prices follow the estimates only where these have become others: noise changes no plan.
//
// Not thread-safe: guarded by the mutex of its DeviceAllocator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_memory.h"

CACHALOT_BEGIN

class DriverCosts {
 public:
  // In microseconds. At first they are those of LatencyModel::published.
  struct Prices {
    double create = 29;             // of a handle
    double map = 2;                 // of a handle
    double set_access = 38;         // of a range
    double set_access_mapping = 0;  // of each mapping of a range beyond the first
    double unmap = 34;              // of a call
    double remap_wait = 0;          // of a plan that maps idle memory elsewhere, beside its calls

    // Returns what calls cost, without waits. Each range has a mapping or more.
    double of(std::size_t creates, std::size_t maps, std::size_t ranges, std::size_t unmaps) const {
      return static_cast<double>(creates) * create + static_cast<double>(maps) * map +
             static_cast<double>(ranges) * set_access + static_cast<double>(unmaps) * unmap +
             static_cast<double>(maps - ranges) * set_access_mapping;
    }
  };
  const Prices& prices() const { return prices_; }
  // Returns whether a remapping waits so long that new memory is better as long as there is some.
  bool remaps_wait_long() const { return prices_.remap_wait > kLongWaitUs; }

  struct Calls {
    std::size_t count = 0;
    std::int64_t us = 0;  // of all; 0: less than the clock resolves
  };
  // The calls of a plan that was carried out.
  struct Measured {
    Calls unmaps;
    Calls creates;
    Calls maps;
    Calls accesses;  // a range each
    bool remaps = false;
  };
  void record(const Measured& measured);

 private:
  static constexpr double kLongWaitUs = 1000;

  struct Estimate {
    double us;
    bool is_known = false;
    void learn(double sample, bool may_rise);
  };
  void learn_wait(double excess, bool remaps);
  void reprice();

  Prices prices_;
  Estimate create_{prices_.create};
  Estimate map_{prices_.map};
  Estimate set_access_{prices_.set_access};
  Estimate set_access_mapping_{prices_.set_access_mapping};
  Estimate unmap_{prices_.unmap};
  double remap_wait_ = 0;
};

CACHALOT_END
