// Reads the files of the simulated driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace cachalot::tools {

inline constexpr const char* kSimulatorLibrary = "libcachalot_simulator.so";

// A folder of our own, such as for what processes report; gone with this.
class TemporaryFolder {
 public:
  // Throws InvalidArgument where none can be made.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Return a number of a report, a text, and a number of bytes as text.
std::size_t number(const nlohmann::json& object, const char* key);
std::string word(const nlohmann::json& object, const char* key);
std::string bytes_of(const nlohmann::json& object, const char* key);

// Returns "at train.py:42 in step" for a place in the program.
std::string at_place(const std::string& place);

// Returns whether a driver's report has an allocation, or a lack of memory for the context.
bool uses_a_device(const nlohmann::json& driver);

// Returns whether a driver's report has a breach of CUDA's rules, or a leak.
bool breaks_rules(const nlohmann::json& driver);

// Returns whether a torch report has memory that was used again too early.
bool has_races(const nlohmann::json& torch);

// Returns the allocations and frees of a driver's log (`log` of CACHALOT_SIM; simulator/README.md has the format) as a
// trace in the format of data/traces, all on one stream.
std::string trace_of_log(std::istream& log);

// --- the end of a program that ran on a simulated GPU, and its progress ---

// The reason why the command ended the program: none, --max-steps, --max-seconds, or an unknown value that the program read
// again and again at one place, perhaps in an endless loop.
enum class Ended : std::uint8_t { no, steps, seconds, unknown_value };

struct ProgramEnding {
  int exit_code = 0;                 // the program's; 128 + n after signal n; 0 if the command ended it
  std::optional<std::string> error;  // the type of the Python exception that ended it
  std::string error_at;              // "train.py:30"; empty: not known
  std::size_t optimizer_steps = 0;
  std::size_t forward_calls = 0;  // of the outermost modules; counted until there are optimizer steps
  Ended ended = Ended::no;
  std::string circles_at;  // where it read the unknown value: "train.py:4 in <module>"

  // Returns whether the program came to its own end or to the requested one, so that the memory it needs is known.
  bool is_good() const { return exit_code == 0; }
};

// Adds what a process wrote about its end: python-<process>.json (simulator/README.md). The error of the main process
// counts, else the first that is added.
void add_process(ProgramEnding& ending, const nlohmann::json& python, bool is_main);

// Returns "an error of type NameError at train.py:30 after 2 steps", "signal 9 (Killed)" or "exit code 3".
std::string how_it_ended(const ProgramEnding& ending);

// Returns why a program was ended and its progress: "the program was ended after 3 steps as asked"; "" if it was not.
std::string why_it_was_ended(const ProgramEnding& ending);

// Returns "3 steps", "1 forward call", or "" where nothing was counted.
std::string progress_of(const ProgramEnding& ending);

nlohmann::json json_of(const ProgramEnding& ending);

}  // namespace cachalot::tools
