#include "tools/analysis/before_recording.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace cachalot::tools {
namespace {

constexpr double kNearlyAll = 0.9;  // of the gradients' bytes

using CountBySize = std::map<std::uint64_t, std::size_t>;
using NumbersBySize = std::map<std::uint64_t, std::vector<std::size_t>>;  // of allocations

// The moment when gradients hold most for the first time, and how many of each size there are then.
struct Gradients {
  std::uint32_t event = 0;
  CountBySize counts;
};

Gradients gradients_of(std::span<const Allocation> allocations, std::span<const Category> categories) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> changes;  // of bytes
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    if (categories[i] != Category::gradients) continue;
    const auto bytes = static_cast<std::int64_t>(allocations[i].bytes);
    changes.emplace_back(allocations[i].begin, bytes);
    if (allocations[i].end != Allocation::kNever) changes.emplace_back(allocations[i].end, -bytes);
  }
  std::ranges::sort(changes);  // in one event, what ends comes first
  Gradients gradients;
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const auto& [event, change] : changes) {
    now += change;
    if (now > most) gradients.event = event;
    most = std::max(most, now);
  }
  for (std::size_t i = 0; i < allocations.size(); ++i) {
    const Allocation& one = allocations[i];
    const bool lives = one.begin <= gradients.event && one.end > gradients.event;
    if (categories[i] == Category::gradients && lives) ++gradients.counts[one.bytes];
  }
  return gradients;
}

// Gives the category to as many of the allocations as there are gradients of their size, `at_most` times, where nearly all
// gradients find one; the allocations are then no longer in `unnamed`.
void match(const CountBySize& gradients, NumbersBySize& unnamed, std::size_t at_most, Category category,
           std::vector<Category>& categories) {
  double wanted = 0;
  double found = 0;
  for (const auto& [bytes, count] : gradients) {
    wanted += static_cast<double>(bytes) * static_cast<double>(count);
    found += static_cast<double>(bytes) * static_cast<double>(std::min(count, unnamed[bytes].size()));
  }
  if (wanted == 0 || found < kNearlyAll * wanted) return;
  for (const auto& [bytes, count] : gradients) {
    std::vector<std::size_t>& numbers = unnamed[bytes];  // the lowest address last
    for (std::size_t i = 0; i < count * at_most && !numbers.empty(); ++i) {
      categories[numbers.back()] = category;
      numbers.pop_back();
    }
  }
}

}  // namespace

void name_what_was_before(std::span<const Allocation> allocations, std::vector<Category>& categories) {
  if (std::ranges::find(categories, Category::parameters) != categories.end()) return;
  const Gradients gradients = gradients_of(allocations, categories);
  if (gradients.counts.empty()) return;
  NumbersBySize unnamed;
  for (std::size_t i = allocations.size(); i-- > 0;) {
    const Allocation& one = allocations[i];
    const bool lives = one.begin == Allocation::kBefore && one.end > gradients.event;
    if (lives && categories[i] == Category::unknown) unnamed[one.bytes].push_back(i);
  }
  for (auto& [bytes, numbers] : unnamed) {  // an optimizer may make its state anew in each step, but not the parameters
    std::stable_partition(numbers.begin(), numbers.end(),
                          [&](std::size_t i) { return allocations[i].end != Allocation::kNever; });
  }
  match(gradients.counts, unnamed, 1, Category::parameters, categories);
  match(gradients.counts, unnamed, 2, Category::optimizer_state, categories);
}

}  // namespace cachalot::tools
