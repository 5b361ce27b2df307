// Reads the files of the simulated driver, and writes files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cachalot::tools {

inline constexpr const char* kSimulatorLibrary = "libcachalot_simulator.so";

// Returns a number of a report.
std::size_t number(const nlohmann::json& object, const char* key);

// Returns whether a driver's report has an allocation, or says that not even the context had memory.
bool uses_a_device(const nlohmann::json& driver);

// Returns whether a driver's report has a breach of CUDA's rules, or something that was not given back.
bool breaks_rules(const nlohmann::json& driver);

// The allocations and frees of a driver's log (`log` of CACHALOT_SIM; simulator/README.md has the format) as a trace in
// data/traces' format, all on one stream.
std::string trace_of_log(std::istream& log);

// Writes the text, as gzip when the path ends in .gz. Throws InvalidArgument when it cannot be written.
void write_file(const std::string& path, const std::string& text);

// The ending of a program that ran on a simulated GPU, and its progress.

// Why the program was ended: not at all, after --max-steps or --max-seconds, or because it
// read an unknown value again and again at one place, and may do so without end.
enum class Ended : std::uint8_t { no, steps, seconds, unknown_value };

struct ProgramEnding {
  int exit_code = 0;  // the program's; 128 + n after signal n, as shells have it; 0 where it was ended as asked
  std::optional<std::string> error;  // the type of the error of Python that ended it
  std::string error_at;              // "train.py:30"; empty: not known
  std::size_t optimizer_steps = 0;
  std::size_t forward_calls = 0;  // of the outermost modules; counted until there are optimizer steps
  Ended ended = Ended::no;
  std::string circles_at;  // where it read the unknown value: "train.py:4 in <module>"

  // The program came to its end, or to the end that was asked for: what it needs is known.
  bool is_good() const { return exit_code == 0; }
};

// Adds what a process wrote of its end: python-<process>.json (simulator/README.md). The error that counts is the
// program's own process's, else the first that is added.
void add_process(ProgramEnding& ending, const nlohmann::json& python, bool is_main);

// Returns "an error of type NameError at train.py:30 after 2 steps", "signal 9 (Killed)" or "exit code 3".
std::string how_it_ended(const ProgramEnding& ending);

// Returns why and after how much a program was ended: "the program was ended after 3 steps as asked"; "" if it was not.
std::string why_it_was_ended(const ProgramEnding& ending);

// Returns "3 steps", "1 forward call", or "" where nothing was counted.
std::string progress_of(const ProgramEnding& ending);

nlohmann::json json_of(const ProgramEnding& ending);

}  // namespace cachalot::tools
