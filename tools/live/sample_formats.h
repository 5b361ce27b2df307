// A sample as JSON and in Prometheus's text format.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

// A sample as one JSON object, as `cachalot top --json` prints it (docs/tools/json.md).
nlohmann::ordered_json to_json(const Sample& sample);

// A sample in Prometheus's text format, version 0.0.4: docs/tools/top.md lists the metrics, whose names are stable.
std::string to_prometheus(const Sample& sample);

// Writes the text to a file beside `path` and renames that: readers such as node_exporter's textfile collector see the old text
// or the new one. Throws InvalidArgument, which names path and reason.
void write_textfile(const std::string& path, const std::string& text);

}  // namespace cachalot::tools::live
