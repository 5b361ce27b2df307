#include "tools/simulation/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "cachalot/errors.h"
#include "simulator/models/gpu_models.h"
#include "tools/base/parallel.h"
#include "tools/simulation/python_server.h"

namespace cachalot::tools {
namespace {

// The runs of a fit: its program with some values in its words, on a simulated GPU of unlimited memory.

// A run that is to be made.
struct FitRun {
  std::string gpu;                   // a key of the table of GPUs
  std::vector<std::int64_t> values;  // of all parameters
  std::function<void(Recording)> done;
};

std::atomic<bool> is_interrupted{false};

// "batch=8 seq=128".
std::string text_of(const std::vector<Vary>& vary, const std::vector<std::int64_t>& values) {
  std::string text;
  for (std::size_t i = 0; i < vary.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : " ", vary[i].name, values[i]);
  }
  return text;
}

// Returns the program's words with the values in their places.
std::vector<std::string> with_values(const std::vector<std::string>& program, const std::vector<Vary>& vary,
                                     const std::vector<std::int64_t>& values) {
  std::vector<std::string> words = program;
  for (std::size_t i = 0; i < vary.size(); ++i) {
    const std::string place = "{" + vary[i].name + "}";
    const std::string value = std::to_string(values[i]);
    bool is_there = false;
    for (std::string& word : words) {
      for (std::size_t at = 0; (at = word.find(place, at)) != std::string::npos; at += value.size()) {
        word.replace(at, place.size(), value);
        is_there = true;
      }
    }
    CACHALOT_REQUIRE(is_there, "--vary {}: the program has no {} in its words", vary[i].name, place);
  }
  return words;
}

// Ctrl-C and SIGTERM end the runs; then we end.
class Interrupts {
 public:
  Interrupts() : interrupt_(std::signal(SIGINT, note)), terminate_(std::signal(SIGTERM, note)) {
    is_interrupted = false;
  }
  ~Interrupts() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGTERM, terminate_);
  }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  static void note(int) { is_interrupted = true; }

  void (*interrupt_)(int);
  void (*terminate_)(int);
};

// Ends the search by replays: a run on one GPU tells nothing of another.
struct SizesItself : std::runtime_error {
  SizesItself() : std::runtime_error("the program sizes itself to the GPU") {}
};

// Makes runs, several at the same time.
//
// The first ones are processes of their own. For the others a fork server imports what the first one has imported, if a run
// of the same values there allocates the same as before.
class FitRuns {
 public:
  // `options` must outlive this.
  explicit FitRuns(const FitOptions& options) : options_(options) {}
  FitRuns(const FitRuns&) = delete;
  FitRuns& operator=(const FitRuns&) = delete;

  // Calls `done` for each run, one at a time. Throws InvalidArgument for the first run that did not end well, and
  // std::runtime_error after SIGINT or SIGTERM. Runs that are under way are ended by a signal, and waited for after a failure.
  void make(std::vector<FitRun> runs) {
    if (!runs.empty() && first_ && !has_tried_to_fork_ && options_.run.cluster == nullptr) begin_to_fork();
    run_in_parallel(runs.size(), options_.jobs, [&](std::size_t i) {
      if (is_interrupted) return;
      try {
        Recording recording = record(runs[i]);
        const std::lock_guard lock(mutex_);
        runs[i].done(std::move(recording));
        tell_progress(runs.size() - i - 1);
      } catch (...) {
        if (!is_interrupted) throw;
      }
    });
    require_uninterrupted();
  }

  // Throws std::runtime_error after SIGINT or SIGTERM.
  void require_uninterrupted() const {
    if (is_interrupted) throw std::runtime_error("interrupted");
  }

  std::size_t count() const { return count_; }
  // Returns whether the replay held the run's memory in each run.
  bool are_exact() const { return are_exact_; }

 private:
  // The first run, by which others are compared.
  struct First {
    std::string gpu;
    std::vector<std::int64_t> values;
    Recording recording;
    std::vector<std::string> modules;  // that it has imported
  };

  Recording record(const FitRun& run) {
    SimulationOptions options = options_.run;
    options.program = with_values(options_.run.program, options_.vary, run.values);
    options.gpu = run.gpu;
    options.memory = unlimited_memory(options.devices);
    options.is_one_of_many = true;
    options.refuses_sizing = true;
    options.fork_server = fork_server_.get();
    options.stop = &is_interrupted;
    Simulation simulation = simulate(options);
    if (sizes_itself(simulation)) throw SizesItself();
    Recording recording;
    recording.is_too_large = lacked_memory(simulation);
    if (recording.is_too_large) return recording;
    const std::string values = text_of(options_.vary, run.values);
    CACHALOT_REQUIRE(simulation.ending.is_good(), "with {} the program ended with {}; its last lines: {}", values,
                     how_it_ended(simulation.ending), simulation.output);
    CACHALOT_REQUIRE(simulation.ending.ended != Ended::unknown_value, "with {} {}", values,
                     why_it_was_ended(simulation.ending));
    for (const RecordedTrace* one : traces_by_device(simulation)) add_part(recording, *one, values);
    CACHALOT_REQUIRE(!recording.parts.empty(), "with {} nothing is known of what the program allocates with PyTorch",
                     values);
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = {run.gpu, run.values, recording, std::move(simulation.modules)};
    return recording;
  }

  void add_part(Recording& recording, const RecordedTrace& one, const std::string& values) {
    CACHALOT_REQUIRE(one.trace.is_held(), "with {} the program makes {} allocations and frees, and {} are the most: {}",
                     values, one.trace.event_count, Trace::kMostHeldEvents, "give --max-steps");
    recording.architectures = one.run.architectures;
    if (one.context.costs.total() >= recording.context.costs.total()) recording.context = one.context;
    recording.parts.push_back({.trace = with_ordered_frees(one.trace), .other_bytes = one.run.other_bytes});
    if (!one.run.heap) return;
    const bool is_exact = MemoryNeed(one.trace).held_bytes({.heap = *one.run.heap}) == one.run.reserved_bytes;
    const std::lock_guard lock(mutex_);
    are_exact_ = are_exact_ && is_exact;
  }

  // A program may do something else where modules are imported before it begins: then all runs stay processes of their own.
  void begin_to_fork() {
    has_tried_to_fork_ = true;
    std::optional<PythonWords> words = python_words(options_.run.program);
    if (!words || first_->modules.empty()) return;
    try {
      fork_server_ =
          std::make_unique<ForkServer>(std::move(words->interpreter), first_->modules, environment_of_fork_server());
      const bool were_exact = are_exact_;
      const Recording again = record({.gpu = first_->gpu, .values = first_->values, .done = nullptr});
      ++count_;
      if (!are_equal(again, first_->recording)) {
        fork_server_.reset();
        are_exact_ = were_exact;
      }
    } catch (const InvalidArgument&) {
      fork_server_.reset();
    }
  }

  // Tells which part of the known runs is done; each run that is left may bring another one.
  void tell_progress(std::size_t left) {
    ++count_;
    const auto done = static_cast<double>(count_);
    if (options_.progress) options_.progress(done / (done + 2 * static_cast<double>(left) + 1));
  }

  const FitOptions& options_;
  Interrupts interrupts_;
  std::mutex mutex_;
  std::size_t count_ = 0;
  bool are_exact_ = true;
  std::optional<First> first_;
  bool has_tried_to_fork_ = false;
  std::unique_ptr<ForkServer> fork_server_;  // none: each run is a process of its own
};

using Values = std::vector<std::int64_t>;

std::int64_t integer(std::string_view text, std::string_view whole) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CACHALOT_REQUIRE(error == std::errc() && end == text.data() + text.size() && value >= 0,
                   "--vary {}: '{}' is not a whole number", whole, text);
  return value;
}

Values range_of(std::string_view first, std::string_view last, std::string_view whole) {
  constexpr std::int64_t kMostValues = 100000;
  const std::int64_t low = integer(first, whole);
  const std::int64_t high = integer(last, whole);
  CACHALOT_REQUIRE(low <= high && high - low < kMostValues,
                   "--vary {}: a range goes from a smaller to a larger number and has at most {} values", whole,
                   kMostValues);
  Values values;
  for (std::int64_t i = 0; i <= high - low; ++i) values.push_back(low + i);
  return values;
}

Values list_of(std::string_view text, std::string_view whole) {
  Values values;
  while (true) {
    const std::size_t comma = text.find(',');
    values.push_back(integer(text.substr(0, comma), whole));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

// Cards on which the program allocated nearly the same with the first values.
struct CardClass {
  std::vector<Card> cards;
  Recording first;
  std::optional<Recording> last;  // with the largest value of the last parameter, and the first values of the others

  const std::string& gpu() const { return cards.front().model; }
  std::set<std::size_t> memory_bytes() const {
    std::set<std::size_t> sizes;
    for (const Card& card : cards) sizes.insert(card.usable_bytes());
    return sizes;
  }
};

Values first_values(const std::vector<Vary>& vary) {
  Values values;
  for (const Vary& one : vary) values.push_back(one.values.front());
  return values;
}

// The classes of all cards. At first each architecture is one, of which one card runs; those that do nearly the same
// become one then.
class Classes {
 public:
  Classes(const FitOptions& options, FitRuns& runs) : options_(options), runs_(runs) {
    std::map<std::string, CardClass> by_capability;
    for (const Card& card : options.cards) by_capability[card.capability].cards.push_back(card);
    for (auto& [capability, one] : by_capability) classes_.push_back(std::move(one));
    std::ranges::stable_sort(classes_, std::greater(), [](const CardClass& one) { return one.cards.size(); });
    run_the_first();
    leave_out();
    run_the_others();
    count_contexts();
    merge();
  }

  const std::vector<CardClass>& all() const { return classes_; }
  const std::vector<Card>& left_out() const { return left_out_; }

 private:
  FitRun run_of(CardClass& one) const {
    return {.gpu = one.gpu(), .values = first_values(options_.vary), .done = [&one](Recording recording) {
              one.first = std::move(recording);
            }};
  }

  // With the largest value as well, which is needed in any case.
  void run_the_first() {
    CardClass& first = classes_.front();
    std::vector<FitRun> wanted = {run_of(first)};
    const Values& last = options_.vary.back().values;
    if (last.size() > 1) {
      wanted.push_back(run_of(first));
      wanted.back().values.back() = last.back();
      wanted.back().done = [&first](Recording recording) { first.last = std::move(recording); };
    }
    runs_.make(std::move(wanted));
  }

  void leave_out() {
    const std::vector<std::string> architectures = classes_.front().first.architectures;
    std::erase_if(classes_, [&](const CardClass& one) {
      if (has_kernels(one.cards.front(), architectures)) return false;
      left_out_.insert(left_out_.end(), one.cards.begin(), one.cards.end());
      return true;
    });
    CACHALOT_REQUIRE(!classes_.empty(), "this PyTorch has no kernels for the {} and the other GPUs that are asked for",
                     left_out_.front().key);
  }

  void run_the_others() {
    std::vector<FitRun> wanted;
    for (CardClass& one : classes_) {
      if (one.first.parts.empty() && !one.first.is_too_large) wanted.push_back(run_of(one));
    }
    runs_.make(std::move(wanted));
  }

  // By the libraries that the program used with the first values.
  void count_contexts() {
    for (CardClass& one : classes_) {
      for (Card& card : one.cards)
        card.context_bytes = simulator::context_bytes(simulator::find_gpu_model(card.model), one.first.context);
    }
  }

  void merge() {
    std::vector<CardClass> merged;
    for (CardClass& one : classes_) {
      const auto same = std::ranges::find_if(
          merged, [&](const CardClass& other) { return are_nearly_equal(other.first, one.first); });
      if (same == merged.end()) {
        merged.push_back(std::move(one));
      } else {
        std::ranges::move(one.cards, std::back_inserter(same->cards));
      }
    }
    classes_ = std::move(merged);
  }

  const FitOptions& options_;
  FitRuns& runs_;
  std::vector<CardClass> classes_;
  std::vector<Card> left_out_;
};

// The search on the cards of a class.
struct Search {
  const CardClass* cards = nullptr;
  FitFrontier frontier;
};

std::vector<Search> searches_of(const FitOptions& options, const std::vector<CardClass>& classes) {
  std::vector<Search> searches;
  for (const CardClass& one : classes) {
    searches.push_back({.cards = &one, .frontier = FitFrontier(options.vary, one.memory_bytes())});
    Search& search = searches.back();
    search.frontier.add({.row = 0, .index = 0}, one.first);
    if (one.last) search.frontier.add({.row = 0, .index = options.vary.back().values.size() - 1}, *one.last);
  }
  return searches;
}

void search_all(const FitOptions& options, std::vector<Search>& searches, FitRuns& runs) {
  while (true) {
    std::vector<FitRun> wanted;
    for (Search& one : searches) {
      runs.require_uninterrupted();
      for (const FitFrontier::Run& run : one.frontier.wanted()) {
        Values values = one.frontier.values_of(run.row);
        values.push_back(options.vary.back().values[run.index]);
        wanted.push_back({.gpu = one.cards->gpu(), .values = values, .done = [&one, run](Recording recording) {
                            one.frontier.add(run, std::move(recording));
                          }});
      }
    }
    if (wanted.empty()) return;
    runs.make(std::move(wanted));
  }
}

// Nullopt: the row says nothing that others do not.
std::optional<FitRow> row_of(const Card& card, std::size_t index, FitFrontier& frontier, const Values& values) {
  FitRow row{.card = card, .fixed = frontier.values_of(index), .largest = {}};
  bool is_corner = false;
  bool is_none = true;
  for (const Policy::Heap heap : kHeaps) {
    const FitQuestion question{.heap = heap, .memory_bytes = card.usable_bytes()};
    const std::optional<std::size_t> largest = frontier.largest(index, question);
    if (largest) row.largest[index_of(heap)] = values[*largest];
    is_corner = is_corner || frontier.is_corner(index, question);
    is_none = is_none && !largest;
  }
  const bool is_all = is_none && frontier.begins_ranges(index);  // none fits in any row
  return !frontier.has_ranges() || is_corner || is_all ? std::optional(std::move(row)) : std::nullopt;
}

std::vector<FitRow> rows_of(const FitOptions& options, std::vector<Search>& searches, const FitRuns& runs) {
  std::vector<FitRow> rows;
  for (Search& one : searches) {
    for (const Card& card : one.cards->cards) {
      runs.require_uninterrupted();
      for (std::size_t index = 0; index < one.frontier.row_count(); ++index) {
        if (std::optional<FitRow> row = row_of(card, index, one.frontier, options.vary.back().values))
          rows.push_back(std::move(*row));
      }
    }
  }
  std::ranges::stable_sort(rows, {}, [](const FitRow& row) {
    return std::tuple(row.card.memory_bytes, row.card.key, row.card.product, row.fixed);
  });
  return rows;
}

// Finds the largest values for a program that sizes itself to the GPU, by runs on each one.
class RunsOnCards {
 public:
  // `options` must outlive this.
  explicit RunsOnCards(const FitOptions& options) : options_(options), combinations_(options.vary, {}) {}

  // Throws as fit does.
  FitReport find() {
    CACHALOT_REQUIRE(
        options_.cards.size() <= kMostOwnRuns,
        "the program sizes itself to the GPU, so that it must run on each of {} GPUs, and {} are the most: "
        "name those that you want with --gpu",
        options_.cards.size(), kMostOwnRuns);
    FitReport report;
    report.vary = options_.vary;
    report.heaps = {Policy::Heap::segments};
    report.sizes_itself = true;
    for (const Card& card : options_.cards) {
      for (std::size_t i = 0; i < combinations_.row_count(); ++i)
        report.rows.push_back({.card = card, .fixed = combinations_.values_of(i), .largest = {}});
    }
    std::ranges::stable_sort(report.rows, {}, [](const FitRow& row) { return row.card.memory_bytes; });
    run_in_parallel(report.rows.size(), options_.jobs, [&](std::size_t i) { fill(report.rows[i]); });
    if (is_interrupted) throw std::runtime_error("interrupted");
    CACHALOT_REQUIRE(has_ended_well_, "no run ended well; {}", failure_);
    report.runs = count_;
    return report;
  }

 private:
  void fill(FitRow& row) {
    const Values& last = options_.vary.back().values;
    FitBounds bounds{.fits = std::nullopt, .does_not = last.size()};
    bounds.bisect([&](std::size_t index) -> std::optional<bool> {
      if (is_interrupted) return std::nullopt;
      Values values = row.fixed;
      values.push_back(last[index]);
      return fits(row.card, values);
    });
    if (bounds.fits) row.largest[index_of(Policy::Heap::segments)] = last[*bounds.fits];
  }

  bool fits(const Card& card, const Values& values) {
    SimulationOptions options = options_.run;
    options.program = with_values(options_.run.program, options_.vary, values);
    options.gpu = card.model;
    options.memory = std::to_string(card.memory_bytes);
    options.is_one_of_many = true;
    options.stop = &is_interrupted;
    const Simulation simulation = simulate(options);
    const bool is_good = simulation.ending.is_good();
    const std::lock_guard lock(mutex_);
    ++count_;
    has_ended_well_ = has_ended_well_ || is_good;
    if (!is_good) {
      failure_ = fmt::format("on {} with {} the program ended with {}; its last lines: {}", card.key,
                             text_of(options_.vary, values), how_it_ended(simulation.ending), simulation.output);
    }
    if (options_.progress) options_.progress(1 - 1 / (1 + static_cast<double>(count_) / 4));
    return is_good;
  }

  const FitOptions& options_;
  const FitFrontier combinations_;
  std::mutex mutex_;
  std::size_t count_ = 0;
  bool has_ended_well_ = false;
  std::string failure_;  // the last one
};

FitReport fit_by_replays(const FitOptions& options, FitRuns& runs) {
  const Classes classes(options, runs);
  std::vector<Search> searches = searches_of(options, classes.all());
  search_all(options, searches, runs);
  return {.vary = options.vary,
          .runs = runs.count(),
          .is_exact = runs.are_exact(),
          .rows = rows_of(options, searches, runs),
          .left_out = classes.left_out()};
}

}  // namespace

Vary parse_vary(std::string_view text) {
  const std::size_t equals = text.find('=');
  CACHALOT_REQUIRE(equals != std::string_view::npos && equals > 0,
                   "--vary {}: it must be NAME=FIRST..LAST or NAME=VALUE,VALUE,…", text);
  const std::string_view values = text.substr(equals + 1);
  const std::size_t dots = values.find("..");
  const bool is_range = dots != std::string_view::npos;
  return {.name = std::string(text.substr(0, equals)),
          .values = is_range ? range_of(values.substr(0, dots), values.substr(dots + 2), text) : list_of(values, text),
          .is_range = is_range};
}

FitReport fit(const FitOptions& options) {
  CACHALOT_REQUIRE(!options.vary.empty(), "no --vary was given, such as --vary batch=1..256");
  CACHALOT_REQUIRE(!options.cards.empty(), "no GPU was given");
  for (auto one = options.vary.begin(); one != options.vary.end(); ++one) {
    CACHALOT_REQUIRE(
        std::none_of(options.vary.begin(), one, [&](const Vary& other) { return other.name == one->name; }),
        "--vary {}: the parameter is given twice", one->name);
  }
  with_values(options.run.program, options.vary, first_values(options.vary));  // complains before the first run
  const FitFrontier complains(options.vary, {});                               // likewise
  FitRuns runs(options);
  try {
    return fit_by_replays(options, runs);
  } catch (const SizesItself&) {
    FitReport report = RunsOnCards(options).find();
    report.runs += runs.count();
    return report;
  }
}

}  // namespace cachalot::tools
