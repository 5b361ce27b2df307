// What the simulated driver writes, read; and files, written.
#pragma once

#include <cstddef>
#include <istream>
#include <nlohmann/json.hpp>
#include <string>

namespace cachalot::tools {

inline constexpr const char* kSimulatorLibrary = "libcachalot_simulator.so";

// Returns a number of a report.
std::size_t number(const nlohmann::json& object, const char* key);

// Whether a driver's report tells of any allocation, or that not even the context had memory.
bool uses_a_device(const nlohmann::json& driver);

// Whether a driver's report tells of a breach of CUDA's rules, or of something that was not given back.
bool breaks_rules(const nlohmann::json& driver);

// The allocations and frees of a driver's log (`log` of CACHALOT_SIM; simulator/README.md has the format) as a trace in
// data/traces' format, all on one stream.
std::string trace_of_log(std::istream& log);

// As gzip when the path ends in .gz. Throws InvalidArgument when it cannot be written.
void write_file(const std::string& path, const std::string& text);

}  // namespace cachalot::tools
