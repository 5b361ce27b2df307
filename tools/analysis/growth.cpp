#include "tools/analysis/growth.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace cachalot::tools {
namespace {

constexpr std::size_t kFewestKept = 4;   // allocations of a line that outlived backward passes
constexpr std::size_t kFewestSteps = 4;  // of a loop
constexpr std::size_t kFewestEqual = 8;  // allocations of a line that nothing else tells of
constexpr std::size_t kParts = 4;        // of the history: a line that grows allocates in three of them at least

// Returns the events of the allocations outside of all phases whose stack made, and freed, most of them: a loop's steps.
std::vector<std::uint32_t> steps_of(std::span<const Allocation> allocations, std::span<const Category> categories,
                                    const Peak& peak) {
  std::map<StackId, std::vector<std::uint32_t>> by_stack;
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool is_outside = categories[i] == Category::unknown || categories[i] == Category::activations;
    if (is_outside && one.stack != 0 && one.begin != Allocation::kBefore && one.end < peak.event)
      by_stack[one.stack].push_back(one.begin);
  }
  const auto most = std::ranges::max_element(by_stack, {}, [](const auto& stack) { return stack.second.size(); });
  return most == by_stack.end() || most->second.size() < kFewestSteps ? std::vector<std::uint32_t>() : most->second;
}

// Whether the allocations lie in most parts of the history.
bool is_throughout(const Growth& growth, std::span<const Allocation> allocations, const Peak& peak) {
  std::array<bool, kParts> parts = {};
  for (const std::uint32_t i : growth.allocations)
    parts[allocations[i].begin * kParts / std::max<std::size_t>(1, peak.event)] = true;
  return std::ranges::count(parts, true) >= static_cast<std::ptrdiff_t>(kParts - 1);
}

class GrowthSearch {
 public:
  GrowthSearch(std::span<const Allocation> allocations, std::span<const Category> categories, const Peak& peak)
      : allocations_(allocations),
        categories_(categories),
        peak_(peak),
        steps_(steps_of(allocations, categories, peak)) {
    is_training_ = std::ranges::find(categories, Category::gradients) != categories.end();
    for (const std::uint32_t i : peak.live) live_bytes_ += allocations[i].bytes;
  }

  // Whether the memory may be a leak: a training's activations are freed by its next backward pass.
  bool may_grow(std::uint32_t allocation) const {
    const Category category = categories_[allocation];
    if (category == Category::activations) return !is_training_;
    return category == Category::kept || category == Category::unknown;
  }

  bool grows(const Growth& growth) const {
    if (growth.allocations.size() < kFewestKept || !is_throughout(growth, allocations_, peak_)) return false;
    const Category category = categories_[growth.allocations.front()];
    if (category == Category::kept) return true;
    if (steps_of_growth(growth) >= kFewestSteps) return true;
    return category == Category::unknown && growth.allocations.size() >= kFewestEqual && 2 * growth.bytes > live_bytes_;
  }

 private:
  // In how many steps the allocations were made.
  std::size_t steps_of_growth(const Growth& growth) const {
    std::set<std::ptrdiff_t> steps;
    for (const std::uint32_t i : growth.allocations)
      steps.insert(std::ranges::upper_bound(steps_, allocations_[i].begin) - steps_.begin());
    return steps.size();
  }

  std::span<const Allocation> allocations_;
  std::span<const Category> categories_;
  const Peak& peak_;
  std::vector<std::uint32_t> steps_;
  bool is_training_ = false;
  std::uint64_t live_bytes_ = 0;
};

}  // namespace

std::vector<Growth> growth_until(const DeviceHistory& device, std::span<const Allocation> allocations,
                                 std::span<const Category> categories, const Peak& peak, Sites& sites) {
  std::vector<Growth> found;
  if (device.events.empty()) return found;
  const GrowthSearch search(allocations, categories, peak);
  std::map<std::pair<FrameId, Category>, Growth> by_place;
  for (const std::uint32_t i : peak.live) {
    const Allocation& one = allocations[i];
    if (!search.may_grow(i) || one.stack == 0 || one.begin == Allocation::kBefore) continue;
    Growth& growth = by_place[{sites.place_of(sites.telling_stack(one.stack, one.details)), categories[i]}];
    growth.bytes += one.bytes;
    growth.allocations.push_back(i);
  }
  for (auto& [key, growth] : by_place) {
    growth.place = key.first;
    if (search.grows(growth)) found.push_back(std::move(growth));
  }
  std::ranges::stable_sort(found, std::greater<>{}, &Growth::bytes);
  return found;
}

}  // namespace cachalot::tools
