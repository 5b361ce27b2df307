// A history as a table, for spreadsheets and data frames: one line for each allocation.
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/categories.h"
#include "tools/analysis/sites.h"
#include "tools/exports/export_parts.h"
#include "tools/exports/exports.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {
namespace {

// As RFC 4180 has it.
std::string csv_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : utf8_of(text)) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

class AllocationCsvWriter {
 public:
  AllocationCsvWriter(const History& history, OutputFile& out)
      : history_(history), out_(out), sites_(history), rules_(built_in_rules()), categorizer_(history, rules_) {}

  void write(const std::vector<const DeviceHistory*>& devices) {
    out_.write("device,address,bytes,begin_event,end_event,begin_us,end_us,stream,pool,category,place\n");
    for (const DeviceHistory* device : devices) {
      const std::vector<Allocation> allocations = allocations_of(*device);
      const std::vector<Category> categories = categorizer_.categories_of(*device, allocations);
      for (std::size_t i = 0; i < allocations.size(); ++i) write_line(*device, allocations[i], categories[i]);
    }
  }

 private:
  // An allocation from before the history has no begin, one that lives at its end no end: these fields are empty.
  void write_line(const DeviceHistory& device, const Allocation& allocation, Category category) {
    const bool has_begin = allocation.begin != Allocation::kBefore;
    const bool has_end = allocation.end != Allocation::kNever;
    const PoolId pool = history_.pools[allocation.pool];
    out_.print("{},{},{},{},{},{},{},{},{}.{},{},{}\n", device.device, allocation.address, allocation.bytes,
               has_begin ? fmt::to_string(allocation.begin) : "", has_end ? fmt::to_string(allocation.end) : "",
               has_begin ? fmt::to_string(device.events[allocation.begin].time_us) : "",
               has_end ? fmt::to_string(device.events[allocation.end].time_us) : "",
               history_.streams[allocation.stream], pool.first, pool.second, csv_text(categorizer_.name_of(category)),
               csv_text(place_text(sites_, allocation.stack)));
  }

  const History& history_;
  OutputFile& out_;
  Sites sites_;
  CategoryRules rules_;
  Categorizer categorizer_;
};

}  // namespace

void write_allocation_csv(const History& history, const ExportOptions& options, OutputFile& out) {
  AllocationCsvWriter(history, out).write(devices_of(history, options));
}

}  // namespace cachalot::tools
