#include "tools/simulation/simulation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/environment.h"
#include "cachalot/errors.h"
#include "simulator/base/requests_to_end.h"
#include "simulator/device/simulation_settings.h"
#include "simulator/models/gpu_models.h"
#include "simulator/models/shared_memory_file.h"
#include "tools/base/output_file.h"
#include "tools/base/text_layout.h"
#include "tools/replay/trace_reader.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/python_server.h"
#include "tools/simulation/running_child.h"
#include "tools/simulation/sized_memory.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;
using simulator::ContextLibrary;
using simulator::ModuleLoading;

std::optional<ModuleLoading> loading_of(const json& device) {
  const json& estimate = device.at("context_estimate");
  if (estimate.is_null()) return std::nullopt;
  return estimate == to_string(ModuleLoading::eager) ? ModuleLoading::eager : ModuleLoading::lazy;
}

simulator::Spread read_spread(const json& spread) {
  return {number(spread, "less_bytes"), number(spread, "more_bytes")};
}

}  // namespace

simulator::ContextCharge context_of(const json& device) {
  simulator::ContextCharge charge;
  charge.estimate = loading_of(device);
  charge.costs.context_bytes = device.at("context_bytes").get<std::size_t>();
  const json& libraries = device.at("library_bytes");
  for (const ContextLibrary library : simulator::kContextLibraries)
    charge.costs.of(library) = libraries.value(std::string(to_string(library)), std::size_t{0});
  const json& limits = device.at("limits");
  charge.limit_bytes = number(limits, "bytes");
  charge.limits = {number(limits, "stack_bytes"), number(limits, "heap_bytes"), number(limits, "printf_bytes")};
  const json& graphs = device.at("graphs");
  charge.graph_bytes = number(graphs, "bytes");
  charge.graphs = {number(graphs, "graphs"), number(graphs, "kernel_nodes")};
  return charge;
}

simulator::Spread spread_of(const json& device) { return read_spread(device.at("spread")); }

simulator::Spread spread_of_others(const json& device) {
  const simulator::Spread all = spread_of(device);
  const simulator::Spread context = read_spread(device.at("spread").at("context"));
  return {all.less_bytes - context.less_bytes, all.more_bytes - context.more_bytes};
}

namespace {

namespace fs = std::filesystem;

json read_json(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, false);
}

// "driver-123.json" for kind "driver": 123.
std::optional<int> process_of(const fs::path& path, std::string_view kind) {
  const std::string name = path.stem().string();
  if (!name.starts_with(std::string(kind) + "-")) return std::nullopt;
  return std::atoi(name.c_str() + kind.size() + 1);
}

constexpr int kKilled = 128 + SIGKILL;

// Files in the folder of reports; the first is that of `shared` of CACHALOT_SIM.
constexpr const char* kSharedMemory = "devices";
constexpr const char* kOutput = "output.txt";
constexpr const char* kEnd = "end.json";

void write_end(const fs::path& folder, const ChildEnd& end) {
  const json told = {{"process", end.process}, {"exit_code", end.exit_code}, {"is_late", end.is_late}};
  write_output((folder / kEnd).string(), "the record of a run", told.dump());
}

ChildEnd read_end(const fs::path& folder) {
  const json told = read_json(folder / kEnd);
  CACHALOT_REQUIRE(told.is_object(), "{} is no record of a run", folder.string());
  return {.process = told.at("process"), .exit_code = told.at("exit_code"), .is_late = told.at("is_late")};
}

// Reads the program's ending from its exit code and its processes' reports.
ProgramEnding read_ending(const fs::path& folder, const ChildEnd& end) {
  ProgramEnding ending;
  ending.exit_code = end.exit_code;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::optional<int> process = process_of(entry.path(), "python");
    const json python = process ? read_json(entry.path()) : nullptr;
    if (python.is_object()) add_process(ending, python, *process == end.process);
  }
  // One that was killed has written no report, and nothing is known, unless it killed itself, as a server does whose engine has ended.
  const bool has_report = end.exit_code != kKilled || fs::exists(folder / fmt::format("python-{}.json", end.process));
  if (end.is_late && has_report) {
    ending.ended = Ended::seconds;
    ending.exit_code = 0;
  }
  return ending;
}

// Returns the modules of the program's own process.
std::vector<std::string> read_modules(const fs::path& folder, const ChildEnd& end) {
  const json python = read_json(folder / fmt::format("python-{}.json", end.process));
  return python.is_object() ? python.at("modules").get<std::vector<std::string>>() : std::vector<std::string>{};
}

std::vector<ProcessReport> read_reports(const fs::path& folder) {
  std::map<int, ProcessReport> reports;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto add = [&](std::string_view kind, json ProcessReport::*part) {
      const std::optional<int> process = process_of(entry.path(), kind);
      if (!process) return;
      const json report = read_json(entry.path());
      if (report.is_discarded()) return;  // the process was killed before it could write
      reports[*process].process = *process;
      reports[*process].*part = report;
    };
    add("driver", &ProcessReport::driver);
    add("torch", &ProcessReport::torch);
  }
  std::vector<ProcessReport> used;
  for (auto& [process, report] : reports) {
    if (!report.torch.is_null() || uses_a_device(report.driver) || breaks_rules(report.driver))
      used.push_back(std::move(report));
  }
  return used;
}

// Adds to each device what all processes took of it together at the peak.
void add_common_peaks(const fs::path& folder, std::vector<ProcessReport>& reports) {
  const auto shared = std::make_unique<simulator::SharedMemoryFile>();
  std::ifstream file(folder / kSharedMemory, std::ios::binary);
  file.read(reinterpret_cast<char*>(shared.get()), sizeof(*shared));
  for (ProcessReport& report : reports) {
    if (report.driver.is_null()) continue;
    for (json& device : report.driver.at("devices"))
      device["common_peak_bytes"] = shared->peak_bytes[device.at("physical_device").get<std::size_t>()];
  }
}

// Writes the requests to the driver as the trace of a program without PyTorch: those of the process with the most.
void write_driver_trace(const fs::path& folder, const std::string& path) {
  std::string largest;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!process_of(entry.path(), "log")) continue;
    std::ifstream file(entry.path());
    std::string trace = trace_of_log(file);
    if (trace.size() > largest.size()) largest = std::move(trace);
  }
  write_output(path, "--trace", largest);
}

Card card_of(const simulator::GpuModel& model, const simulator::ContextCharge& context,
             const simulator::Spread& of_others) {
  simulator::Spread spread = simulator::context_spread(model, context);
  spread += of_others;
  return {.key = std::string(model.key),
          .model = std::string(model.key),
          .product = std::string(model.product),
          .capability = fmt::format("{}.{}", model.major, model.minor),
          .memory_bytes = model.memory_bytes,
          .context_bytes = simulator::context_bytes(model, context),
          .less_bytes = spread.less_bytes,
          .more_bytes = spread.more_bytes};
}

// The card that ran: the model of that name and memory, or, with --memory, the model with that memory instead.
Card card_that_ran(const json& device, const simulator::ContextCharge& context) {
  const auto name = device.at("name").get<std::string>();
  const std::size_t bytes = number(device, "total_bytes");
  const auto models = simulator::gpu_models();
  const auto is_named = [&](const simulator::GpuModel& model) { return model.product == name; };
  auto found =
      std::ranges::find_if(models, [&](const auto& model) { return is_named(model) && model.memory_bytes == bytes; });
  const simulator::Spread of_others = spread_of_others(device);
  if (found != models.end()) return card_of(*found, context, of_others);
  found = std::ranges::find_if(models, is_named);
  Card card = found == models.end() ? Card{} : card_of(*found, context, of_others);
  card.key = "--memory";
  card.product = name;
  card.memory_bytes = bytes;
  card.context_bytes = context.total();
  return card;
}

std::optional<Policy::Heap> heap_of(const json& torch) {
  const auto allocator = torch.value("allocator", "");
  if (allocator == "native") return Policy::Heap::segments;
  if (allocator == "expandable_segments") return Policy::Heap::expandable_segments;
  return std::nullopt;
}

// Adds the request that failed: it is freed at once. It may be the program's first.
void add_failed_request(Trace& trace, std::size_t bytes) {
  if (!trace.is_held()) return;
  if (trace.streams.empty()) trace.streams.push_back(nullptr);
  const auto slot = static_cast<std::uint32_t>(trace.slots++);
  trace.events.push_back({.bytes = bytes, .slot = slot, .stream = 0});
  trace.events.push_back({.bytes = 0, .slot = slot, .stream = TraceEvent::kFree});
  trace.event_count += 2;
  ++trace.allocation_count;
  ++trace.failed_requests;
}

std::filesystem::path trace_path(const std::filesystem::path& folder, const ProcessReport& report, int device) {
  return folder / fmt::format("trace-{}-{}.csv", report.process, device);
}

// Returns whether the process allocated anything.
bool has_events(const std::filesystem::path& trace) {
  return std::filesystem::exists(trace) && std::filesystem::file_size(trace) > 0;
}

// Returns the traces that a process wrote into the folder of reports: of each device on which it did not run out of memory, or
// went on without; and with `failures` of the others, too, up to the request that failed.
std::vector<RecordedTrace> recorded_traces(const ProcessReport& report, const std::filesystem::path& folder,
                                           bool ended_well, bool failures) {
  std::vector<RecordedTrace> traces;
  if (report.driver.is_null()) return traces;
  for (const json& device : report.driver.at("devices")) {
    const json* const torch = torch_of(report, device);
    const int ordinal = device.at("device").get<int>();
    const std::filesystem::path path = trace_path(folder, report, ordinal);
    if (torch == nullptr) continue;
    const bool has_failed = ran_out(device, torch) && !ended_well;
    // A trace is missing if the request that failed was the first one, or if the program's own allocator or history tells nothing.
    const bool is_first = has_failed && number(*torch, "allocations") == 0;
    if (!has_events(path) && !is_first) continue;
    if (ran_out(device, torch) && (!failures || torch->at("last_oom").is_null())) continue;
    if (has_failed && number(torch->at("last_oom"), "bytes") > kEnoughBytes) continue;  // no card serves it
    Trace trace;
    if (has_events(path)) trace = read_trace(path.string());
    trace.path = path.string();
    if (has_failed) add_failed_request(trace, number(torch->at("last_oom"), "bytes"));
    const simulator::ContextCharge context = context_of(device);
    const std::size_t reserved = number(*torch, "peak_reserved_bytes");
    // The driver of a smaller card would move managed memory to the host.
    const json managed = device.value("managed", json{{"at_peak_bytes", 0}});
    const std::size_t used = number(device, "peak_used_bytes") - number(managed, "at_peak_bytes");
    const std::size_t of_others = number(device, "common_peak_bytes") - number(device, "peak_with_context_bytes");
    traces.push_back({.run = {.device = ordinal,
                              .card = card_that_ran(device, context),
                              .heap = heap_of(report.torch),
                              .architectures = report.torch.value("architectures", std::vector<std::string>()),
                              .reserved_bytes = reserved,
                              .other_bytes = used - std::min(used, reserved) + of_others,
                              .ran_out = has_failed,
                              .sized = sized_memory(device, *torch, ran_out(device, torch) && ended_well)},
                      .physical_device = device.at("physical_device").get<int>(),
                      .context = context,
                      .of_others = spread_of_others(device),
                      .trace = std::move(trace)});
  }
  return traces;
}

// Returns the timeline of each device whose allocations are known. A trace tells no lines of the program.
std::vector<Timelines> timelines_of(const ProcessReport& report, const fs::path& folder) {
  std::vector<Timelines> timelines;
  if (report.driver.is_null()) return timelines;
  for (const json& device : report.driver.at("devices")) {
    const int number = device.at("device").get<int>();
    const fs::path path = trace_path(folder, report, number);
    if (!has_events(path)) continue;
    History history = read_history(path.string());
    history.path = fmt::format("device {} of process {}", number, report.process);
    for (const DeviceHistory& one : history.devices) {
      DeviceFacts& facts = history.facts.emplace_back();
      facts.device = one.device;
      facts.name = device.at("name").get<std::string>();
      facts.total_bytes = device.at("total_bytes").get<std::uint64_t>();
    }
    timelines.emplace_back(std::move(history));
  }
  return timelines;
}

// Returns the memory of a device that the other processes on it size to it: on another card they take another part.
std::size_t sized_by_others(const Simulation& simulation, const ProcessReport& report, int physical_device) {
  std::size_t bytes = 0;
  for (const ProcessReport& other : simulation.processes) {
    if (&other == &report || other.driver.is_null()) continue;
    for (const json& device : other.driver.at("devices")) {
      const json* const torch = torch_of(other, device);
      if (torch == nullptr || device.at("physical_device").get<int>() != physical_device) continue;
      const std::optional<SizedMemory> sized = sized_memory(device, *torch, /*went_on=*/false);
      bytes += sized ? sized->bytes : 0;
    }
  }
  return bytes;
}

void add_traces(Simulation& simulation, const SimulationOptions& options, const fs::path& folder) {
  for (ProcessReport& report : simulation.processes) {
    report.traces = recorded_traces(report, folder, simulation.ending.is_good(), /*failures=*/!options.is_one_of_many);
    if (options.keeps_timelines) report.timelines = timelines_of(report, folder);
    if (options.is_one_of_many) continue;
    for (RecordedTrace& one : report.traces) {
      const std::size_t sized = sized_by_others(simulation, report, one.physical_device);
      one.run.other_bytes -= std::min(one.run.other_bytes, sized);
      report.cards.push_back(make_card_table(std::move(one.trace), one.run, known_cards(one.context, one.of_others)));
    }
    report.traces.clear();
  }
}

std::string last_lines(const fs::path& path) {
  constexpr std::size_t kMostBytes = 2000;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::string all = text.str();
  while (all.ends_with('\n')) all.pop_back();
  if (all.size() > kMostBytes) {
    all.erase(0, all.size() - kMostBytes);
    if (const std::size_t line = all.find('\n'); line != std::string::npos) all.erase(0, line + 1);
  }
  return all;
}

constexpr const char* kEveryCopy = "8192GiB";  // larger than any memory

using Environment = std::map<std::string, std::string>;  // values by name

Environment our_environment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) environment[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  return environment;
}

// Puts the value before the present one, with a colon between them.
void prepend(std::string& list, const std::string& value) { list.insert(0, list.empty() ? value : value + ":"); }

std::vector<std::string> entries_of(const Environment& environment) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : environment) entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

// Sets a rank's variables as torchrun does, with all devices on one machine of the job.
void describe_rank(Environment& environment, const RankAlone& alone, int devices) {
  environment["RANK"] = std::to_string(alone.rank);
  environment["WORLD_SIZE"] = std::to_string(alone.world_size);
  environment["LOCAL_RANK"] = std::to_string(alone.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(std::min(devices, alone.world_size));
  environment["GROUP_RANK"] = std::to_string(alone.rank / devices);
  environment["MASTER_ADDR"] = "127.0.0.1";
  environment["MASTER_PORT"] = "29500";
}

// Returns the user's settings, overridden by the options.
SimulationSettings settings_of_run(const SimulationOptions& options, const fs::path& reports) {
  SimulationSettings settings = SimulationSettings::of_environment();
  if (options.gpu) settings.set("gpu", *options.gpu);
  if (options.memory) settings.set("memory", *options.memory);
  if (settings.find("context") == nullptr) settings.set("context", "model");
  if (options.context) settings.set("context", *options.context);
  settings.set("devices", std::to_string(options.devices));
  settings.set("report", (reports / "driver-%p.json").string());
  settings.set("observe", reports.string());
  settings.set("compute", options.compute);
  settings.set("unknown", options.unknown);
  if (options.compute == "all") settings.set("copy_bytes", kEveryCopy);
  settings.set("shared", (reports / kSharedMemory).string());
  if (options.rank) settings.set("absent_ranks", "1");
  if (options.strict) settings.set("strict", "1");
  if (options.races) settings.set("races", "1");
  if (options.refuses_sizing) settings.set("sizing", "refused");
  if (options.is_one_of_many) settings.set("traces_only", "1");
  if (options.max_steps) settings.set("max_steps", std::to_string(*options.max_steps));
  if (!options.trace_path.empty()) {
    settings.set("trace", fs::absolute(options.trace_path).string());
    settings.set("log", (reports / "log-%p.txt").string());
  }
  return settings;
}

Environment with_modules(const fs::path& simulator) {
  Environment environment = our_environment();
  prepend(environment["PYTHONPATH"], (simulator / "python").string());
  return environment;
}

Environment with_simulator(const fs::path& simulator) {
  Environment environment = with_modules(simulator);
  prepend(environment["LD_PRELOAD"], (simulator / kSimulatorLibrary).string());
  prepend(environment["LD_LIBRARY_PATH"], (simulator / "driver").string());
  return environment;
}

// Returns the folder of the simulator: what CACHALOT_SIMULATOR names, otherwise beside this command, built or installed.
// Throws InvalidArgument where it is not.
fs::path find_simulator() {
  const auto named = environment("CACHALOT_SIMULATOR");
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  std::vector<fs::path> places = {here / "../simulator", here / ".." / CACHALOT_SIMULATOR_INSTALL_DIR};
  if (named) places = {*named};
  for (const fs::path& place : places) {
    if (fs::exists(place / kSimulatorLibrary)) return fs::canonical(place);
  }
  throw InvalidArgument(fmt::format(
      "{} is not in {}: this cachalot was built without the simulated CUDA runtime, which needs CUDA's headers "
      "(or set CACHALOT_SIMULATOR to its folder)",
      kSimulatorLibrary, places.front().lexically_normal().string()));
}

// Returns the variables, as "NAME=value", of a program whose processes report into a folder.
std::vector<std::string> environment_of_run(const SimulationOptions& options, const fs::path& simulator,
                                            const fs::path& reports) {
  Environment environment = with_simulator(simulator);
  std::erase_if(environment, [](const auto& variable) { return SimulationSettings::is_variable(variable.first); });
  environment["CACHALOT_SIM"] = settings_of_run(options, reports).text();
  if (options.rank) describe_rank(environment, *options.rank, options.devices);
  return entries_of(environment);
}

}  // namespace

// With expandable segments PyTorch reserves addresses for all of it, on each device that it uses; 4 TiB in all are a third of
// those that the simulator has.
std::string unlimited_memory(int devices) {
  constexpr int kGib = 4096;
  constexpr int kLeastGib = 256;
  return fmt::format("{}GiB", std::max(kGib / devices, kLeastGib));
}

// Processes have other numbers in each run.
std::vector<const RecordedTrace*> traces_by_device(const Simulation& simulation) {
  std::vector<const RecordedTrace*> traces;
  for (const ProcessReport& process : simulation.processes) {
    for (const RecordedTrace& one : process.traces) traces.push_back(&one);
  }
  std::ranges::stable_sort(traces, {}, [](const RecordedTrace* one) { return one->physical_device; });
  return traces;
}

const json* torch_of(const ProcessReport& report, const json& device) {
  if (report.torch.is_null()) return nullptr;
  for (const json& torch : report.torch.at("devices")) {
    if (torch.at("device") == device.at("device")) return &torch;
  }
  return nullptr;
}

std::string missing_kernels(const ProcessReport& report, const json& device) {
  if (torch_of(report, device) == nullptr) return "";
  const Card card = card_that_ran(device, context_of(device));
  if (has_kernels(card, report.torch.value("architectures", std::vector<std::string>()))) return "";
  return fmt::format("PyTorch as installed here has no kernels for {}, of compute capability {}", card.product,
                     card.capability);
}

bool ran_out(const json& device, const json* torch) {
  return torch != nullptr ? torch->at("ooms") > 0 : !device.at("first_failure").is_null();
}

bool lacked_memory(const json& device, const json* torch, bool failed) {
  return failed && (device.contains("context_lack") || ran_out(device, torch));
}

bool failed(const Simulation& simulation, const ProcessReport& report) {
  const json error = report.torch.is_null() ? json() : report.torch.value("ended_by", json());
  if (!error.is_null() && !error.at("may_be_of_memory"))
    return false;  // it went on, and then failed for another reason
  const json status = report.driver.is_null() ? json() : report.driver.at("exit_status");
  return !simulation.ending.is_good() || (!status.is_null() && status != 0);
}

bool lacked_memory(const Simulation& simulation) {
  for (const ProcessReport& report : simulation.processes) {
    if (report.driver.is_null()) continue;
    for (const json& device : report.driver.at("devices")) {
      if (lacked_memory(device, torch_of(report, device), failed(simulation, report))) return true;
    }
  }
  return false;
}

bool sizes_itself(const Simulation& simulation) {
  for (const ProcessReport& report : simulation.processes) {
    if (std::ranges::any_of(report.traces, [](const RecordedTrace& one) { return one.run.sized.has_value(); }))
      return true;
    if (report.driver.is_null()) continue;
    for (const json& device : report.driver.at("devices")) {
      const bool has_failed = failed(simulation, report);
      if (!has_failed && ran_out(device, torch_of(report, device))) return true;  // it tried, and went on with less
      const bool is_refused = lacked_memory(device, torch_of(report, device), has_failed);
      if (is_refused && !device.at("memory_info").empty()) return true;
    }
  }
  return false;
}

bool breaks_rules(const Simulation& simulation) {
  return std::ranges::any_of(simulation.processes,
                             [](const auto& one) { return breaks_rules(one.driver) || has_races(one.torch); });
}

namespace {

// The processes that the program has left, and that report into the folder: they write their reports and end.
void end_processes_left(const fs::path& folder) {
  std::vector<pid_t> left = simulator::all_processes();
  const std::string text = fmt::format("observe:{}", folder.string());
  std::erase_if(left, [&](pid_t process) {
    std::ostringstream environment;
    environment << std::ifstream(fmt::format("/proc/{}/environ", process)).rdbuf();
    return environment.str().find(text) == std::string::npos;
  });
  simulator::ask_to_end(std::move(left));
}

}  // namespace

void record_run(const SimulationOptions& options, const fs::path& folder) {
  CACHALOT_REQUIRE(!options.program.empty(), "no program was given");
  const ChildEnd end = run_to_end({.words = options.program,
                                   .environment = environment_of_run(options, find_simulator(), folder),
                                   .output_path = options.is_one_of_many ? (folder / kOutput).string() : "",
                                   .most_seconds = options.max_seconds,
                                   .has_our_signals = !options.is_one_of_many,
                                   .fork_server = options.fork_server,
                                   .stop = options.stop});
  end_processes_left(folder);
  write_end(folder, end);
}

Simulation simulate(const SimulationOptions& options) {
  if (!options.trace_path.empty()) write_output(options.trace_path, "--trace", "");  // now, and not after hours of work
  const TemporaryFolder reports;
  if (options.cluster != nullptr) {
    options.cluster->record(options, reports.path());
  } else {
    record_run(options, reports.path());
  }
  Simulation simulation;
  const ChildEnd end = read_end(reports.path());
  simulation.ending = read_ending(reports.path(), end);
  simulation.processes = read_reports(reports.path());
  add_common_peaks(reports.path(), simulation.processes);
  if (options.is_one_of_many) {
    simulation.output = last_lines(reports.path() / kOutput);
    simulation.modules = read_modules(reports.path(), end);
  }
  const bool is_told = simulation.ending.is_good() || (!options.is_one_of_many && lacked_memory(simulation));
  if (is_told || options.keeps_timelines) add_traces(simulation, options, reports.path());
  const bool by_torch = std::ranges::any_of(simulation.processes, [](const auto& one) { return !one.torch.is_null(); });
  if (!options.trace_path.empty() && !by_torch) write_driver_trace(reports.path(), options.trace_path);
  return simulation;
}

std::vector<std::string> environment_of_helper() { return entries_of(with_modules(find_simulator())); }

std::vector<std::string> environment_of_fork_server() { return entries_of(with_simulator(find_simulator())); }

std::vector<Card> known_cards(const simulator::ContextCharge& context, const simulator::Spread& of_others) {
  std::vector<Card> cards;
  for (const simulator::GpuModel& model : simulator::gpu_models()) cards.push_back(card_of(model, context, of_others));
  return cards;
}

}  // namespace cachalot::tools
