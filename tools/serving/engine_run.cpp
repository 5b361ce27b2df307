// fit_by_run of serving_fit.h.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/base/text_layout.h"
#include "tools/serving/serving_fit.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/running_child.h"
#include "tools/simulation/simulation.h"
#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Json text_or_null(const std::string& text, std::string_view default_text) {
  return text == default_text ? Json() : Json(text);
}

// Returns the request in the form that serve.py reads.
Json request_of(const ServedModel& model, const ServingQuestion& question, std::int64_t tokens) {
  return {{"engine", name_of(question.engine)},
          {"model", fs::absolute(model.path).string()},
          {"gpus", question.gpus},
          {"max_model_len", or_null(question.max_model_len)},
          {"utilization", or_null(question.utilization)},
          {"kv_cache_dtype", text_or_null(question.kv_cache_dtype, "auto")},
          {"quantization", text_or_null(question.quantization, "")},
          {"batch", question.batch},
          {"max_num_seqs", or_null(question.max_num_seqs)},
          {"kv_cache_bytes", or_null(question.kv_cache_bytes)},
          {"kv_tokens", question.kv_cache_bytes ? Json(tokens) : Json()}};
}

SimulationOptions options_of(const ServingQuestion& question, const fs::path& request, const fs::path& answer) {
  SimulationOptions options;
  options.program = {python_interpreter(), "-m", "cachalot_simulator.serve", request.string(), answer.string()};
  options.gpu = question.card.model;
  options.memory = std::to_string(question.card.memory_bytes);
  options.devices = static_cast<int>(question.gpus);
  options.is_one_of_many = true;
  return options;
}

// The answer of serve.py, and the figures of the run's report.
struct Told {
  json answer;
  std::size_t cache_bytes = 0;    // where it is known to the byte
  std::size_t context_bytes = 0;  // with the libraries'
  std::size_t peak_bytes = 0;     // of a GPU

  // Returns nullopt for a figure that the log does not have.
  std::optional<double> figure(const char* name) const {
    const json& figures = answer.at("figures");
    return figures.contains(name) ? std::optional(figures.at(name).get<double>()) : std::nullopt;
  }
  std::uint64_t bytes(const char* name) const { return static_cast<std::uint64_t>(figure(name).value_or(0)); }
};

// Returns the largest row of equal blocks of a torch report: the cache, where the log, which rounds, says nearly the same.
std::size_t largest_row_bytes(const json& torch) {
  std::size_t most = 0;
  for (const json& device : torch.value("devices", json::array())) {
    for (const json& row : device.value("rows", json::array()))
      most = std::max(most, number(row, "block_bytes") * row.at("allocations").size());
  }
  return most;
}

bool is_near(std::uint64_t bytes, std::uint64_t logged) {
  constexpr std::uint64_t kPart = 200;
  return std::max(bytes, logged) - std::min(bytes, logged) <= logged / kPart;
}

// `tokens`: of the cache by arithmetic.
Told run(const ServedModel& model, const ServingQuestion& question, std::int64_t tokens) {
  const TemporaryFolder folder;
  const fs::path request = folder.path() / "request.json";
  const fs::path answer = folder.path() / "answer.json";
  std::ofstream(request) << request_of(model, question, tokens);
  const Simulation simulation = simulate(options_of(question, request, answer));
  Told told{.answer = json::parse(std::ifstream(answer), nullptr, /*allow_exceptions=*/false)};
  CACHALOT_REQUIRE(told.answer.is_object(), "{} did not run: it ended with {}; its last lines: {}",
                   name_of(question.engine), how_it_ended(simulation.ending), simulation.output);
  const std::uint64_t logged = told.bytes("kv_bytes") + told.bytes("kv_more_bytes");
  told.cache_bytes = logged;
  for (const ProcessReport& process : simulation.processes) {
    const std::size_t bytes = process.torch.is_null() ? 0 : largest_row_bytes(process.torch);
    if (is_near(bytes, logged)) told.cache_bytes = bytes;
    if (process.driver.is_null()) continue;
    for (const json& device : process.driver.at("devices")) {
      told.context_bytes = std::max(told.context_bytes, context_of(device).total());
      told.peak_bytes = std::max(told.peak_bytes, number(device, "common_peak_bytes"));
    }
  }
  return told;
}

ServingPart part(std::string key, std::uint64_t bytes, std::string rule) {
  return {.key = std::move(key), .bytes = bytes, .least = bytes, .most = bytes, .rule = std::move(rule)};
}

void add_parts(const Told& told, ServingFit& fit) {
  // The log rounds: the exact figure, where it is the same.
  constexpr std::uint64_t kRounding = std::uint64_t{1} << 23;
  const std::uint64_t logged = told.bytes("weights_bytes");
  const std::uint64_t exact = fit.parts.front().bytes;
  const std::uint64_t weights = std::max(exact, logged) - std::min(exact, logged) <= kRounding ? exact : logged;
  const std::uint64_t consumed = told.bytes("consumed_bytes");
  const std::uint64_t other = consumed > weights ? consumed - weights : told.context_bytes;
  fit.parts = {part("weights", weights, "as the engine says"),
               part("activations", told.bytes("activations_bytes"), "at the peak of its profile, of simulated kernels"),
               part("graphs", told.bytes("graphs_bytes") + told.bytes("graphs_more_bytes"),
                    "as it measured them, of simulated graphs"),
               part("other", other, "the context and libraries, an estimate")};
}

}  // namespace

bool is_installed(Engine engine) {
  const std::string code =
      fmt::format("import importlib.util, sys; sys.exit(importlib.util.find_spec('{}') is None)", name_of(engine));
  try {
    const TemporaryFolder folder;
    ChildProgram program;
    program.words = {python_interpreter(), "-c", code};
    program.environment = environment_of_helper();
    program.output_path = (folder.path() / "output").string();
    return run_to_end(std::move(program)).exit_code == 0;
  } catch (const InvalidArgument&) {
    return false;
  }
}

ServingFit fit_by_run(const ServedModel& model, const ServingQuestion& question) {
  ServingFit fit = fit_by_arithmetic(model, question);  // complains before the run
  const Told told = run(model, question, fit.tokens);
  const json& error = told.answer.at("error");
  CACHALOT_REQUIRE(error.is_null() || told.answer.at("lacks_memory").get<bool>(), "{} ended with an error: {}",
                   name_of(question.engine), error.get<std::string>());
  ServingQuestion with_cache = question;
  with_cache.kv_cache_bytes = told.cache_bytes;
  fit = fit_by_arithmetic(model, with_cache);
  fit.question = question;
  fit.origin = fmt::format("a run of {}", told.answer.at("version").get<std::string>());
  fit.budget_bytes = told.figure("budget_bytes") ? told.bytes("budget_bytes") : told.peak_bytes;
  fit.budget_rule = question.kv_cache_bytes ? "--kv-cache-memory" : "the part of the GPU that it takes";
  add_parts(told, fit);
  if (const auto tokens = told.figure("tokens")) fit.tokens = static_cast<std::int64_t>(*tokens);
  if (const auto length = told.figure("max_model_len")) fit.max_model_len = static_cast<std::int64_t>(*length);
  if (const auto requests = told.figure("requests")) fit.requests = *requests;
  if (const auto longest = told.figure("longest")) fit.longest = static_cast<std::int64_t>(*longest);
  fit.fits = error.is_null() && fit.requests >= static_cast<double>(question.batch);
  fit.is_unsure = false;
  return fit;
}

}  // namespace cachalot::tools
