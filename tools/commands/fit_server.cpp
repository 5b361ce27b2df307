// `cachalot fit --engine`: the servers of shared_options.h.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/models/gpu_models.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"
#include "tools/simulation/fit.h"
#include "tools/simulation/python_program.h"

namespace cachalot::tools {
namespace {

struct Server {
  Card card;
  std::int64_t gpus = 1;
};

bool is_known(const std::string& name) {
  try {
    simulator::find_gpu_model(name);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// "h100x2" is two GPUs of the model h100.
Server server_named(const std::string& name) {
  static const std::regex several("(.+)x([1-9][0-9]?)");
  std::smatch parts;
  if (is_known(name) || !std::regex_match(name, parts, several))
    return {cards_of({.gpus = {name}, .memory = {}}, {}).front()};
  return {cards_of({.gpus = {parts[1]}, .memory = {}}, {}).front(), std::stoll(parts[2])};
}

std::vector<Server> servers_of(const CardOptions& options, bool all) {
  std::vector<Server> servers;
  for (const std::string& name : options.gpus) servers.push_back(server_named(name));
  for (const std::string& size : options.memory)
    servers.push_back({cards_of({.gpus = {}, .memory = {size}}, {}).front()});
  if (!servers.empty()) return servers;
  std::vector<Card> cards = cards_of({}, {});
  std::ranges::stable_sort(cards, {}, &Card::memory_bytes);
  std::set<std::size_t> seen;
  for (Card& card : cards) {
    if (seen.insert(card.memory_bytes).second || all) servers.push_back({std::move(card)});
  }
  return servers;
}

// The values of a parameter, as text: "4096,8192", "1..4" or "none,fp8".
struct VariedValues {
  std::string name;
  std::vector<std::string> values;
};

VariedValues parse_varied(const std::string& text) {
  static constexpr std::array<std::string_view, 4> kNames = {"max_model_len", "tensor_parallel", "quantization",
                                                             "batch"};
  const std::string name = text.substr(0, text.find('='));
  CACHALOT_REQUIRE(
      std::ranges::find(kNames, name) != kNames.end(),
      "--vary {:.60}: a server has no '{:.40}', but max_model_len, tensor_parallel, quantization and batch", text,
      name);
  VariedValues varied{.name = name, .values = {}};
  if (name != "quantization") {
    for (const std::int64_t value : parse_vary(text).values) varied.values.push_back(std::to_string(value));
    return varied;
  }
  for (std::size_t begin = name.size() + 1; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    varied.values.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  CACHALOT_REQUIRE(!varied.values.empty(), "--vary {:.60}: there is no value", text);
  return varied;
}

void set(ServingQuestion& question, const std::string& name, const std::string& value) {
  if (name == "quantization") {
    question.quantization = value;
    return;
  }
  const std::int64_t number = std::stoll(value);
  CACHALOT_REQUIRE(number > 0, "--vary {}: {} must be 1 or more", name, value);
  if (name == "max_model_len") question.max_model_len = number;
  if (name == "tensor_parallel") question.gpus = number;
  if (name == "batch") question.batch = number;
}

// Calls `use` for each combination of the values from the `first` parameter on.
template <typename Use>
void for_each_value(const std::vector<VariedValues>& varied, std::size_t first, ServingQuestion question,
                    const Use& use) {
  if (first == varied.size()) return use(question);
  for (const std::string& value : varied[first].values) {
    set(question, varied[first].name, value);
    for_each_value(varied, first + 1, question, use);
  }
}

}  // namespace

void declare_serving(CLI::App& app, ServingOptions& options) {
  const std::string outer = app.option_defaults()->get_group();
  app.option_defaults()->group("Options of a server");
  app.add_option("--engine", options.engine, "In place of a program, a server of a language model")
      ->type_name("ENGINE")
      ->check(CLI::IsMember({"vllm", "sglang", "transformers"}));
  app.add_option("--model", options.model, "Its config.json, or the folder with it and perhaps with *.safetensors")
      ->type_name("PATH");
  constexpr std::int64_t kMost = 1LL << 30;
  app.add_option("--max-model-len", options.max_model_len, "The longest context (default: the model's)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  app.add_option("--tensor-parallel", options.tensor_parallel,
                 "How many GPUs share the model (default: 1, and 2 with --gpu h100x2)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-num-seqs", options.max_num_seqs, "The most requests at a time (default: the engine's)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  app.add_option("--gpu-memory-utilization", options.utilization,
                 "The part of the memory that the engine takes, as its own option (default: the engine's)")
      ->type_name("PART")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype, "How keys and values are stored")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->capture_default_str();
  app.add_option("--kv-cache-memory", options.kv_cache_memory,
                 "The size of the cache on each GPU, such as 8GiB (default: what is left)")
      ->type_name("SIZE");
  app.add_option("--quantization", options.quantization,
                 "How weights are stored, in place of what the model says: none, fp8, int8, awq, gptq, int4, "
                 "bitsandbytes, mxfp4 or nvfp4")
      ->type_name("METHOD");
  app.add_option(
         "--by", options.by,
         "How: a run of the engine on simulated GPUs, or arithmetic (default: run, where the engine is installed "
         "and --gpu names the GPUs)")
      ->check(CLI::IsMember({"run", "arithmetic"}));
  app.option_defaults()->group(outer);
}

ServingAnswer serving_answer(const ServingOptions& options, const CardOptions& cards,
                             const std::vector<std::string>& vary, bool all) {
  CACHALOT_REQUIRE(!options.model.empty(), "--engine needs --model, a config.json or the folder with it");
  ServingAnswer answer{.model = read_served_model(options.model), .varied = {}, .fits = {}};
  std::vector<VariedValues> varied;
  std::vector<ServingQuestion> questions;
  for (const std::string& one : vary) {
    varied.push_back(parse_varied(one));
    answer.varied.push_back(varied.back().name);
  }
  for (const Server& server : servers_of(cards, all)) {
    CACHALOT_REQUIRE(!options.tensor_parallel || server.gpus == 1 || *options.tensor_parallel == server.gpus,
                     "--gpu {}x{} and --tensor-parallel {} both say how many GPUs share the model: give one",
                     server.card.key, server.gpus, *options.tensor_parallel);
    CACHALOT_REQUIRE(!options.utilization || !std::isnan(*options.utilization),
                     "--gpu-memory-utilization is no number, and must be one from 0.01 to 1");
    ServingQuestion question;
    question.engine = engine_named(options.engine);
    question.card = server.card;
    question.gpus = options.tensor_parallel.value_or(server.gpus);
    question.max_model_len = options.max_model_len;
    question.utilization = options.utilization;
    question.kv_cache_dtype = options.kv_cache_dtype;
    question.quantization = options.quantization;
    question.max_num_seqs = options.max_num_seqs;
    if (options.kv_cache_memory)
      question.kv_cache_bytes = bytes_of_option("--kv-cache-memory", *options.kv_cache_memory);
    for_each_value(varied, 0, question, [&](const ServingQuestion& one) { questions.push_back(one); });
  }
  const bool is_asked_for = options.by == "run";
  const bool by_run = is_asked_for || (options.by.empty() && !cards.gpus.empty() && questions.size() <= kMostOwnRuns &&
                                       is_installed(questions.front().engine));
  CACHALOT_REQUIRE(!is_asked_for || questions.size() <= kMostOwnRuns,
                   "--by run: {} servers were asked for, and {} runs are the most: name fewer by --gpu and --vary",
                   questions.size(), kMostOwnRuns);
  ProgressBar bar("fit");
  for (const ServingQuestion& one : questions) {
    answer.fits.push_back(by_run ? fit_by_run(answer.model, one) : fit_by_arithmetic(answer.model, one));
    if (by_run) bar.show(static_cast<double>(answer.fits.size()) / static_cast<double>(questions.size()));
  }
  return answer;
}

void write_serving_page(const std::string& path, const ServingAnswer& answer) {
  const std::vector<ServingFit>& fits = answer.fits;
  const auto fitting = std::ranges::count_if(fits, &ServingFit::fits);
  HtmlReport page{.title = answer.model.path, .command = "cachalot fit"};
  page.verdict.headline = fits.size() > 1 ? fmt::format("{} of {} servers fit", fitting, fits.size())
                          : fitting == 1  ? "The server fits"
                                          : "The server does not fit";
  page.verdict.paragraphs = {serving_title(answer.model, fits)};
  if (std::ranges::any_of(fits, &ServingFit::is_unsure)) page.verdict.paragraphs.emplace_back(kUnsure);
  page.verdict.is_bad = fitting == 0;
  page.shows_figures = fits.size() == 1;
  page.answer = serving_report(answer.model, answer.varied, fits);
  write_html_report(path, page, built_in_rules());
}

}  // namespace cachalot::tools
