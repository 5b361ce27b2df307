#include "tools/simulation_peak.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "tools/simulation_files.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;
using Bytes = std::map<std::string, std::size_t>;

// "12.00 MiB" in a column.
std::string bytes_cell(std::size_t bytes) { return fmt::format("{:>12}", format_bytes(bytes)); }

std::string text_of(const Bytes& kinds) {
  std::vector<std::pair<std::string, std::size_t>> sorted(kinds.begin(), kinds.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const auto& kind) { return kind.second; });
  std::vector<std::string> texts;
  texts.reserve(sorted.size());
  for (const auto& [kind, bytes] : sorted) texts.push_back(fmt::format("{} {}", kind, format_bytes(bytes)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// The first names of a path, "layers.*" of "layers.3.mlp", with a star for each number.
std::string first_names(const std::string& path, std::size_t depth) {
  std::istringstream names(path);
  std::string text;
  std::string name;
  for (std::size_t i = 0; i < depth && std::getline(names, name, '.'); ++i) {
    const bool is_number = std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
    text += fmt::format("{}{}", i == 0 ? "" : ".", is_number ? "*" : name);
  }
  return text;
}

struct ModuleGroup {
  std::size_t bytes = 0;
  std::size_t modules = 0;
  Bytes kinds;
};

using ModuleGroups = std::map<std::string, ModuleGroup>;

ModuleGroups groups_at(const json& modules, std::size_t depth) {
  ModuleGroups groups;
  for (const json& module : modules) {
    ModuleGroup& group = groups[first_names(module.at("path").get<std::string>(), depth)];
    group.bytes += number(module, "bytes");
    ++group.modules;
    for (const auto& [kind, bytes] : module.at("kinds").items()) group.kinds[kind] += bytes.get<std::size_t>();
  }
  return groups;
}

// As deep as leaves few groups.
ModuleGroups groups_of(const json& modules) {
  constexpr std::size_t kMostGroups = 8;
  constexpr std::size_t kDeepest = 16;
  ModuleGroups groups = groups_at(modules, 1);
  for (std::size_t depth = 2; depth <= kDeepest; ++depth) {
    ModuleGroups deeper = groups_at(modules, depth);
    if (deeper.size() > kMostGroups) break;
    groups = std::move(deeper);
  }
  return groups;
}

// A call, and what it and the calls below it allocated.
struct Call {
  std::size_t bytes = 0;
  std::map<std::string, Call> calls;  // by place
};

bool is_wanted(const json& frame, Frames frames) {
  const auto origin = frame.at("origin").get<std::string>();
  return frames == Frames::all || origin == "own" || (frames == Frames::library && origin == "library");
}

Call tree_of(const json& stacks, Frames frames) {
  Call root;
  for (const json& stack : stacks) {
    Call* call = &root;
    call->bytes += number(stack, "bytes");
    for (const json& frame : stack.at("frames")) {
      if (!is_wanted(frame, frames)) continue;
      call = &call->calls[frame.at("at").get<std::string>()];
      call->bytes += number(stack, "bytes");
    }
  }
  return root;
}

void add_lines(const Call& call, std::size_t depth, std::size_t least_bytes, std::vector<std::string>& lines) {
  std::vector<const std::pair<const std::string, Call>*> calls;
  for (const auto& one : call.calls) calls.push_back(&one);
  std::ranges::stable_sort(calls, std::ranges::greater(), [](const auto* one) { return one->second.bytes; });
  for (const auto* one : calls) {
    if (one->second.bytes < least_bytes) continue;
    lines.push_back(fmt::format("{}  {:{}}{}", bytes_cell(one->second.bytes), "", 2 * depth, one->first));
    add_lines(one->second, depth + 1, least_bytes, lines);
  }
}

}  // namespace

std::string kinds_text(const json& kinds) {
  Bytes bytes;
  for (const auto& [kind, count] : kinds.items()) bytes[kind] = count.get<std::size_t>();
  return text_of(bytes);
}

std::vector<std::string> module_lines(const json& modules) {
  const ModuleGroups groups = groups_of(modules);
  std::vector<const ModuleGroups::value_type*> sorted;
  for (const auto& group : groups) sorted.push_back(&group);
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const auto* one) { return one->second.bytes; });
  std::vector<std::string> lines;
  for (const auto* one : sorted) {
    const auto& [path, group] = *one;
    const std::string count = group.modules == 1 ? "" : fmt::format(" ({} modules)", group.modules);
    lines.push_back(fmt::format("{} in {}{}: {}", bytes_cell(group.bytes), path, count, text_of(group.kinds)));
  }
  return lines;
}

std::vector<std::string> call_tree_lines(const json& stacks, Frames frames) {
  constexpr std::size_t kParts = 50;  // 2 %
  const Call root = tree_of(stacks, frames);
  std::vector<std::string> lines;
  add_lines(root, 0, root.bytes / kParts, lines);
  return lines;
}

}  // namespace cachalot::tools
