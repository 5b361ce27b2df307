// A RateMeter compares each sample with the one before, and writes what each device did a second into it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

// Not thread-safe. Remembers the processes of the last sample.
class RateMeter {
 public:
  // Sets `rates` of each device that was seen before and whose sums have not been reset since. Where the figures are those of
  // the last sample, because they have not been refreshed since, the rates are those of the last sample, too.
  void measure(Sample& sample);

 private:
  using Key = std::pair<std::uint64_t, std::string>;  // start and page of a process
  std::map<Key, ProcessSample> last_;
};

}  // namespace cachalot::tools::live
