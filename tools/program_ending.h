// How a program that ran on a simulated GPU ended, and how far it had come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cachalot::tools {

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
