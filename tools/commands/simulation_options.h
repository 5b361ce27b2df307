// The options that `simulate` and `fit` share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

namespace cachalot::tools {

// What ends a simulated program before its own end.
struct RunLimits {
  std::optional<int> steps;
  std::optional<double> seconds;
};

// Declares --max-steps and --max-seconds. `limits` must live as long as `app`.
void declare_limits(CLI::App& app, RunLimits& limits);

// Declares --context, whose value is a size, "model" or "none". `context` must live as long as `app`.
void declare_context(CLI::App& app, std::optional<std::string>& context);

}  // namespace cachalot::tools
