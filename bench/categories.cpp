// The category of each allocation that was live when a program's memory ran out, or at its peak, as CSV: bench/categories.py compares
// it with what the program itself knows.
//
//   bench/categories SNAPSHOT
//
// A line has the address, the requested bytes, the number of the allocation in the recording (1 for the first; 0: it was made
// before), the number of allocations when it was freed (empty: never), and the category.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/timeline.h"
#include "tools/base/input_file.h"
#include "tools/history/history.h"

namespace cachalot::bench {
namespace {

using tools::Allocation;

// Returns the number of allocations among the first n events, for each n.
std::vector<std::uint64_t> counts_of(const tools::DeviceHistory& device) {
  std::vector<std::uint64_t> counts{0};
  for (const tools::HistoryEvent& event : device.events) {
    counts.push_back(counts.back() + (event.action == tools::HistoryEvent::Action::alloc ? 1 : 0));
  }
  return counts;
}

void print_device(const tools::History& history, const tools::DeviceHistory& device,
                  const tools::CategoryRules& rules) {
  const tools::Timeline timeline(history, device);
  const tools::Moment peak =
      *timeline.moment(timeline.last_oom() ? tools::MomentKind::out_of_memory : tools::MomentKind::allocated_peak);
  tools::Categorizer categorizer(history, rules);
  const std::vector<tools::Category> categories = categorizer.categories_of(timeline);
  const std::vector<std::uint64_t> counts = counts_of(device);
  for (const std::uint32_t i : peak.live) {
    const Allocation& one = timeline.allocations()[i];
    fmt::print("{},{},{},{},{}\n", one.address, one.bytes, one.begin == Allocation::kBefore ? 0 : counts[one.begin + 1],
               one.end == Allocation::kNever ? "" : std::to_string(counts[one.end]),
               categorizer.name_of(categories[i]));
  }
}

int run(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: categories SNAPSHOT\n");
    return 2;
  }
  tools::History history = tools::read_history(tools::InputFile(argv[1], "snapshot"));
  const tools::CategoryRules rules = tools::built_in_rules();
  fmt::print("address,bytes,begin,end,category\n");
  for (const tools::DeviceHistory& device : history.devices) print_device(history, device, rules);
  return 0;
}

}  // namespace
}  // namespace cachalot::bench

int main(int argc, char** argv) {
  try {
    return cachalot::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "categories: {}\n", error.what());
    return 2;
  }
}
