#include "tools/simulation_context.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "base/bytes.h"

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

}  // namespace

simulator::ContextCharge context_of(const json& device) {
  simulator::ContextCharge charge;
  charge.estimate = loading_of(device);
  charge.costs.context_bytes = device.at("context_bytes").get<std::size_t>();
  const json& libraries = device.at("library_bytes");
  for (const ContextLibrary library : simulator::kContextLibraries)
    charge.costs.of(library) = libraries.value(std::string(to_string(library)), std::size_t{0});
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

std::string describe_lack(const json& device) {
  if (!device.contains("context_lack")) return "";
  const json& lack = device.at("context_lack");
  return fmt::format("no memory for {}, which takes {}, with {} free", lack.at("for").get<std::string>(),
                     format_bytes(lack.at("bytes").get<std::size_t>()),
                     format_bytes(lack.at("free_bytes").get<std::size_t>()));
}

}  // namespace cachalot::tools
