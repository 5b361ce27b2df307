#include "tools/commands/simulation_options.h"

#include <limits>

#include "cachalot/errors.h"
#include "simulator/context_costs.h"

namespace cachalot::tools {
namespace {

std::string complaint_about_context(const std::string& text) {
  try {
    if (text != "none" && text != "model") simulator::parse_context_bytes(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace

void declare_limits(CLI::App& app, RunLimits& limits) {
  constexpr double kShortest = 0.1;
  constexpr double kLongest = 1e7;
  app.add_option("--max-steps", limits.steps,
                 "End a Python program after N optimizer steps, or, without optimizers, N forward calls of its "
                 "outermost modules; the report is as of a program that ended by itself")
      ->type_name("N")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  app.add_option("--max-seconds", limits.seconds, "End the program with SIGTERM after so many seconds, likewise")
      ->type_name("SECONDS")
      ->check(CLI::Range(kShortest, kLongest));
}

void declare_context(CLI::App& app, std::optional<std::string>& context) {
  app.add_option("--context", context,
                 "What the CUDA context and its libraries take of each device: a size such as 1429MiB, which "
                 "bench/gpu/context.py measures; model: an estimate for the GPU (default); none")
      ->type_name("SIZE")
      ->check(complaint_about_context);
}

}  // namespace cachalot::tools
