#include "bench/gpu/report.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "base/json_writer.h"

namespace cachalot::gpu {
namespace {

int checks = 0;

void print(JsonWriter& json) {
  std::printf("%s\n", json.end_object().take().c_str());
  std::fflush(stdout);
}

void verdict(std::string_view name, std::string_view verdict, std::string_view why) {
  ++checks;
  JsonWriter json;
  print(json.begin_object().member("check", name).member("verdict", verdict).member("why", why));
}

void run_part(const Part& part, const Effort& effort) {
  const int before = checks;
  try {
    part.run(effort);
    if (checks == before) check(part.name, false, "the part looked at nothing");
  } catch (const std::exception& error) {
    check(part.name, false, error.what());
  }
}

bool is_wanted(const Part& part, const std::vector<std::string>& wanted) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), part.name) != wanted.end();
}

int run_child(const std::vector<std::string>& arguments, const std::vector<ChildPart>& children) {
  for (const ChildPart& child : children) {
    if (arguments.size() > 1 && child.name == arguments[1]) {
      return child.run({arguments.begin() + 2, arguments.end()});
    }
  }
  std::fprintf(stderr, "there is no such child\n");
  return 2;
}

template <typename Parts>
bool knows(const Parts& parts, const std::string& name) {
  return std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.name == name; });
}

}  // namespace

bool is_simulated() { return dlsym(RTLD_DEFAULT, "cachalot_sim_clock_ns") != nullptr; }

void fact(std::string_view name, double value, std::string_view unit) {
  JsonWriter json;
  print(json.begin_object().member("fact", name).member("value", value).member("unit", unit));
}

void fact(std::string_view name, std::string_view text) {
  JsonWriter json;
  print(json.begin_object().member("fact", name).member("value", text).member("unit", std::string_view()));
}

void check(std::string_view name, bool passed, std::string_view why) {
  verdict(name, passed ? "passed" : "failed", why);
}

void not_applicable(std::string_view name, std::string_view why) { verdict(name, "not applicable", why); }

void check_content(std::string_view name, std::uint64_t wrong_words, std::string_view detail) {
  if (is_simulated()) return not_applicable(name, kSimulated);
  std::string why = std::to_string(wrong_words) + " wrong words";
  if (!detail.empty()) why += ", " + std::string(detail);
  check(name, wrong_words == 0, why);
}

int parts_main(int argc, char** argv, const std::vector<Part>& parts, const std::vector<ChildPart>& children) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (!arguments.empty() && arguments[0] == "--child") return run_child(arguments, children);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  const Effort effort = {.is_quick = std::erase(arguments, "--quick") > 0};
  for (const std::string& name : arguments) {
    if (!knows(parts, name)) {
      std::fprintf(stderr, "%s: there is no part '%s'\n", argv[0], name.c_str());
      return 2;
    }
  }
  for (const Part& part : parts) {
    if (is_wanted(part, arguments)) run_part(part, effort);
  }
  return 0;
}

}  // namespace cachalot::gpu
