#include "tools/simulation/simulation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "policy/torch_policy.h"
#include "simulator/device/address_space.h"
#include "tools/base/text_layout.h"
#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {
namespace {

// The purposes of the memory at a PyTorch program's peak, and the code that allocated it: lines of text for a device's
// part of a torch report (simulator/README.md).
using nlohmann::json;
using Bytes = std::map<std::string, std::size_t>;

// Returns the entries of a map, those with most bytes first.
template <typename Map, typename BytesOf>
auto largest_first(const Map& map, BytesOf bytes_of) {
  std::vector<const typename Map::value_type*> entries;
  entries.reserve(map.size());
  for (const auto& entry : map) entries.push_back(&entry);
  std::ranges::stable_sort(entries, std::ranges::greater(), [&](const auto* entry) { return bytes_of(entry->second); });
  return entries;
}

// "12.00 MiB" in a column.
std::string bytes_cell(std::size_t bytes) { return fmt::format("{:>12}", format_bytes(bytes)); }

std::string text_of(const Bytes& kinds) {
  std::vector<std::string> texts;
  for (const auto* kind : largest_first(kinds, std::identity()))
    texts.push_back(fmt::format("{} {}", kind->first, format_bytes(kind->second)));
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

// Groups modules at the greatest depth that leaves few groups.
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
  for (const auto* one : largest_first(call.calls, [](const Call& each) { return each.bytes; })) {
    if (one->second.bytes < least_bytes) continue;
    lines.push_back(fmt::format("{}  {:{}}{}", bytes_cell(one->second.bytes), "", 2 * depth, one->first));
    add_lines(one->second, depth + 1, least_bytes, lines);
  }
}

// Returns "activations 3.10 GiB, parameters 474.70 MiB": what the bytes of `kinds` are for, the most first. "" for none.
std::string kinds_text(const json& kinds) { return text_of(kinds.get<Bytes>()); }

// Returns a line for each group of modules, the largest first: "  1.20 GiB in layers.*.mlp (12 modules): activations ...".
// Numbers in paths are one group; paths are as deep as leaves at most eight groups.
std::vector<std::string> module_lines(const json& modules) {
  const ModuleGroups groups = groups_of(modules);
  std::vector<std::string> lines;
  for (const auto* one : largest_first(groups, [](const ModuleGroup& each) { return each.bytes; })) {
    const auto& [path, group] = *one;
    const std::string count = group.modules == 1 ? "" : fmt::format(" ({} modules)", group.modules);
    lines.push_back(fmt::format("{} in {}{}: {}", bytes_cell(group.bytes), path, count, text_of(group.kinds)));
  }
  return lines;
}

// Returns the tree of the calls that allocated the live memory at the peak, the outermost first. Calls with less than 2 %
// of all of it are left out.
std::vector<std::string> call_tree_lines(const json& stacks, Frames frames) {
  constexpr std::size_t kParts = 50;  // 2 %
  const Call root = tree_of(stacks, frames);
  std::vector<std::string> lines;
  add_lines(root, 0, root.bytes / kParts, lines);
  return lines;
}

// Below a large segment of PyTorch's, reserved memory shows how segments are rounded, and nothing of the program.
constexpr std::size_t kLargeSegment = 20 * kMiB;

constexpr std::array kLibraryNames = {"cuBLAS", "cuDNN", "cuSOLVER", "cuSPARSE"};  // by ContextLibrary
static_assert(kLibraryNames.size() == simulator::kContextLibraries.size());

std::string libraries_text(const simulator::ContextCosts& costs) {
  std::vector<const char*> names;
  for (const simulator::ContextLibrary library : simulator::kContextLibraries) {
    if (costs.of(library) > 0) names.push_back(kLibraryNames[static_cast<std::size_t>(library)]);
  }
  return names.empty() ? "" : fmt::format(" with {}", fmt::join(names, ", "));
}

// Returns what the spread is of: "the context", "NCCL" or "the context and NCCL"; "" without a spread.
std::string estimated_parts(const json& device) {
  std::string text = number(device.at("spread").at("context"), "more_bytes") > 0 ? "the context" : "";
  if (spread_of_others(device).more_bytes > 0) text += text.empty() ? "NCCL" : " and NCCL";
  return text;
}

// Returns "1.40 GiB: an estimate for Tesla T4 with cuBLAS; --context SIZE sets it"; "" if nothing was charged.
std::string describe_context(const json& device) {
  const simulator::ContextCharge charge = context_of(device);
  const std::size_t bytes = charge.costs.total();
  if (bytes == 0) return "";
  if (!charge.estimate) return format_bytes(bytes) + ", as given";
  return fmt::format("{}: an estimate for {}{}; --context SIZE sets it", format_bytes(bytes),
                     device.at("name").get<std::string>(), libraries_text(charge.costs));
}

std::string describe_limits(const json& device) {
  const std::size_t bytes = number(device.at("limits"), "bytes");
  return bytes == 0 ? "" : format_bytes(bytes) + ": stacks, heap or printf buffer that the program made larger";
}

std::string describe_graphs(const json& device) {
  const json& graphs = device.at("graphs");
  if (number(graphs, "bytes") == 0) return "";
  const std::size_t count = number(graphs, "graphs");
  return fmt::format("{}: an estimate, half to twice, for {} executable graph{} with {} kernels",
                     format_bytes(number(graphs, "bytes")), with_commas(count), count == 1 ? "" : "s",
                     with_commas(number(graphs, "kernel_nodes")));
}

// Returns "no memory for cublas, which takes 930.00 MiB, with 266.00 MiB free"; "" if there was memory.
std::string describe_lack(const json& device) {
  if (!device.contains("context_lack")) return "";
  const json& lack = device.at("context_lack");
  return fmt::format("no memory for {}, which takes {}, with {} free", lack.at("for").get<std::string>(),
                     format_bytes(lack.at("bytes").get<std::size_t>()),
                     format_bytes(lack.at("free_bytes").get<std::size_t>()));
}

// Returns "yes, with 7.40 GiB to spare, of which the context may take 311.00 MiB more"; if that is more than there is:
// "probably: 100.00 MiB to spare, but the context may take 311.00 MiB more".
std::string describe_spare(const json& device, std::size_t spare_bytes) {
  const std::size_t more = spread_of(device).more_bytes;
  const std::string spare = format_bytes(spare_bytes);
  if (more == 0) return fmt::format("yes, with {} to spare", spare);
  const std::string may_take = fmt::format("{} may take {} more", estimated_parts(device), format_bytes(more));
  return spare_bytes >= more ? fmt::format("yes, with {} to spare, of which {}", spare, may_take)
                             : fmt::format("probably: {} to spare, but {}", spare, may_take);
}

// Returns what NCCL took of a device at the peak; "" if it took nothing.
std::string describe_nccl(const json& device) {
  const std::size_t all = number(device.at("nccl"), "peak_used_bytes");
  const std::size_t buffers = number(device.at("nccl"), "peak_buffer_bytes");
  if (all == 0) return "";
  if (buffers == 0) return format_bytes(all) + " of it, which the program asked NCCL for";
  const std::string part = all == buffers ? "" : fmt::format("of which {} are ", format_bytes(buffers));
  return fmt::format("{} of it, {}an estimate: half to twice", format_bytes(all), part);
}

// Returns what the program had of managed memory; "" if it had none.
std::string describe_managed(const json& device) {
  const json managed = device.value("managed", json{{"peak_used_bytes", 0}});
  if (number(managed, "peak_used_bytes") == 0) return "";
  const std::size_t on_host = number(managed, "peak_host_bytes");
  return fmt::format("{} at most, {} of it on the device at its peak{}: the driver moves it to the host to make room",
                     bytes_of(managed, "peak_used_bytes"), bytes_of(managed, "at_peak_bytes"),
                     on_host == 0 ? "" : fmt::format(", up to {} on the host", format_bytes(on_host)));
}

// Returns "but the context may take 917.00 MiB less, and then there is memory for this" of a request that failed, if that is
// so; otherwise "".
std::string describe_low_estimate(const json& device, const json& request) {
  const std::size_t less = spread_of(device).less_bytes;
  const std::size_t free = number(request, "free_bytes");
  std::size_t bytes = round_up(number(request, "bytes"), kPhysicalUnit);
  if (bytes <= free) bytes = std::max(bytes, kLargeSegment);  // at most: what PyTorch asks for, of which it is a part
  if (bytes <= free || bytes > free + less) return "";
  return fmt::format("but {} may take {} less, and then there is memory for this", estimated_parts(device),
                     format_bytes(less));
}

void add_if_any(Section& section, std::string_view name, std::string value) {
  if (!value.empty()) section.add_line(std::string(name), std::move(value));
}

// Adds lines under one label.
void add_lines(Section& section, std::string_view name, std::vector<std::string> lines) {
  for (std::string& line : lines) section.add_line(std::string(std::exchange(name, "")), std::move(line));
}

// Says why the history is incomplete: "program's own" instead of its figures, or its end.
void add_history(Section& section, const json& history) {
  if (history.is_string()) {
    section.add_line("", "(the program records memory history itself, so that places in the program are not known)");
  } else if (history.at("cut")) {
    section.add_line("", fmt::format("(only the last {} events are known: the peak may have been earlier, elsewhere)",
                                     with_commas(number(history, "events"))));
  }
}

// "train.py:8 in <module>", but "outside Python code …" without "at".
void add_sites(Section& section, const json& sites) {
  std::size_t width = 0;
  for (const json& site : sites) width = std::max(width, std::to_string(number(site, "allocations")).size());
  for (const json& site : sites) {
    const std::size_t allocations = number(site, "allocations");
    section.add_line("", fmt::format("{:>12} in {:>{}} allocation{} {}", bytes_of(site, "bytes"), allocations, width,
                                     allocations == 1 ? " " : "s", at_place(word(site, "at"))));
  }
}

// After the last step: what stays from one step to the next.
void add_steps(Section& section, const json& steps) {
  if (steps.empty()) return;
  const json& step = steps.back();
  section.add_line(fmt::format("after step {}", number(step, "step")),
                   fmt::format("{}: {}", bytes_of(step, "bytes"), kinds_text(step.at("kinds"))));
}

void add_peak(Section& section, const json& peak, const SimulationReportOptions& options) {
  if (options.frames) {
    add_lines(section, "calls", call_tree_lines(peak.at("stacks"), *options.frames));
  } else {
    add_sites(section, peak.at("sites"));
  }
  section.add_line("used for", kinds_text(peak.at("kinds")));
  add_lines(section, "modules", module_lines(peak.at("modules")));
}

void add_used(Section& section, const json& torch, const SimulationReportOptions& options) {
  section.add_line("used", bytes_of(torch, "peak_allocated_bytes") + " at the peak");
  if (const json& peak = torch.at("peak"); !peak.is_null()) {
    section.add_line("peak at", fmt::format("{} (event {} of {})", word(peak, "at"), with_commas(number(peak, "event")),
                                            with_commas(number(torch.at("history"), "events"))));
    add_peak(section, peak, options);
    add_steps(section, torch.at("steps"));
  }
  add_history(section, torch.at("history"));
}

void add_reserved(Section& section, const json& torch) {
  const std::size_t reserved = number(torch, "peak_reserved_bytes");
  const std::size_t used = number(torch, "peak_allocated_bytes");
  std::string text = format_bytes(reserved) + " at the peak";
  if (reserved < used) {
    text += ", less than used: memory that sleeps is used, but not reserved";
  } else if (used >= kLargeSegment) {
    text += fmt::format(", of which fragmentation and cached memory are {:.1f} %",
                        100 * (1 - static_cast<double>(used) / static_cast<double>(reserved)));
  }
  section.add_line("reserved", std::move(text));
}

void add_driver_calls(Section& section, const json& device) {
  std::vector<std::string> calls;
  for (const auto& [name, count] : device.at("calls").items()) {
    calls.push_back(fmt::format("{} {}", with_commas(count.get<std::size_t>()), name));
  }
  section.add_line("driver calls", fmt::format("{}; they take {:.1f} ms of simulated time", fmt::join(calls, ", "),
                                               device.at("driver_us").get<double>() / 1e3));
  section.add_line("peak at call", fmt::format("allocation {} of {}", number(device.at("peak"), "allocation"),
                                               number(device, "allocations")));
}

// The request that failed: its place, its size and the free memory. One that is smaller than the free memory fails because
// PyTorch asks the GPU for a whole segment.
std::string refused_text(const json& where, const std::string& at) {
  const std::size_t bytes = number(where, "bytes");
  const std::size_t free = number(where, "free_bytes");
  const std::size_t rounded = round_to_block(std::max<std::size_t>(1, bytes));
  const bool is_limited = free >= std::max(segment_size(rounded, kLargeBuffer), rounded);
  const char* const rounding = is_limited      ? ", which a limit of the program forbids,"
                               : bytes <= free ? " (rounded up to a segment)"
                                               : "";
  return fmt::format("out of memory{}, asking for {}{} with {} free", at, format_bytes(bytes), rounding,
                     format_bytes(free));
}

// Returns the request that failed permanently: the last one of PyTorch, whose history, if it exists, knows the place (else null),
// or the first one of the driver.
const json& refused_request(const json& device, const json* torch) {
  return torch != nullptr ? torch->at("last_oom") : device.at("first_failure");
}

// Autograd's threads run no Python: the line that began the backward pass is where the error came out.
std::string place_of_refused(const ProcessReport& report, const json& refused) {
  const auto at = word(refused, "at");
  const json error = report.torch.is_null() ? json() : report.torch.value("ended_by", json());
  if (!at.starts_with("outside") || error.is_null() || !error.contains("at")) return at_place(at);
  return fmt::format("in the backward pass that {} began", word(error, "at"));
}

std::string refused_at_text(const ProcessReport& report, const json& device, const json* torch) {
  const json& refused = refused_request(device, torch);
  if (refused.is_null())
    return fmt::format("out of memory, {}; the place in the program is not known", times_text(number(*torch, "ooms")));
  if (torch != nullptr) return refused_text(refused, " " + place_of_refused(report, refused));
  return refused_text(refused, fmt::format(" at allocation {}", number(refused, "allocation")));
}

// Says how close memory was: the program went on without the requested memory, or PyTorch gave its cache back.
void add_tightness(Section& section, const ProcessReport& report, const json& device, const json* torch) {
  if (ran_out(device, torch)) {
    section.add_line("", "but it was " + refused_at_text(report, device, torch));
    section.add_line("", "the program went on without that memory, and ended well");
  } else if (!device.at("first_failure").is_null()) {
    section.add_line("", fmt::format("but only just: PyTorch had to give back its cached memory {}",
                                     times_text(number(device, "failed_allocations"))));
  }
}

// Describes the device's peak as nvidia-smi shows it. Memory of other processes of the run on the same device counts as
// well.
void add_device_peak(Section& section, const json& device) {
  std::string text = bytes_of(device, "peak_with_context_bytes") + " at the peak";
  if (number(device, "common_peak_bytes") > number(device, "peak_with_context_bytes"))
    text += ", " + bytes_of(device, "common_peak_bytes") + " of all processes together";
  section.add_line("on the device", std::move(text));
}

// Returns the memory of the program and of other processes on the same device, except the program's own context and managed
// memory, which a driver would move to the host.
std::size_t peak_without_context(const json& device) {
  const json managed = device.value("managed", json{{"at_peak_bytes", 0}});
  return number(device, "peak_used_bytes") - number(managed, "at_peak_bytes") + number(device, "common_peak_bytes") -
         number(device, "peak_with_context_bytes");
}

// Adds a table of the GPUs for a program whose allocations are not known one by one: those that hold what it needs and its
// context there, and for which PyTorch has kernels. A question mark is behind answers that the estimates' spread changes.
void add_gpus_for(Section& section, const ProcessReport& report, const json& device) {
  std::vector<std::string> architectures;
  if (!report.torch.is_null()) architectures = report.torch.value("architectures", architectures);
  std::vector<Card> cards = known_cards(context_of(device), spread_of_others(device));
  std::erase_if(cards, [&](const Card& card) { return !has_kernels(card, architectures); });
  std::ranges::stable_sort(cards, {}, &Card::memory_bytes);
  const auto answer = [&](const Card& card) -> std::string {
    const std::size_t needed = peak_without_context(device) + card.context_bytes;
    if (card.memory_bytes < needed) return card.memory_bytes + card.less_bytes < needed ? "no" : "no?";
    return card.memory_bytes >= needed + card.more_bytes ? "yes" : "yes?";
  };
  Table table{.title = "Which GPU",
              .columns = {{.title = "GPU", .is_left = true}, {.title = "memory"}, {.title = "fits", .is_left = true}},
              .label = "fits on",
              .is_wide = true,
              .indent = 16,
              .views = kForPeople};
  bool is_sure = true;
  for (auto first = cards.begin(); first != cards.end();) {
    const std::string text = answer(*first);
    const auto last = std::find_if(first, cards.end(), [&](const Card& card) { return answer(card) != text; });
    table.rows.push_back({text_of_cards({first, last}),
                          memory_text_of({first, last}),
                          {nullptr, text, text.starts_with("yes") ? Mood::good : Mood::bad}});
    is_sure = is_sure && !text.ends_with('?');
    first = last;
  }
  section.add(std::move(table));
  if (!is_sure) section.add_line("", kUnsureText);
}

const CardTable* cards_of(const ProcessReport& report, const json& device) {
  for (const CardTable& table : report.cards) {
    if (device.at("device") == table.run.device) return &table;
  }
  return nullptr;
}

// A server asks how much memory is free, and takes it: the table replays what it took on this GPU.
void add_size_of_server(Section& section, const ProcessReport& report, const json& device) {
  constexpr double kMost = 0.8;
  const json* const torch = torch_of(report, device);
  const double part = static_cast<double>(number(device, "common_peak_bytes")) /
                      static_cast<double>(std::max<std::size_t>(1, number(device, "total_bytes")));
  const bool has_asked = device.value("calls", json::object()).contains("memory_info") ||
                         (torch != nullptr && !torch->value("size_questions", json::array()).empty());
  const bool asked_for_error = torch != nullptr && ran_out(device, torch);  // PyTorch asks as well, for its message
  if (!has_asked || asked_for_error || part < kMost) return;
  section.add_line(
      "", fmt::format("the program asked how much memory there is and took {} of the GPU: if it sizes itself so, a "
                      "smaller GPU may do; try it with --gpu",
                      percent_text(part)));
}

void add_fits_on(Section& section, const ProcessReport& report, const json& device, bool verbose) {
  if (const CardTable* const table = cards_of(report, device)) {
    add_to(section, *table, verbose);
    if (table->run.sized) return;
  } else {
    add_gpus_for(section, report, device);
  }
  add_size_of_server(section, report, device);
}

void add_verdict_line(Section& section, std::string text, Mood mood) {
  section.add(Figure{.label = "fits", .cell = {nullptr, std::move(text), mood}, .is_verdict = true});
}

void add_fits(Section& section, const ProcessReport& report, const json& device, bool failed, bool verbose) {
  const std::size_t peak = number(device, "common_peak_bytes");
  if (failed) {
    add_verdict_line(section, fmt::format("unknown: what ran needed {}", format_bytes(peak)), Mood::plain);
    return;
  }
  const std::size_t spare = number(device, "total_bytes") - peak;
  add_verdict_line(section, describe_spare(device, spare), Mood::good);
  add_tightness(section, report, device, torch_of(report, device));
  add_fits_on(section, report, device, verbose);
  const CardTable* const table = cards_of(report, device);
  if (ran_out(device, torch_of(report, device)) && table != nullptr && !table->run.sized)
    section.add_line("", "it went on without that memory, and may do so on a smaller GPU: try it with --gpu");
}

void add_verdict(Section& section, const Simulation& simulation, const ProcessReport& report, const json& device,
                 bool verbose) {
  const json* const torch = torch_of(report, device);
  const bool program_failed = !simulation.ending.is_good();
  if (const std::string lack = missing_kernels(report, device); !lack.empty()) {
    add_verdict_line(section, "NO: " + lack, Mood::bad);
    if (cards_of(report, device) != nullptr) add_fits_on(section, report, device, verbose);
    return;
  }
  if (!lacked_memory(device, torch, failed(simulation, report)))
    return add_fits(section, report, device, program_failed, verbose);
  const bool torch_ran_out = torch != nullptr && ran_out(device, torch);
  const std::string lack = torch_ran_out ? "" : describe_lack(device);
  const json& refused = lack.empty() ? refused_request(device, torch) : device.at("context_lack");
  add_verdict_line(section, "NO: " + (lack.empty() ? refused_at_text(report, device, torch) : lack), Mood::bad);
  if (!program_failed)
    section.add_line("", fmt::format("this process ended with exit code {}; the program went on, and ended well",
                                     number(report.driver, "exit_status")));
  if (!refused.is_null()) add_if_any(section, "", describe_low_estimate(device, refused));
  if (cards_of(report, device) != nullptr) add_fits_on(section, report, device, verbose);
}

Section device_section(const ProcessReport& report, const json& device, const Simulation& simulation,
                       const SimulationReportOptions& options) {
  const json* const torch = torch_of(report, device);
  Section section = section_of(fmt::format("device {} of process {}: {}, {}", number(device, "device"), report.process,
                                           word(device, "name"), bytes_of(device, "total_bytes")));
  if (torch != nullptr) add_used(section, *torch, options);
  if (torch == nullptr)
    section.add_line("used", bytes_of(device, "peak_used_bytes") + " at the peak, by cudaMalloc and the like");
  if (torch != nullptr && number(*torch, "peak_allocated_bytes") > 0) add_reserved(section, *torch);
  add_device_peak(section, device);
  add_if_any(section, "context", describe_context(device));
  add_if_any(section, "limits", describe_limits(device));
  add_if_any(section, "NCCL", describe_nccl(device));
  add_if_any(section, "CUDA graphs", describe_graphs(device));
  add_if_any(section, "managed", describe_managed(device));
  if (options.verbose) add_driver_calls(section, device);
  add_verdict(section, simulation, report, device, options.verbose);
  return section;
}

// Adds the places where the program read values that were not computed; nothing if computing was off.
void add_values(Section& section, const json& torch) {
  const json& values = torch.at("values");
  if (values.is_null()) return;
  const json& reads = values.at("unknown_reads");
  std::size_t times = 0;
  for (const json& read : reads) times += number(read, "times");
  section.add_line(
      "values", reads.empty() ? "known, wherever the program read one"
                              : fmt::format("unknown, where the program read them {}: what follows may differ on a GPU",
                                            times_text(times)));
  constexpr std::size_t kMostPlaces = 5;
  for (std::size_t i = 0; i < std::min(reads.size(), kMostPlaces); ++i)
    section.add_line("", fmt::format("a {} {} {}", word(reads[i], "how"), at_place(word(reads[i], "at")),
                                     times_text(number(reads[i], "times"))));
  if (reads.size() > kMostPlaces) section.add_line("", fmt::format("and {} more places", reads.size() - kMostPlaces));
  const bool has_sizes = std::ranges::any_of(reads, [](const json& read) { return read.at("how") == "size"; });
  if (has_sizes && values.at("policy") == "zero")
    section.add_line("", "(sizes may be larger on a GPU: --unknown max takes larger ones)");
  if (values.at("compiled"))
    section.add_line("", "(code of torch.compile and Triton computes nothing: its results are unknown)");
}

// The first line, where there is something to tell. Where memory ran out, that is the answer.
void add_ending(Section& section, const Simulation& simulation) {
  const ProgramEnding& ending = simulation.ending;
  if (ending.is_good()) {
    if (ending.ended != Ended::no) section.add(Note{.text = why_it_was_ended(ending), .is_wrapped = false});
    return;
  }
  const char* const answer = lacked_memory(simulation) ? "" : "unknown: ";
  section.add(Note{.text = fmt::format("{}the program ended with {}", answer, how_it_ended(ending)),
                   .is_wrapped = false,
                   .mood = Mood::bad});
  for (const ProcessReport& report : simulation.processes) {  // why SIGSEGV ended it, where the report knows
    if (report.driver.is_null() || report.driver.at("host_access").is_null()) continue;
    const json& access = report.driver.at("host_access");
    section.add(Note{.text = fmt::format("the CPU accessed memory of device {}, at {:#x}: that ends a program on a GPU "
                                         "as well",
                                         number(access, "device"), number(access, "address")),
                     .is_wrapped = false});
  }
}

// Names the cuDNN that planned the program's convolutions; nothing if none did. 91900 is 9.19.0.
void add_cudnn(Section& section, const json& driver) {
  const json& cudnn = driver.at("cudnn");
  if (cudnn.is_null()) return;
  if (!cudnn.at("planned")) {
    section.add_line("cuDNN", "workspaces are not known and missing: a GPU needs more memory than is said here");
    return;
  }
  const std::size_t version = number(cudnn, "version");
  section.add_line("cuDNN", fmt::format("{}.{}.{} plans for this GPU, by its heuristics; the largest workspace has {}",
                                        version / 10000, version / 100 % 100, version % 100,
                                        bytes_of(cudnn, "largest_workspace_bytes")));
}

// Names the libraries with unknown workspaces.
void add_libraries(Section& section, const json& driver) {
  const auto names = driver.at("unknown_workspaces").get<std::vector<std::string>>();
  if (names.empty()) return;
  section.add_line("libraries", fmt::format("workspaces of {} are not known and missing", fmt::join(names, ", ")));
}

void add_process(Section& root, const ProcessReport& report, const Simulation& simulation,
                 const SimulationReportOptions& options) {
  for (const json& device : report.driver.at("devices")) {
    if (number(device, "allocations") > 0 || !describe_lack(device).empty())
      root.add(device_section(report, device, simulation, options));
  }
  Section common = section_of("");
  if (!report.torch.is_null() && !report.torch.at("devices").empty()) add_values(common, report.torch);
  add_cudnn(common, report.driver);
  add_libraries(common, report.driver);
  if (!report.driver.value("is_final", true))
    common.add_line(
        "killed",
        fmt::format("process {} did not end by itself: the figures are those until its last second", report.process));
  if (!common.parts.empty()) root.add(std::move(common));
}

}  // namespace

Section report_of(const Simulation& simulation, const SimulationReportOptions& options) {
  Section root;
  add_ending(root, simulation);
  Section processes;
  for (const ProcessReport& report : simulation.processes) {
    if (!report.driver.is_null()) add_process(processes, report, simulation, options);
  }
  if (processes.parts.empty())
    processes.add(Note{.text = "the program used no memory of the GPU, as far as its processes reported: one that "
                               "SIGKILL or SIGABRT ends in its first second reports nothing",
                       .is_wrapped = false});
  root.add(std::move(processes));
  for (const ProcessReport& report : simulation.processes) {
    add_rules(root, report, options.races);
  }
  return root;
}

std::string to_json(const Simulation& simulation) {
  json processes = json::array();
  for (const ProcessReport& report : simulation.processes) {
    json cards = json::array();
    for (const CardTable& table : report.cards) cards.push_back(json(json_of(table)));
    processes.push_back(
        {{"process", report.process}, {"driver", report.driver}, {"torch", report.torch}, {"cards", std::move(cards)}});
  }
  return json{
      {"exit_code", simulation.ending.exit_code}, {"ending", json_of(simulation.ending)}, {"processes", processes}}
      .dump();
}

}  // namespace cachalot::tools
