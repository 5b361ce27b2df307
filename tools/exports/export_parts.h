// What several formats need of a history.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/sites.h"
#include "tools/exports/exports.h"
#include "tools/history/history.h"

namespace cachalot::tools {

// Returns the text as UTF-8: what is not UTF-8 in it is replaced.
std::string utf8_of(std::string_view text);

// Returns the text as a string of JSON, with its quotes.
std::string json_string(std::string_view text);

// Returns "model.py:42 in forward", or that no call stack was recorded; as UTF-8.
std::string place_text(Sites& sites, StackId stack);

// Returns the devices that are to be written. Throws InvalidArgument where the options name one that the history lacks.
std::vector<const DeviceHistory*> devices_of(const History& history, const ExportOptions& options);

// Returns the one device that is to be written. Throws InvalidArgument where there are several.
const DeviceHistory& only_device_of(const History& history, const ExportOptions& options, std::string_view format);

}  // namespace cachalot::tools
