// What is known of a device beyond PyTorch's memory, by its number.
#pragma once

#include <algorithm>

#include "tools/history/history.h"

namespace cachalot::tools {

// Returns the facts of the device; nullptr where there are none.
inline const DeviceFacts* find_facts(const History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  return found == history.facts.end() ? nullptr : &*found;
}

// Returns the facts of the device, which may be new.
inline DeviceFacts& facts_of(History& history, int device) {
  const auto found = std::ranges::find(history.facts, device, &DeviceFacts::device);
  if (found != history.facts.end()) return *found;
  DeviceFacts& facts = history.facts.emplace_back();
  facts.device = device;
  return facts;
}

}  // namespace cachalot::tools
