#include "tools/analysis/sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cachalot::tools {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// "/home/me/gpt/model.py": "gpt/model.py".
std::string_view short_path(std::string_view path) {
  const std::size_t last = path.rfind('/');
  if (last == std::string_view::npos || last == 0) return path;
  const std::size_t before = path.rfind('/', last - 1);
  return before == std::string_view::npos ? path : path.substr(before + 1);
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Returns the name of a module of torch.nn for the file with its forward: "nn.linear" for "linear.py".
std::string module_name(std::string_view file, std::uint32_t line, bool is_innermost) {
  constexpr std::string_view kNn = "/torch/nn/modules/";
  if (contains(file, kNn)) {
    std::string_view name = file_name(file);
    name.remove_suffix(name.ends_with(".py") ? 3 : 0);
    return fmt::format("nn.{}", name);
  }
  // The line in an outer module tells which of its modules was called.
  return is_innermost ? std::string(file_name(file)) : fmt::format("{}:{}", file_name(file), line);
}

constexpr std::string_view kOfSimulator = "/cachalot_simulator/";

}  // namespace

Origin origin_of(std::string_view file) {
  if (contains(file, "/torch/")) return file.ends_with(".py") ? Origin::torch : Origin::machine;
  if (!file.ends_with(".py"))
    return file.starts_with("<") && !file.starts_with("<frozen") ? Origin::own : Origin::machine;
  constexpr std::array<std::string_view, 4> kInstalled = {"/site-packages/", "/dist-packages/", "/lib/python",
                                                          kOfSimulator};
  const bool is_installed =
      std::ranges::any_of(kInstalled, [&](std::string_view part) { return contains(file, part); });
  return is_installed ? Origin::library : Origin::own;
}

Origin Sites::origin(FrameId frame) {
  if (origins_.size() < history_.texts.size()) origins_.resize(history_.texts.size());
  const TextId file = history_.stacks.frame(frame).file;
  std::uint8_t& known = origins_[file];
  if (known == 0) known = static_cast<std::uint8_t>(1 + static_cast<int>(origin_of(history_.texts[file])));
  return static_cast<Origin>(known - 1);
}

bool Sites::is_of_simulator(FrameId frame) const {
  return contains(history_.texts[history_.stacks.frame(frame).file], kOfSimulator);
}

bool Sites::shows(FrameId frame, Frames frames) {
  if (frames == Frames::all) return true;
  const Origin from = origin(frame);
  return from == Origin::own || (frames == Frames::library && from == Origin::library);
}

// Returns the place in code without Python: the operation of autograd or of PyTorch, above the allocator's own calls.
FrameId Sites::machine_place(std::span<const FrameId> calls) const {
  constexpr std::array<std::string_view, 2> kTelling = {"torch::autograd::generated::", "at::_ops::"};
  constexpr std::size_t kFarthest = 60;  // calls: no operation is so deep
  for (const std::string_view start : kTelling) {
    for (const FrameId frame : calls.first(std::min(kFarthest, calls.size()))) {
      if (history_.texts[history_.stacks.frame(frame).function].starts_with(start)) return frame;
    }
  }
  return calls.front();
}

FrameId Sites::place_of(StackId stack, Frames frames) {
  const auto [known, is_new] = places_.try_emplace({stack, frames}, 0);
  if (!is_new) return known->second;
  const std::span<const FrameId> calls = history_.stacks[stack];
  auto found = std::ranges::find_if(calls, [&](FrameId frame) { return shows(frame, frames); });
  if (found == calls.end()) {
    found = std::ranges::find_if(calls, [&](FrameId frame) {
      return origin(frame) != Origin::machine && !is_of_simulator(frame);  // it computes what autograd asked for
    });
  }
  return known->second = found == calls.end() ? machine_place(calls) : *found;
}

StackId Sites::telling_stack(StackId stack, DetailsId details) {
  const StackId forward = history_.details[details].forward_stack;
  if (forward == 0 || stack == 0) return forward == 0 ? stack : forward;
  return origin(place_of(stack)) == Origin::own ? stack : forward;
}

std::string Sites::text_of(FrameId frame) const {
  const StackFrame& one = history_.stacks.frame(frame);
  const std::string_view file = history_.texts[one.file];
  const std::string_view function = history_.texts[one.function];
  if (contains(file, kOfSimulator)) return "a place outside of the program's code";
  if (!file.ends_with(".py") && !file.starts_with("<"))
    return std::string(function.empty() ? file : function.substr(0, function.find_first_of("(<")));
  return fmt::format("{}:{} in {}", short_path(file), one.line, function);
}

const std::string& Sites::module_of(StackId stack) {
  const auto [known, is_new] = modules_.try_emplace(stack);
  if (is_new) known->second = make_module(stack);
  return known->second;
}

std::string Sites::make_module(StackId stack) const {
  constexpr std::size_t kLongest = 400;
  std::string path;
  bool is_innermost = true;
  for (const FrameId id : history_.stacks[stack]) {
    const StackFrame& frame = history_.stacks.frame(id);
    const std::string_view file = history_.texts[frame.file];
    if (history_.texts[frame.function] != "forward" || !file.ends_with(".py")) continue;
    path.insert(0, module_name(file, frame.line, is_innermost).append(is_innermost ? "" : " > "));
    is_innermost = false;
    if (path.size() > kLongest) break;
  }
  return path;
}

void StackTree::add(StackId stack, std::uint64_t bytes, std::uint64_t count) {
  const std::span<const FrameId> calls = history_.stacks[stack];
  std::uint32_t node = 0;
  std::size_t depth = 0;
  const auto count_in = [&](std::uint32_t in) {
    nodes_[in].bytes += bytes;
    nodes_[in].count += count;
  };
  count_in(0);
  for (auto call = calls.rbegin(); call != calls.rend() && depth < kDeepest; ++call) {  // the outermost first
    if (!sites_.shows(*call, frames_)) continue;
    const auto [known, is_new] = ids_.try_emplace({node, *call}, static_cast<std::uint32_t>(nodes_.size()));
    if (is_new) nodes_.push_back({.frame = *call, .parent = node});
    node = known->second;
    count_in(node);
    ++depth;
  }
}

std::vector<std::vector<std::uint32_t>> StackTree::children() const {
  std::vector<std::vector<std::uint32_t>> children(nodes_.size());
  for (std::uint32_t node = 1; node < nodes_.size(); ++node) children[nodes_[node].parent].push_back(node);
  for (std::vector<std::uint32_t>& calls : children) {
    std::ranges::stable_sort(calls, std::greater<>{}, [&](std::uint32_t node) { return nodes_[node].bytes; });
  }
  return children;
}

}  // namespace cachalot::tools
