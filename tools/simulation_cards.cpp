#include "tools/simulation_cards.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulator/gpu_models.h"
#include "tools/simulation_context.h"
#include "tools/simulation_files.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;

Card card_of(const simulator::GpuModel& model, const simulator::ContextCharge& context,
             const simulator::Spread& of_others) {
  simulator::Spread spread = simulator::context_spread(model, context);
  spread += of_others;
  return {.key = std::string(model.key),
          .product = std::string(model.product),
          .capability = fmt::format("{}.{}", model.major, model.minor),
          .memory_bytes = model.memory_bytes,
          .context_bytes = simulator::context_bytes(model, context),
          .less_bytes = spread.less_bytes,
          .more_bytes = spread.more_bytes};
}

// The card that ran: the model of that name and memory, or, with --memory, the model with that memory instead.
Card card_that_ran(const json& device, const simulator::ContextCharge& context) {
  const auto name = device.at("name").get<std::string>();
  const std::size_t bytes = number(device, "total_bytes");
  const auto models = simulator::gpu_models();
  const auto is_named = [&](const simulator::GpuModel& model) { return model.product == name; };
  auto found =
      std::ranges::find_if(models, [&](const auto& model) { return is_named(model) && model.memory_bytes == bytes; });
  const simulator::Spread of_others = spread_of_others(device);
  if (found != models.end()) return card_of(*found, context, of_others);
  found = std::ranges::find_if(models, is_named);
  Card card = found == models.end() ? Card{} : card_of(*found, context, of_others);
  card.key = "--memory";
  card.product = name;
  card.memory_bytes = bytes;
  card.context_bytes = context.total();
  return card;
}

std::optional<Policy> policy_of(const json& torch) {
  const auto allocator = torch.value("allocator", "");
  if (allocator == "native") return Policy::pytorch;
  if (allocator == "expandable_segments") return Policy::expandable_segments;
  return std::nullopt;
}

}  // namespace

std::vector<Card> known_cards(const simulator::ContextCharge& context, const simulator::Spread& of_others) {
  std::vector<Card> cards;
  for (const simulator::GpuModel& model : simulator::gpu_models()) cards.push_back(card_of(model, context, of_others));
  return cards;
}

std::vector<RecordedTrace> recorded_traces(const ProcessReport& report, const std::filesystem::path& folder) {
  std::vector<RecordedTrace> traces;
  if (report.driver.is_null()) return traces;
  for (const json& device : report.driver.at("devices")) {
    const json* const torch = torch_of(report, device);
    const int ordinal = device.at("device").get<int>();
    const std::filesystem::path path = folder / fmt::format("trace-{}-{}.csv", report.process, ordinal);
    if (torch == nullptr || lacked_memory(device, torch, false) || !std::filesystem::exists(path)) continue;
    const simulator::ContextCharge context = context_of(device);
    const std::size_t reserved = number(*torch, "peak_reserved_bytes");
    const std::size_t used = number(device, "peak_used_bytes");
    const std::size_t of_others = number(device, "common_peak_bytes") - number(device, "peak_with_context_bytes");
    traces.push_back({.run = {.device = ordinal,
                              .card = card_that_ran(device, context),
                              .policy = policy_of(report.torch),
                              .architectures = report.torch.value("architectures", std::vector<std::string>()),
                              .reserved_bytes = reserved,
                              .other_bytes = used - std::min(used, reserved) + of_others},
                      .physical_device = device.at("physical_device").get<int>(),
                      .context = context,
                      .of_others = spread_of_others(device),
                      .trace = read_trace(path.string())});
  }
  return traces;
}

std::vector<CardTable> card_tables(std::vector<RecordedTrace> traces) {
  std::vector<CardTable> tables;
  tables.reserve(traces.size());
  for (RecordedTrace& one : traces)
    tables.push_back(make_card_table(std::move(one.trace), one.run, known_cards(one.context, one.of_others)));
  return tables;
}

}  // namespace cachalot::tools
