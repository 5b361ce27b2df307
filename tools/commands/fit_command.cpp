// `cachalot fit`: the largest parameters with which a program fits on GPUs that are not there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/base/output_file.h"
#include "tools/base/parallel.h"
#include "tools/base/report_tree.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"
#include "tools/simulation/fit.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/python_server.h"

namespace cachalot::tools {
namespace {

// The rows of one card: one for each combination of fixed values.
using CardRows = std::span<const FitRow>;

std::vector<CardRows> by_card(const FitReport& report) {
  std::vector<CardRows> cards;
  const std::span<const FitRow> all = report.rows;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].card == all[begin].card) ++end;
    cards.push_back(all.subspan(begin, end - begin));
  }
  return cards;
}

bool say_the_same(CardRows one, CardRows other) {
  return one.front().card.memory_bytes == other.front().card.memory_bytes &&
         std::ranges::equal(
             one, other, [](const FitRow& a, const FitRow& b) { return a.fixed == b.fixed && a.largest == b.largest; });
}

using Group =
    std::vector<CardRows>;  // of cards that are one line of the table, or as many lines as there are combinations

std::string name_of(const Group& group) {
  const std::string& first = group.front().front().card.key;
  if (group.size() == 1) return first;
  if (group.size() == 2) return fmt::format("{}, {}", first, group.back().front().card.key);
  return fmt::format("{} and {} more", first, group.size() - 1);
}

std::vector<Group> groups_of(const FitReport& report, bool verbose) {
  std::vector<Group> groups;
  for (const CardRows& card : by_card(report)) {
    const auto same = std::ranges::find_if(groups, [&](const Group& g) { return say_the_same(g.front(), card); });
    if (verbose || same == groups.end()) {
      groups.push_back({card});
    } else {
      same->push_back(card);
    }
  }
  return groups;
}

// "-": not even the smallest value; "256+": the largest that was asked for.
std::string largest_text(const std::optional<std::int64_t>& largest, const Vary& vary) {
  if (!largest) return "-";
  return fmt::format("{}{}", *largest, *largest == vary.values.back() ? "+" : "");
}

Table fit_table(const FitReport& report, bool verbose) {
  const Vary& last = report.vary.back();
  Table table{.title = fmt::format("The largest {} that fits", last.name),
              .columns = {{.title = "GPU", .is_left = true}, {.title = "memory", .unit = Unit::bytes}},
              .is_wide = true,
              .indent = 0,
              .views = kForPeople};
  for (std::size_t i = 0; i + 1 < report.vary.size(); ++i)
    table.columns.push_back({.title = report.vary[i].name, .unit = Unit::count});
  for (const Policy::Heap heap : report.heaps) {
    table.columns.push_back({.title = report.sizes_itself ? "largest" : std::string(name_of(heap)),
                             .unit = Unit::count,
                             .has_text_on_page = true});
  }
  for (const Group& group : groups_of(report, verbose)) {
    std::string name = name_of(group);
    Json memory = group.front().front().card.memory_bytes;
    for (const FitRow& row : group.front()) {
      std::vector<Cell> cells = {std::exchange(name, ""), std::exchange(memory, nullptr)};
      for (const std::int64_t value : row.fixed) cells.emplace_back(value, std::to_string(value));
      for (const Policy::Heap heap : report.heaps) {
        const auto& largest = row.largest[index_of(heap)];
        cells.emplace_back(or_null(largest), largest_text(largest, last));
      }
      table.rows.push_back(std::move(cells));
    }
  }
  return table;
}

// "seq or layers", of those before the last; "" for none.
std::string names_of_ranges(const FitReport& report) {
  std::vector<std::string> names;
  for (auto one = report.vary.begin(); one + 1 < report.vary.end(); ++one) {
    if (one->is_range && one->values.size() > 1) names.push_back(one->name);
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

// "1..256" or "1, 2, 8".
std::string values_text(const Vary& vary) {
  const std::vector<std::int64_t>& values = vary.values;
  const auto steps = static_cast<std::int64_t>(values.size() - 1);
  if (steps > 1 && values.back() - values.front() == steps) return fmt::format("{}..{}", values.front(), values.back());
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string legend(const FitReport& report) {
  const Vary& last = report.vary.back();
  std::string text = fmt::format(
      "The largest {0} of {1} that fits; -: none; +: all. A program that fits with some {0} is assumed to fit with "
      "every smaller one. {2} runs.",
      last.name, values_text(last), with_commas(report.runs));
  if (const std::string names = names_of_ranges(report); !names.empty()) {
    text += fmt::format(" The same is assumed of {}: the rows are those above which, with one policy, {} is smaller.",
                        names, last.name);
  }
  if (!report.is_exact) text += " Approximate: the program does more with memory than allocate and free it.";
  if (report.sizes_itself)
    text += " The program sizes itself to the GPU: it ran on each, and what failed there does not fit.";
  if (!report.left_out.empty()) text += " " + left_out_text(report.left_out) + ".";
  if (report.sizes_itself) return text;
  for (const Policy::Heap heap : kHeaps) {
    if (!tools::line_of(Policy{.heap = heap}, kEnoughBytes).empty())
      text += fmt::format("\n\n{}: {}", name_of(heap), tools::line_of(Policy{.heap = heap}, kEnoughBytes));
  }
  return text;
}

// For people: cards with the same memory and the same answers are one row. `verbose`: a row for each card.
Section report_of(const FitReport& report, bool verbose) {
  Section section;
  section.add(fit_table(report, verbose)).add_gap();
  return section.add(Note{.text = legend(report)});
}

// Returns a JSON object on one line without the newline.
std::string to_json(const FitReport& report) {
  Json json = {{"vary", Json::object()},    {"runs", report.runs},
               {"exact", report.is_exact},  {"sizes_itself", report.sizes_itself},
               {"assumes", "monotonicity"}, {"left_out", Json::array()},
               {"results", Json::array()}};
  for (const Vary& vary : report.vary) json["vary"][vary.name] = vary.values;
  for (const Card& card : report.left_out) json["left_out"].push_back(card.key);
  for (const FitRow& row : report.rows) {
    Json result = {{"gpu", row.card.key}, {"name", row.card.product}, {"memory_bytes", row.card.memory_bytes}};
    result["values"] = Json::object();
    for (std::size_t i = 0; i < row.fixed.size(); ++i) result["values"][report.vary[i].name] = row.fixed[i];
    for (const Policy::Heap heap : kHeaps) result[std::string(key_of(heap))] = or_null(row.largest[index_of(heap)]);
    json["results"].push_back(std::move(result));
  }
  return json.dump();
}

class FitCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "fit",
        .usage = "[OPTIONS] [--] PROGRAM [ARGUMENTS...]",
        .summary = "Find the largest batch size with which a PyTorch program fits, for each GPU and allocator policy",
        .details =
            "PROGRAM is as for `cachalot simulate`; {batch} in its words stands for the value of the parameter batch. "
            "With several --vary, the largest value of the last is found for each combination of the others. Where "
            "one of these is a range, FIRST..LAST, a program that fits with some value of it is assumed to fit with "
            "every smaller one, and the table has only the rows above which the largest value falls.\n\n"
            "The program runs on simulated GPUs of unlimited memory, for some of the values. What it allocates is "
            "replayed on the memory of each GPU with each policy. Between two values that were run, allocations are "
            "computed where they grow linearly, which further runs check. A program that fits with some value is "
            "assumed to fit with every smaller one.\n\n"
            "With --engine, the program is a server of a language model. Where the engine is installed, it runs on "
            "simulated GPUs with the model's config.json and dummy weights, to the end of a warm-up; else its memory "
            "is computed from the config. --vary takes max_model_len, tensor_parallel, quantization and batch "
            "(requests at a time), and --gpu h100x2 is two GPUs that share the model.\n\n"
            "The program's output is not shown. The exit code is 0, or 2 after an error, which one line on standard "
            "error tells; a run that does not end well is one.",
        .examples = {{"The largest batch size for each GPU:",
                      "cachalot fit --vary batch=1..256 --max-steps 2 train.py --batch {batch}"},
                     {"On two GPUs, for each of two lengths:",
                      "cachalot fit --gpu t4 --gpu l4 --vary seq=128,512 --vary batch=1..256 train.py {seq} {batch}"},
                     {"How long a context does vLLM hold on two H100s?",
                      "cachalot fit --engine vllm --model ~/models/Qwen3-32B --gpu h100x2"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("--vary", vary_,
                   "A parameter and its whole numbers: NAME=FIRST..LAST or NAME=VALUE,VALUE,...; may be "
                   "given several times")
        ->type_name("NAME=VALUES")
        ->allow_extra_args(false);
    declare_cards(app, cards_);
    app.add_option("--jobs", jobs_, "How many runs there are at the same time")
        ->type_name("N")
        ->check(CLI::Range(1, kMostJobs))
        ->default_str(
            "the number of processors, or with --scheduler of the workers' threads; 1 with several --devices");
    app.add_option("--scheduler", scheduler_,
                   "Make the runs on the workers of this Dask scheduler, such as tcp://host:8786")
        ->type_name("ADDRESS");
    declare_run(app, run_);
    declare_serving(app, serving_);
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--json", json_, "Also write the results as JSON")->type_name("FILE");
    declare_html(app, html_);
    app.add_flag("-v,--verbose", verbose_, "Print a row for each GPU");
  }

  bool takes_program() const override { return true; }
  void set_program(const std::vector<std::string>& words) override { program_ = words; }

  int run(const Styles& styles) override {
    if (!serving_.engine.empty()) return run_serving(styles);
    CACHALOT_REQUIRE(serving_ == ServingOptions(), "--model and other options of a server need --engine");
    CACHALOT_REQUIRE(!program_.empty(),
                     "no program was given; an example: cachalot fit --vary batch=1..256 train.py --batch {{batch}}");
    FitOptions options;
    options.run = simulation_options(run_);
    options.cards = cards_of(cards_, {});
    for (const std::string& vary : vary_) options.vary.push_back(parse_vary(vary));
    std::optional<Cluster> cluster;
    if (scheduler_.empty()) {
      options.run.program = with_python(program_);
    } else {
      options.run.program = program_;  // with a worker's Python
      options.run.cluster = &cluster.emplace(python_of_program(), scheduler_);
    }
    options.jobs = jobs_.value_or(jobs_by_default(cluster));
    if (!json_.empty()) write_output(json_, "--json", "");
    const FitReport report = fit_with_bar(std::move(options));
    const Section answer = report_of(report, verbose_);
    print(text_of(answer, styles.out));
    if (!html_.empty()) write_html(answer, legend(report));
    if (!json_.empty()) write_output(json_, "--json", to_json(report) + "\n");
    return 0;
  }

 private:
  int run_serving(const Styles& styles) const {
    CACHALOT_REQUIRE(program_.empty(), "--engine {} takes the place of a program, and '{:.60}' is one", serving_.engine,
                     program_.front());
    const ServingAnswer answer = serving_answer(serving_, cards_, vary_, verbose_);
    if (json_ != "-") print(text_of(serving_report(answer.model, answer.varied, answer.fits), styles.out));
    if (!html_.empty()) write_serving_page(html_, answer);
    if (!json_.empty()) write_output(json_, "--json", serving_json(answer.model, answer.fits).dump() + "\n");
    return 0;
  }

  static FitReport fit_with_bar(FitOptions options) {
    ProgressBar bar("fit");
    options.progress = [&](double done) { bar.show(done); };
    return fit(options);
  }

  void write_html(const Section& answer, const std::string& legend) const {
    HtmlReport report{.title = fmt::format("{}", fmt::join(program_, " ")), .command = "cachalot fit"};
    const std::size_t sentence = legend.find(". ") + 1;
    report.verdict.headline = legend.substr(0, sentence);
    for (std::size_t begin = sentence + 1, end = sentence; end != std::string::npos; begin = end + 2) {
      end = legend.find("\n\n", begin);
      report.verdict.paragraphs.push_back(legend.substr(begin, end == std::string::npos ? end : end - begin));
    }
    report.answer = answer;
    write_html_report(html_, report, built_in_rules());
  }

  std::string python_of_program() const {
    const std::string first = with_python(program_).front();
    return is_python_interpreter(first) ? first : python_interpreter();
  }

  // Two programs of several processes at the same time would meet at one port: torchrun's is 29500 unless told.
  int jobs_by_default(const std::optional<Cluster>& cluster) const {
    if (run_.simulation.devices > 1) return 1;
    if (cluster) return std::min(cluster->places(), kMostJobs);
    return processors();
  }

  static constexpr int kMostJobs = 256;

  std::vector<std::string> vary_;
  CardOptions cards_;
  std::optional<int> jobs_;
  std::string scheduler_;
  RunOptions run_;
  ServingOptions serving_;
  std::string json_;
  std::string html_;  // a file; empty: no page
  bool verbose_ = false;
  std::vector<std::string> program_;
};

}  // namespace

std::unique_ptr<Command> make_fit_command() { return std::make_unique<FitCommand>(); }

}  // namespace cachalot::tools
