#include "tests/programs/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "cachalot/errors.h"

namespace cachalot {
namespace {

using Kind = Operation::Kind;

constexpr std::array<const char*, static_cast<std::size_t>(Kind::kCount)> kKindNames = {"allocate",
                                                                                        "deallocate",
                                                                                        "deallocate_sized",
                                                                                        "record_stream",
                                                                                        "launch",
                                                                                        "advance",
                                                                                        "empty_cache",
                                                                                        "empty_all_caches",
                                                                                        "set_memory_fraction",
                                                                                        "configure",
                                                                                        "reset_peak",
                                                                                        "reset_accumulated",
                                                                                        "create_pool",
                                                                                        "begin_pool",
                                                                                        "end_pool",
                                                                                        "release_pool",
                                                                                        "set_no_split",
                                                                                        "set_use_on_oom",
                                                                                        "empty_pool",
                                                                                        "begin_capture",
                                                                                        "end_capture",
                                                                                        "donate",
                                                                                        "use",
                                                                                        "wait",
                                                                                        "synchronize",
                                                                                        "allocate_tagged",
                                                                                        "allocate_contiguous",
                                                                                        "allocate_aligned",
                                                                                        "allocate_placed",
                                                                                        "sleep",
                                                                                        "wake",
                                                                                        "checkpoint",
                                                                                        "restore",
                                                                                        "misuse",
                                                                                        "fail",
                                                                                        "allocate_plain",
                                                                                        "switch_segments"};

constexpr const char* kNoOptions = "-";

// Keeps the operations outside [begin, end).
Program without(const Program& program, std::size_t begin, std::size_t end) {
  Program shorter = program;
  shorter.operations.erase(shorter.operations.begin() + static_cast<std::ptrdiff_t>(begin),
                           shorter.operations.begin() + static_cast<std::ptrdiff_t>(end));
  return shorter;
}

}  // namespace

const char* to_string(Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string to_text(const Program& program) {
  std::string text = fmt::format("devices {} {} options {}\n", program.device_mib[0], program.device_mib[1],
                                 program.options.empty() ? kNoOptions : program.options);
  for (const Operation& each : program.operations) {
    text += fmt::format("{} {} {} {} {}\n", to_string(each.kind), each.device, each.name, each.stream, each.amount);
  }
  return text;
}

Program program_of(std::string_view text) {
  std::istringstream in{std::string(text)};
  Program program;
  std::string word;
  in >> word >> program.device_mib[0] >> program.device_mib[1] >> word >> program.options;
  if (!in) throw InvalidArgument("a program begins with 'devices <MiB> <MiB> options <text>'");
  if (program.options == kNoOptions) program.options.clear();
  for (std::string kind; in >> kind;) {
    Operation each;
    in >> each.device >> each.name >> each.stream >> each.amount;
    const auto found = std::find(kKindNames.begin(), kKindNames.end(), kind);
    if (!in || found == kKindNames.end()) throw InvalidArgument("not an operation: " + kind);
    each.kind = static_cast<Kind>(found - kKindNames.begin());
    program.operations.push_back(each);
  }
  return program;
}

Program shortened(Program program, const std::function<std::string(const Program&)>& run) {
  const auto fails = [&](const Program& candidate) { return !run(candidate).empty(); };
  if (!fails(program)) return program;
  for (std::size_t part = program.operations.size() / 2; part >= 1; part /= 2) {
    for (std::size_t end = program.operations.size(); end > 0;) {
      const std::size_t begin = end > part ? end - part : 0;
      if (Program candidate = without(program, begin, end); fails(candidate)) program = std::move(candidate);
      end = begin;
    }
  }
  return program;
}

}  // namespace cachalot
