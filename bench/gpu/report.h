// The output of a program of bench/gpu: facts and verdicts, each a line of JSON on standard output, which bench/gpu/run
// collects.
//
//     {"fact": "aliasing/kernels", "value": 1000000, "unit": "handovers"}
//     {"check": "aliasing/kernels", "verdict": "passed", "why": "0 wrong words"}
//
// A program has parts. A part that throws is a failed check, and the next one runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::gpu {

// True over the simulated runtime, where kernels compute nothing: contents are not looked at then.
bool is_simulated();
// Why contents are not looked at.
inline constexpr const char* kSimulated = "the device is simulated: kernels compute nothing";

void fact(std::string_view name, double value, std::string_view unit);
void fact(std::string_view name, std::string_view text);
void check(std::string_view name, bool passed, std::string_view why);
void not_applicable(std::string_view name, std::string_view why);
// Passed if no word was wrong; not applicable on a simulated device.
void check_content(std::string_view name, std::uint64_t wrong_words, std::string_view detail = "");

// The amount of work: everything, or little, to try the program out.
struct Effort {
  bool is_quick = false;

  std::uint64_t rounds(std::uint64_t all, std::uint64_t few) const { return is_quick ? few : all; }
  std::chrono::milliseconds time(std::chrono::milliseconds all) const { return is_quick ? all / 50 : all; }
};

struct Part {
  std::string_view name;
  void (*run)(const Effort&);
};
// A part that runs in a process of its own (child.h): it returns the exit status.
struct ChildPart {
  std::string_view name;
  int (*run)(const std::vector<std::string>& arguments);
};

// The main function of a program: [--quick] [<part>...] runs these parts, or all; `--child <part> <arguments>...` is for child.h.
int parts_main(int argc, char** argv, const std::vector<Part>& parts, const std::vector<ChildPart>& children = {});

}  // namespace cachalot::gpu
