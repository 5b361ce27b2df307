// Stages of a program by its annotations: which were open when an event happened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/history/history.h"

namespace cachalot::tools {

using StageId = std::uint32_t;  // 0: outside of all stages

// Stages are nested: "step 3 > forward". The constructor takes a time in proportion to events and marks.
class Stages {
 public:
  Stages(const History& history, const DeviceHistory& device);

  // Returns the stage of an event, by its number.
  StageId at(std::size_t event) const { return by_event_.empty() ? 0 : by_event_[event]; }
  // Returns "step 3 > forward", or "".
  const std::string& name(StageId stage) const { return names_[stage]; }
  // Returns the annotations that are open, the outermost first.
  const std::vector<TextId>& open(StageId stage) const { return open_[stage]; }
  std::size_t size() const { return names_.size(); }

 private:
  std::vector<std::string> names_{""};
  std::vector<std::vector<TextId>> open_{{}};
  std::vector<StageId> by_event_;  // empty: there are no stages
};

}  // namespace cachalot::tools
