#include "tools/simulation_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "device/address_space.h"
#include "tools/simulation_files.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;
using simulator::ContextLibrary;
using simulator::ModuleLoading;

std::string_view full_name(ContextLibrary library) {
  switch (library) {
    case ContextLibrary::cublas:
      return "cuBLAS";
    case ContextLibrary::cudnn:
      return "cuDNN";
    case ContextLibrary::cusolver:
      return "cuSOLVER";
    case ContextLibrary::cusparse:
      return "cuSPARSE";
  }
  return "";
}

std::optional<ModuleLoading> loading_of(const json& device) {
  const json& estimate = device.at("context_estimate");
  if (estimate.is_null()) return std::nullopt;
  return estimate == to_string(ModuleLoading::eager) ? ModuleLoading::eager : ModuleLoading::lazy;
}

std::string libraries_text(const simulator::ContextCosts& costs) {
  std::string text;
  for (const ContextLibrary library : simulator::kContextLibraries) {
    if (costs.of(library) > 0) text += fmt::format("{}{}", text.empty() ? " with " : ", ", full_name(library));
  }
  return text;
}

simulator::Spread read_spread(const json& spread) {
  return {number(spread, "less_bytes"), number(spread, "more_bytes")};
}

// At most: what PyTorch asks the device for, of which the request is a part.
constexpr std::size_t kSegment = 20 * kMiB;

}  // namespace

simulator::ContextCharge context_of(const json& device) {
  simulator::ContextCharge charge;
  charge.estimate = loading_of(device);
  charge.costs.context_bytes = device.at("context_bytes").get<std::size_t>();
  const json& libraries = device.at("library_bytes");
  for (const ContextLibrary library : simulator::kContextLibraries)
    charge.costs.of(library) = libraries.value(std::string(to_string(library)), std::size_t{0});
  const json& limits = device.at("limits");
  charge.limit_bytes = number(limits, "bytes");
  charge.limits = {number(limits, "stack_bytes"), number(limits, "heap_bytes"), number(limits, "printf_bytes")};
  const json& graphs = device.at("graphs");
  charge.graph_bytes = number(graphs, "bytes");
  charge.graphs = {number(graphs, "graphs"), number(graphs, "kernel_nodes")};
  return charge;
}

std::string describe_context(const json& device) {
  const simulator::ContextCharge charge = context_of(device);
  const std::size_t bytes = charge.costs.total();
  if (bytes == 0) return "";
  if (!charge.estimate) return format_bytes(bytes) + ", as given";
  return fmt::format("{}: an estimate for {}{}; --context SIZE sets it", format_bytes(bytes),
                     device.at("name").get<std::string>(), libraries_text(charge.costs));
}

std::string describe_limits(const json& device) {
  const std::size_t bytes = number(device.at("limits"), "bytes");
  return bytes == 0 ? "" : format_bytes(bytes) + ": stacks, heap or printf buffer that the program made larger";
}

std::string describe_graphs(const json& device) {
  const json& graphs = device.at("graphs");
  if (number(graphs, "bytes") == 0) return "";
  const std::size_t count = number(graphs, "graphs");
  return fmt::format("{}: an estimate, half to twice, for {} executable graph{} with {} kernels",
                     format_bytes(number(graphs, "bytes")), with_commas(count), count == 1 ? "" : "s",
                     with_commas(number(graphs, "kernel_nodes")));
}

std::string describe_lack(const json& device) {
  if (!device.contains("context_lack")) return "";
  const json& lack = device.at("context_lack");
  return fmt::format("no memory for {}, which takes {}, with {} free", lack.at("for").get<std::string>(),
                     format_bytes(lack.at("bytes").get<std::size_t>()),
                     format_bytes(lack.at("free_bytes").get<std::size_t>()));
}

simulator::Spread spread_of(const json& device) { return read_spread(device.at("spread")); }

simulator::Spread spread_of_others(const json& device) {
  const simulator::Spread all = spread_of(device);
  const simulator::Spread context = read_spread(device.at("spread").at("context"));
  return {all.less_bytes - context.less_bytes, all.more_bytes - context.more_bytes};
}

std::string estimated_parts(const json& device) {
  std::string text = read_spread(device.at("spread").at("context")).more_bytes > 0 ? "the context" : "";
  if (spread_of_others(device).more_bytes > 0) text += text.empty() ? "NCCL" : " and NCCL";
  return text;
}

bool fits_surely(const json& device, std::size_t spare_bytes) { return spare_bytes >= spread_of(device).more_bytes; }

std::string describe_spare(const json& device, std::size_t spare_bytes) {
  const std::size_t more = spread_of(device).more_bytes;
  const std::string spare = format_bytes(spare_bytes);
  if (more == 0) return fmt::format(", with {} to spare", spare);
  const std::string may_take = fmt::format("{} may take {} more", estimated_parts(device), format_bytes(more));
  return fits_surely(device, spare_bytes) ? fmt::format(", with {} to spare, of which {}", spare, may_take)
                                          : fmt::format(": {} to spare, but {}", spare, may_take);
}

std::string describe_nccl(const json& device) {
  const std::size_t all = number(device.at("nccl"), "peak_used_bytes");
  const std::size_t buffers = number(device.at("nccl"), "peak_buffer_bytes");
  if (all == 0) return "";
  if (buffers == 0) return format_bytes(all) + " of it, which the program asked NCCL for";
  const std::string part = all == buffers ? "" : fmt::format("of which {} are ", format_bytes(buffers));
  return fmt::format("{} of it, {}an estimate: half to twice", format_bytes(all), part);
}

std::string describe_low_estimate(const json& device, const json& request) {
  const std::size_t less = spread_of(device).less_bytes;
  const std::size_t free = number(request, "free_bytes");
  std::size_t bytes = round_up(number(request, "bytes"), kPhysicalUnit);
  if (bytes <= free) bytes = std::max(bytes, kSegment);
  if (bytes <= free || bytes > free + less) return "";
  return fmt::format("but {} may take {} less, and then there is memory for this", estimated_parts(device),
                     format_bytes(less));
}

}  // namespace cachalot::tools
