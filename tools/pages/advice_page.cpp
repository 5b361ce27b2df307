#include "tools/pages/advice_page.h"

#include <fmt/format.h>

#include <string>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

PageTable policies_table(const Advice& advice) {
  using Kind = PageTable::Kind;
  PageTable table{.title = fmt::format("Policies for {}", advice.file),
                  .note = fmt::format("Replayed on {}; the best first.", format_bytes(advice.on.memory_bytes)),
                  .columns = {{"reserved, peak", Kind::bytes},
                              {"failed allocations", Kind::count},
                              {"driver ms", Kind::number},
                              {"host ns per event", Kind::number},
                              {"smallest GPU", Kind::text},
                              {"policy", Kind::text},
                              {"line to set", Kind::text}},
                  .rows = {}};
  for (const PolicyAdvice& policy : advice.policies) {
    const auto host_ns =
        policy.ns_per_event > 0 ? nlohmann::ordered_json(policy.ns_per_event) : nullptr;  // or not measured
    table.rows.push_back({policy.peak_reserved_bytes, policy.ooms, policy.driver_us / 1000, host_ns,
                          policy.smallest_gpu, policy.policy, policy.line});
  }
  return table;
}

PageTable fleet_table(std::span<const Advice> advices) {
  using Kind = PageTable::Kind;
  PageTable table{.title = "All files",
                  .note = "The file with most memory to be saved comes first.",
                  .columns = {{"can be saved", Kind::bytes},
                              {"reserved today", Kind::bytes},
                              {"policy", Kind::text},
                              {"line to set", Kind::text},
                              {"file", Kind::text}},
                  .rows = {}};
  for (const Advice& advice : advices) {
    if (!advice.error.empty()) {
      table.rows.push_back({nullptr, nullptr, "", advice.error, advice.file});
      continue;
    }
    table.rows.push_back({advice.recommendation.saved_bytes, advice.native().peak_reserved_bytes,
                          advice.recommendation.policy, advice.recommendation.line, advice.file});
  }
  return table;
}

}  // namespace

void add_advices(PageReport& report, std::span<const Advice> advices) {
  if (advices.size() > 1) report.tables.push_back(fleet_table(advices));
  for (const Advice& advice : advices) {
    if (!advice.error.empty()) continue;
    if (report.verdict.headline.empty()) {
      report.verdict.headline = advice.recommendation.sentence;
      if (!advice.recommendation.line.empty()) {
        report.verdict.remedies.push_back(
            {.title = advice.recommendation.policy,
             .evidence = fmt::format("Replayed with it, the program reserves {} less than with PyTorch's default.",
                                     format_bytes(advice.recommendation.saved_bytes)),
             .setting = advice.recommendation.line});
      }
    }
    report.tables.push_back(policies_table(advice));
  }
}

}  // namespace cachalot::tools
