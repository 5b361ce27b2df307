#include "tools/advice/advice_sources.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/gpu_models.h"
#include "tools/advice/advice_report.h"
#include "tools/advice/recorded_programs.h"
#include "tools/cluster.h"
#include "tools/parallel.h"

namespace cachalot::tools {
namespace {

constexpr const char* kUsualGpu = "h100";  // as `cachalot simulate` has it

// What a program takes that uses PyTorch with cuBLAS, unless the user or the file says more.
simulator::ContextCharge charge_of(const std::optional<std::string>& context, std::optional<std::size_t> recorded) {
  simulator::ContextCharge charge;
  if (context == "none") return charge;
  if (context && context != "model") {
    charge.costs.context_bytes = simulator::parse_context_bytes(*context);
  } else if (!context && recorded) {
    charge.costs.context_bytes = *recorded;
  } else {
    using enum simulator::ModuleLoading;
    const auto all = simulator::estimated_context_costs(simulator::find_gpu_model(kUsualGpu), lazy);
    charge.costs.context_bytes = all.context_bytes;
    charge.costs.of(simulator::ContextLibrary::cublas) = all.of(simulator::ContextLibrary::cublas);
    charge.estimate = lazy;
  }
  return charge;
}

ReplayDevice device_like(const Card& card, std::size_t other_bytes) {
  const std::size_t usable = card.usable_bytes();
  return {.gpu = card.key, .memory_bytes = card.memory_bytes, .usable_bytes = usable - std::min(usable, other_bytes)};
}

std::size_t distance(std::size_t one, std::size_t other) { return std::max(one, other) - std::min(one, other); }

// The usual GPU where it has memory enough, otherwise the largest.
ReplayDevice usual_device(const AdvisedProgram& program, const std::vector<Card>& cards) {
  const auto usual = std::ranges::find(cards, kUsualGpu, &Card::key);
  const std::size_t wanted = peak_live_bytes(*program.trace) / 4 * 5;
  if (usual != cards.end() && device_like(*usual, program.other_bytes).usable_bytes >= wanted)
    return device_like(*usual, program.other_bytes);
  return device_like(*std::ranges::max_element(cards, {}, &Card::memory_bytes), program.other_bytes);
}

// Where a recorded program is played.
ReplayDevice device_of(const RecordedProgram& recorded, const std::vector<Card>& cards, bool on_first_card) {
  if (on_first_card) return device_like(cards.front(), recorded.program.other_bytes);
  if (recorded.usable_bytes) {
    const std::size_t usable = *recorded.usable_bytes;
    return {.gpu = "", .memory_bytes = recorded.device_bytes.value_or(usable), .usable_bytes = usable};
  }
  if (!recorded.device_bytes) return usual_device(recorded.program, cards);
  const std::size_t bytes = *recorded.device_bytes;
  Card nearest =
      *std::ranges::min_element(cards, {}, [&](const Card& card) { return distance(card.memory_bytes, bytes); });
  nearest.memory_bytes = bytes;
  return device_like(nearest, recorded.program.other_bytes);
}

Advice advice_about(const RecordedProgram& recorded, const AdviceRequest& request) {
  const std::vector<Card> cards = request.cards(charge_of(request.context, recorded.context_bytes), {});
  return advise(recorded.program, device_of(recorded, cards, request.plays_on_first_card), cards, request.options);
}

Advice failure(const std::string& file, const std::exception& error) {
  Advice advice;
  advice.file = file;
  advice.error = error.what();
  std::ranges::replace(advice.error, '\n', ' ');
  return advice;
}

// Adds what a file comes to.
void advise_file(const std::string& file, const AdviceRequest& request, std::vector<Advice>& advices) {
  try {
    std::vector<Advice> of_file;
    for (const RecordedProgram& recorded : recorded_programs(InputFile(file, "history")))
      of_file.push_back(advice_about(recorded, request));
    std::ranges::move(of_file, std::back_inserter(advices));
  } catch (const std::bad_alloc&) {
    advices.push_back(failure(file, std::runtime_error(file + ": the host has no memory for it")));
  } catch (const std::exception& error) {
    advices.push_back(failure(file, error));
  }
}

std::vector<Advice> advices_of_lines(const std::string& text, const std::string& file) {
  std::vector<Advice> advices;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    advices.push_back(advice_of_json(line));
    advices.back().file = file;  // where it was sent, the worker gave it a name
  }
  return advices;
}

}  // namespace

std::vector<Advice> advise_files(const std::vector<std::string>& files, const AdviceRequest& request) {
  request.cards({}, {});  // an error of the request is not one of each file
  charge_of(request.context, std::nullopt);
  std::vector<Advice> advices;
  AdviceRequest part = request;
  const auto all = static_cast<double>(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    part.options.progress = [&](double done) { request.options.progress((static_cast<double>(i) + done) / all); };
    advise_file(files[i], part, advices);
  }
  return advices;
}

std::vector<Advice> advise_on_cluster(const std::vector<std::string>& files, const AdviceCluster& cluster,
                                      const std::function<void(double done)>& progress) {
  Cluster workers(cluster.python, cluster.scheduler);
  std::vector<std::vector<Advice>> of_files(files.size());
  std::mutex mutex;
  std::size_t done = 0;
  const int waiting = std::min(2 * workers.places(), 512);  // so that no worker waits for the next file
  run_in_parallel(files.size(), waiting, [&](std::size_t i) {
    try {
      if (cluster.sends_files) InputFile(files[i], "history");  // what cannot be opened is told as everywhere
      of_files[i] = advices_of_lines(workers.advise(cluster.words, files[i], cluster.sends_files), files[i]);
    } catch (const std::exception& error) {
      of_files[i] = {failure(files[i], error)};
    }
    const std::lock_guard lock(mutex);
    progress(static_cast<double>(++done) / static_cast<double>(files.size()));
  });
  std::vector<Advice> advices;
  for (std::vector<Advice>& of_file : of_files) std::ranges::move(of_file, std::back_inserter(advices));
  return advices;
}

std::vector<Advice> advise_program(SimulationOptions simulation, const AdviceRequest& request) {
  simulation.memory = unlimited_memory(simulation.devices);
  simulation.is_one_of_many = true;
  std::string words;
  for (const std::string& word : simulation.program) words += (words.empty() ? "" : " ") + word;
  const Simulation run = simulate(simulation);
  CACHALOT_REQUIRE(run.ending.is_good(), "the program ended with {}; its last lines: {}", how_it_ended(run.ending),
                   run.output);
  CACHALOT_REQUIRE(run.ending.ended != Ended::unknown_value, "{}", why_it_was_ended(run.ending));
  std::vector<Advice> advices;
  for (const RecordedTrace* one : traces_by_device(run)) {
    RecordedProgram recorded;
    recorded.program = {.file = words,
                        .device = one->physical_device,
                        .trace = std::make_shared<const Trace>(one->trace),
                        .other_bytes = one->run.other_bytes,
                        .recorded_reserved_bytes = one->run.reserved_bytes};
    const std::vector<Card> cards = request.cards(one->context, one->of_others);
    advices.push_back(
        advise(recorded.program, device_of(recorded, cards, request.plays_on_first_card), cards, request.options));
  }
  CACHALOT_REQUIRE(!advices.empty(), "nothing is known of what the program allocates with PyTorch");
  return advices;
}

}  // namespace cachalot::tools
