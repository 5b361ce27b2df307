#include "tools/exports/exports.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggestions.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

// A file's name has the first ending that fits; any may be followed by .gz.
constexpr std::array kFormats = {
    ExportFormat{"torch", {".pickle", ".pkl"}, write_torch_snapshot},
    ExportFormat{"perfetto", {".perfetto.json", ".trace.json"}, write_perfetto},
    ExportFormat{"json", {".json", ""}, write_history_json},
    ExportFormat{"rmm", {".rmm.csv", ".rmm"}, write_rmm_csv},
    ExportFormat{"trace", {".trace.csv", ".trace"}, write_trace_text},
};

}  // namespace

std::string export_format_names() {
  std::string names;
  for (const ExportFormat& format : kFormats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

const ExportFormat& export_format(std::string_view name) {
  const auto* const found = std::ranges::find(kFormats, name, &ExportFormat::name);
  if (found != kFormats.end()) return *found;
  std::vector<std::string_view> names;
  names.reserve(kFormats.size());
  for (const ExportFormat& format : kFormats) names.push_back(format.name);
  const std::string asked = did_you_mean(name, names);
  throw InvalidArgument(fmt::format("--to {}: there is no such format{}{}; the formats are {}", name,
                                    asked.empty() ? "" : "; ", asked, export_format_names()));
}

const ExportFormat& export_format_of_file(std::string_view path) {
  std::string_view name = path;
  if (name.ends_with(".gz")) name.remove_suffix(3);
  for (const ExportFormat& format : kFormats) {
    for (const std::string_view ending : format.endings) {
      if (!ending.empty() && name.ends_with(ending)) return format;
    }
  }
  throw InvalidArgument(
      fmt::format("-o {}: no format has files that end so; name one with --to: {}", path, export_format_names()));
}

}  // namespace cachalot::tools
