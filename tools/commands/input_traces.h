// Traces and snapshots that commands are given, read; and the device that they are played on.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/trace_reader.h"

namespace cachalot::tools {

// Returns the traces of all files: one of a trace, one for each device of a snapshot with a history. All are read before
// the first is used: a bad one is an error before there is any output. Throws InvalidArgument, and std::runtime_error
// where the host has no memory for a file; both name the file.
std::vector<Trace> read_all_traces(const std::vector<std::string>& paths);

// The options that say how large the simulated device is, as given.
struct DeviceSize {
  std::optional<std::string> gpu;
  std::optional<std::string> memory;
};

// Declare what commands that play traces have in common: the paths TRACE..., the options --gpu and --device-memory, and
// the flag --json. The variables must live as long as `app`.
void declare_traces(CLI::App& app, std::vector<std::string>& paths);
void declare_device_size(CLI::App& app, DeviceSize& size);
void declare_json_lines(CLI::App& app, bool& json);

// Returns the bytes of an option's SIZE. Throws InvalidArgument, which names the option.
std::size_t bytes_of_option(std::string_view option, const std::string& size);

// Returns the bytes that the options ask for, or `otherwise` where none is given. `memory_option` is what the command calls the
// second one. Throws InvalidArgument, also where both are given.
std::size_t device_bytes(const DeviceSize& size, std::size_t otherwise,
                         std::string_view memory_option = "--device-memory");

}  // namespace cachalot::tools
