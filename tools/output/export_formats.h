// Writes histories as files of other tools and of cachalot. All of them are written while they are made: nothing but the
// history and its allocations is in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/analysis/sites.h"
#include "tools/analysis/timeline.h"
#include "tools/base/output_file.h"
#include "tools/history/history.h"

namespace cachalot::tools {

struct ExportOptions {
  std::optional<int> device = std::nullopt;  // this one alone
  std::size_t most_events = 200'000;         // of Perfetto, about: larger files make it slow
};

// A format that histories are written in.
struct ExportFormat {
  std::string_view name;                    // of --to: "torch"
  std::array<std::string_view, 2> endings;  // of files: ".pickle"; "" for none
  void (*write)(const History&, const ExportOptions&, OutputFile&);
};

// Throw InvalidArgument for a name, an ending, that no format has.
const ExportFormat& export_format(std::string_view name);
const ExportFormat& export_format_of_file(std::string_view path);
// Returns the names, as a sentence lists them.
std::string export_format_names();

// Each writes the history, of one device or all, but does not finish the file. They throw InvalidArgument where the history
// lacks what the format is of, or the format has room for one device and the history has several.
void write_torch_snapshot(const History& history, const ExportOptions& options, OutputFile& out);
void write_perfetto(const History& history, const ExportOptions& options, OutputFile& out);

// Parts of a history that several formats need.

// Returns the text as UTF-8: what is not UTF-8 in it is replaced.
std::string utf8_of(std::string_view text);

// Returns the text as a string of JSON, with its quotes.
std::string json_string(std::string_view text);

// Returns "model.py:42 in forward", or that no call stack was recorded; as UTF-8.
std::string place_text(Sites& sites, StackId stack);

// Returns the indexes, in order, of the largest allocations: `most` of them or all.
std::vector<std::size_t> largest_of(const std::vector<Allocation>& allocations, std::size_t most);

// Returns the devices that are to be written. Throws InvalidArgument where the options name one that the history lacks.
std::vector<const DeviceHistory*> devices_of(const History& history, const ExportOptions& options);

// Returns the one device that is to be written. Throws InvalidArgument where there are several.
const DeviceHistory& only_device_of(const History& history, const ExportOptions& options, std::string_view format);

}  // namespace cachalot::tools
