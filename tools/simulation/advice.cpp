#include "tools/simulation/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/base/parallel.h"
#include "tools/base/quoted.h"

namespace cachalot::tools {
namespace {

// These functions choose one of the policies that were replayed, and say so in one sentence.

// The least of those that can be recommended.
const PolicyAdvice& least_of(const Advice& advice) {
  const auto first = std::ranges::find(advice.policies, false, &PolicyAdvice::needs_limit);
  return first == advice.policies.end() ? advice.of_program() : *first;
}

const PolicyAdvice& choice_of(const Advice& advice) {
  const PolicyAdvice& now = advice.of_program();
  std::vector<const PolicyAdvice*> candidates;
  std::vector<PolicyOffer> offers;
  for (const PolicyAdvice& one : advice.policies) {
    if (one.needs_limit && &one != &now) continue;
    candidates.push_back(&one);
    offers.push_back(one.offer);
  }
  const PolicyAdvice& choice = *candidates[choose(offers)];
  return now.ooms > 0 && choice.ooms >= now.ooms ? now : choice;  // less memory that does not do either
}

// Why one that reserves less is not the choice.
std::string reason_against_least(const Advice& advice, const PolicyAdvice& choice) {
  const PolicyAdvice& least = least_of(advice);
  if (least.ooms != choice.ooms || least.peak_reserved_bytes >= choice.peak_reserved_bytes) return "";
  const double part =
      1 - static_cast<double>(least.peak_reserved_bytes) / static_cast<double>(choice.peak_reserved_bytes);
  const bool is_more = least.offer.needs_cachalot && !choice.offer.needs_cachalot;
  return fmt::format(" {} reserves {:.1f} % less: differences below 1 % count as none, and {}.", least.policy,
                     100 * part,
                     is_more                                      ? "it needs cachalot"
                     : least.offer.options > choice.offer.options ? "it sets more"
                                                                  : "its driver calls take longer");
}

std::string percent_less(std::size_t bytes, std::size_t than) {
  const double part = 100 * (1 - static_cast<double>(bytes) / static_cast<double>(std::max<std::size_t>(than, 1)));
  return fmt::format("{:.1f} % {}", part < 0 ? -part : part, part < 0 ? "more" : "less");
}

// Why the program's policy is kept.
std::string reason_to_keep(const Advice& advice) {
  const PolicyAdvice& now = advice.of_program();
  const std::string reserved = fmt::format("it reserves {} for {} requested", format_bytes(now.peak_reserved_bytes),
                                           format_bytes(advice.peak_requested_bytes));
  if (now.ooms == 0) return fmt::format("Keep {}: {}, and no setting saves 1 %.", now_text(advice), reserved);
  return fmt::format("No setting helps: with each of them {} or more fail on {} of memory.",
                     format_count(now.ooms, "allocation"), format_bytes(advice.on.usable_bytes));
}

std::string reason_to_set(const Advice& advice, const PolicyAdvice& choice) {
  const PolicyAdvice& now = advice.of_program();
  // All of it: a part may act under a limit alone.
  constexpr std::string_view kVariable = "PYTORCH_CUDA_ALLOC_CONF=";
  std::string text = "Set PyTorch's default: ";
  if (&choice != &advice.native()) {
    const bool is_variable = choice.line.starts_with(kVariable);
    text = fmt::format("Set {}: ", is_variable ? choice.line.substr(kVariable.size()) : choice.policy);
  }
  if (choice.ooms < now.ooms) {
    text += fmt::format("on {} of memory {} with it, and {} with {}", format_bytes(advice.on.usable_bytes),
                        choice.ooms == 0 ? "no allocation fails" : format_count(choice.ooms, "allocation") + " fail",
                        now.ooms, now_text(advice));
    if (advice.ends_with_failure) text += "; what the program would have asked for next is not known";
  } else {
    text += fmt::format("it reserves {} instead of {}, {}", format_bytes(choice.peak_reserved_bytes),
                        format_bytes(now.peak_reserved_bytes),
                        percent_less(choice.peak_reserved_bytes, now.peak_reserved_bytes));
  }
  if (!choice.smallest_gpu.empty() && !choice.is_smallest_unsure &&
      choice.smallest_gpu_bytes < now.smallest_gpu_bytes) {
    text +=
        fmt::format(", and {} ({}) is enough instead of {} ({})", choice.smallest_gpu,
                    format_bytes(choice.smallest_gpu_bytes), now.smallest_gpu, format_bytes(now.smallest_gpu_bytes));
  }
  return text + "." + reason_against_least(advice, choice);
}

// Why nothing is promised: the replay of the program's own policy is far from what the program reserved. "": it is not.
std::string reason_to_doubt(const Advice& advice) {
  constexpr double kFar = 0.05;
  const PolicyAdvice& now = advice.of_program();
  if (!advice.recorded_reserved_bytes || now.ooms > 0)
    return "";  // the program reserved it without the request that failed
  const auto recorded = static_cast<double>(*advice.recorded_reserved_bytes);
  const double replayed = static_cast<double>(now.peak_reserved_bytes);
  if (std::abs(replayed - recorded) <= kFar * recorded) return "";
  return fmt::format(
      "No advice: the replay with {} reserves {}, and the program itself {}: the history does not tell all that the "
      "program did.",
      now_text(advice), format_bytes(now.peak_reserved_bytes), format_bytes(*advice.recorded_reserved_bytes));
}

Recommendation recommendation_of(const Advice& advice) {
  const PolicyAdvice& now = advice.of_program();
  const PolicyAdvice& choice = choice_of(advice);
  const bool keeps = &choice == &now;
  return {.policy = choice.policy,
          .line = choice.line,
          .saved_bytes = now.peak_reserved_bytes - std::min(now.peak_reserved_bytes, choice.peak_reserved_bytes),
          .sentence = keeps ? reason_to_keep(advice) : reason_to_set(advice, choice)};
}

// The most memory that one of the best `count` policies holds, as soon as `count` policies are known.
class BestHeld {
 public:
  explicit BestHeld(std::optional<std::size_t> count) : count_(count) {}

  void add(const PolicyFigures& figures) {
    if (!count_ || figures.ooms > 0) return;
    const std::lock_guard lock(mutex_);
    held_.insert(std::ranges::upper_bound(held_, figures.peak_held_bytes), figures.peak_held_bytes);
    if (held_.size() >= *count_) most_ = held_[*count_ - 1];
  }
  const std::atomic<std::size_t>* most() const { return &most_; }

 private:
  std::optional<std::size_t> count_;
  std::mutex mutex_;
  std::vector<std::size_t> held_;  // the least first
  std::atomic<std::size_t> most_{kEnoughBytes};
};

// Counts replays that are done.
class Steps {
 public:
  explicit Steps(const std::function<void(double)>& report) : report_(report) {}

  void expect(std::size_t steps) { expected_ += steps; }
  void done() {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (report_) report_(static_cast<double>(done_) / static_cast<double>(std::max(expected_, done_)));
  }

 private:
  const std::function<void(double)>& report_;
  std::mutex mutex_;
  std::size_t expected_ = 0;
  std::size_t done_ = 0;
};

// A policy that was replayed, and what is known of it.
struct Candidate {
  Policy policy;
  std::size_t number = 0;  // in the list of policies, which begins with the simplest
  std::optional<PolicyFigures> figures;
  PolicyAdvice advice;
};

auto rank_of(const Candidate& one) {
  return std::tuple(one.figures->ooms, one.figures->peak_held_bytes, one.figures->driver_us, one.number);
}

Policy without_limit(Policy policy) {
  policy.limit_bytes = 0;
  return policy;
}

Policy without_collection(Policy policy) {
  policy.garbage_collection_threshold = 0;
  return without_limit(policy);
}

class Advising {
 public:
  Advising(const AdvisedProgram& program, const ReplayDevice& on, const AdviceOptions& options)
      : program_(program),
        on_(on),
        options_(options),
        shape_(shape_of(*program.trace)),
        need_(program.trace),
        best_(options.sweep ? options.top : std::nullopt),
        steps_(options.progress) {}

  Advice make(std::vector<Card> gpus) {
    std::ranges::stable_sort(gpus, {}, &Card::memory_bytes);
    std::vector<Policy> policies = options_.sweep ? policies_of_sweep() : usual_policies();
    if (std::ranges::find(policies, program_.policy) == policies.end()) policies.push_back(program_.policy);
    replay_native();
    replay_others(policies);
    replay_collecting(policies);
    std::vector<Candidate> candidates = listed(policies);
    try_on(gpus, candidates);
    if (options_.measures_host_time) measure_host_time(candidates);
    Advice advice = advice_of(std::move(candidates), policies.size());
    for (const Card& gpu : gpus) advice.gpus.push_back(gpu.key);
    return advice;
  }

 private:
  using Figures = std::optional<PolicyFigures>;

  void replay_native() {
    steps_.expect(1);
    const PolicyFigures native = *figures_of(*program_.trace, Policy(), on_.usable_bytes);
    known_[Policy()] = native;
    if (program_.policy != Policy())
      known_[program_.policy] = figures_of(*program_.trace, program_.policy, on_.usable_bytes);
    best_.add(native);
    steps_.done();
    const double fraction = fraction_of(native.peak_held_bytes, on_.memory_bytes);
    limit_bytes_ = static_cast<std::size_t>(fraction * static_cast<double>(on_.memory_bytes));
  }

  // Replays each policy once that is not known.
  void replay(const std::vector<Policy>& policies) {
    std::vector<std::pair<Policy, Figures>> jobs;
    for (const Policy& policy : policies) {
      if (known_.try_emplace(policy, std::nullopt).second) jobs.emplace_back(policy, std::nullopt);
    }
    steps_.expect(jobs.size());
    run_in_parallel(jobs.size(), options_.jobs, [&](std::size_t i) {
      jobs[i].second = figures_of(*program_.trace, jobs[i].first, on_.usable_bytes, best_.most());
      if (jobs[i].second) best_.add(*jobs[i].second);
      steps_.done();
    });
    for (const auto& [policy, figures] : jobs) known_[policy] = figures;
  }

  void replay_others(const std::vector<Policy>& policies) {
    std::vector<Policy> others;
    for (const Policy& policy : policies) {
      if (policy.garbage_collection_threshold == 0) others.push_back(without_idle_options(policy, shape_));
    }
    replay(others);
  }

  void replay_collecting(const std::vector<Policy>& policies) {
    std::vector<Policy> collecting;
    for (const Policy& policy : policies) {
      if (policy.garbage_collection_threshold != 0) collecting.push_back(active(policy));
    }
    std::erase_if(collecting, [](const Policy& policy) { return policy.garbage_collection_threshold == 0; });
    replay(collecting);
  }

  // The policy that holds the same and has no option without effect. Garbage is not collected where no more is ever held than
  // the part of the limit that is left alone.
  Policy active(Policy policy) const {
    policy = without_idle_options(policy, shape_);
    if (policy.garbage_collection_threshold == 0) return policy;
    policy.limit_bytes = limit_bytes_;
    const Policy base = without_collection(policy);
    const auto known = known_.find(base);
    const double left_alone = policy.garbage_collection_threshold * static_cast<double>(limit_bytes_);
    const bool never_collects =
        known != known_.end() && known->second && static_cast<double>(known->second->peak_held_bytes) < left_alone;
    return never_collects ? base : policy;
  }

  // Returns the policies to list, the best first: in a sweep one of those with equal figures, and as many as are
  // requested.
  std::vector<Candidate> listed(const std::vector<Policy>& policies) const {
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < policies.size(); ++i) {
      Candidate one{.policy = policies[i], .number = i, .figures = known_.at(active(policies[i])), .advice = {}};
      const bool is_own = policies[i] == program_.policy;
      if (options_.sweep && !is_own && without_limit(active(policies[i])) != policies[i]) continue;
      if (!one.figures) continue;
      if (one.policy.garbage_collection_threshold != 0) one.policy.limit_bytes = limit_bytes_;
      candidates.push_back(std::move(one));
    }
    std::ranges::sort(candidates, {}, rank_of);
    const std::size_t most = options_.top.value_or(candidates.size());
    std::size_t place = 0;
    std::erase_if(candidates, [&](const Candidate& one) {
      return place++ >= most && one.number != 0 && one.policy != program_.policy;
    });
    for (Candidate& one : candidates) describe(one);
    return candidates;
  }

  void describe(Candidate& one) const {
    one.advice.policy = key_of(one.policy);
    one.advice.line = line_of(one.policy, on_.memory_bytes);
    one.advice.peak_reserved_bytes = one.figures->peak_held_bytes;
    one.advice.ooms = one.figures->ooms;
    one.advice.needs_limit = one.policy.limit_bytes != 0 && one.policy != program_.policy;
    one.advice.driver_us = one.figures->driver_us;
    one.advice.offer = offer_of(one.policy, *one.figures, program_.policy);
  }

  void try_on(const std::vector<Card>& gpus, std::vector<Candidate>& candidates) {
    steps_.expect(candidates.size());
    run_in_parallel(candidates.size(), options_.jobs, [&](std::size_t i) {
      try_on(gpus, candidates[i]);
      steps_.done();
    });
  }

  void try_on(const std::vector<Card>& gpus, Candidate& one) const {
    const Policy policy = active(one.policy);
    const bool completes = one.figures->ooms == 0 && policy.limit_bytes == 0;
    MemoryNeed need = need_;
    if (completes) need.set_held(policy, one.figures->peak_held_bytes);
    const auto left = [&](std::size_t bytes) { return bytes - std::min(bytes, program_.other_bytes); };
    for (const Card& gpu : gpus) {
      if (program_.ends_with_failure || !need.fits(policy, left(gpu.usable_bytes()))) continue;
      one.advice.gpus.push_back(gpu.key);
      if (!one.advice.smallest_gpu.empty()) continue;
      one.advice.smallest_gpu = gpu.key;
      one.advice.smallest_gpu_bytes = gpu.memory_bytes;
      one.advice.is_smallest_unsure = !need.fits(policy, left(gpu.least_usable_bytes()));
    }
  }

  // One at a time: threads that share the machine's caches would be in the times.
  void measure_host_time(std::vector<Candidate>& candidates) {
    steps_.expect(candidates.size());
    for (Candidate& one : candidates) {
      one.advice.ns_per_event = host_ns_per_event(*program_.trace, one.policy, on_.usable_bytes);
      steps_.done();
    }
  }

  Advice advice_of(std::vector<Candidate> candidates, std::size_t settings) const {
    Advice advice;
    advice.file = program_.file;
    advice.device = program_.device;
    advice.events = program_.trace->event_count;
    advice.ends_with_failure = program_.ends_with_failure;
    advice.peak_requested_bytes = need_.live_bytes();
    advice.failed_requests = program_.trace->failed_requests;
    advice.on = on_;
    advice.recorded_reserved_bytes = program_.recorded_reserved_bytes;
    advice.settings = settings;
    advice.policy = key_of(program_.policy);
    advice.replays = known_.size();
    for (Candidate& one : candidates) advice.policies.push_back(std::move(one.advice));
    const std::string nothing = program_.too_short.empty() ? reason_to_doubt(advice) : program_.too_short;
    advice.recommendation =
        nothing.empty() ? recommendation_of(advice)
                        : Recommendation{.policy = advice.policy, .line = "", .saved_bytes = 0, .sentence = nothing};
    return advice;
  }

  const AdvisedProgram& program_;
  const ReplayDevice& on_;
  const AdviceOptions& options_;
  ProgramShape shape_;
  MemoryNeed need_;
  BestHeld best_;
  Steps steps_;
  std::size_t limit_bytes_ = 0;      // for garbage collection: what PyTorch's default holds
  std::map<Policy, Figures> known_;  // nullopt: more than the best
};

}  // namespace

const PolicyAdvice& Advice::native() const {
  return *std::ranges::find(policies, key_of(Policy()), &PolicyAdvice::policy);
}

const PolicyAdvice& Advice::of_program() const { return *std::ranges::find(policies, policy, &PolicyAdvice::policy); }

std::string now_text(const Advice& advice) {
  return &advice.of_program() == &advice.native() ? "PyTorch's default" : advice.policy;
}

Advice advise(const AdvisedProgram& program, const ReplayDevice& on, const std::vector<Card>& gpus,
              const AdviceOptions& options) {
  return Advising(program, on, options).make(gpus);
}

namespace {

constexpr std::size_t kMostColumns = 8;  // of GPUs
constexpr std::string_view kNoSetting = "(PyTorch's default)";

double overhead_of(std::size_t reserved, std::size_t requested) {
  return requested == 0 ? 0 : static_cast<double>(reserved) / static_cast<double>(requested) - 1;
}

std::string overhead_text(std::size_t reserved, std::size_t requested) {
  return requested == 0 ? "-" : fmt::format("{:.1f} %", 100 * overhead_of(reserved, requested));
}

std::string smallest_text(const PolicyAdvice& one, const Advice& advice) {
  if (one.smallest_gpu.empty()) return advice.ends_with_failure ? "not known" : "none";
  return fmt::format("{}{}", one.smallest_gpu, one.is_smallest_unsure ? "?" : "");
}

std::string host_text(const PolicyAdvice& one, const PolicyAdvice& native) {
  if (one.ns_per_event == 0 || native.ns_per_event == 0) return "-";
  return fmt::format("{:.2f}", one.ns_per_event / native.ns_per_event);
}

bool has_columns(const Advice& advice) { return !advice.gpus.empty() && advice.gpus.size() <= kMostColumns; }

// Adds for each GPU whether the program completes there.
void add_answers(std::vector<Cell>& row, const PolicyAdvice& one, const Advice& advice) {
  for (const std::string& gpu : advice.gpus) {
    const bool completes = std::ranges::find(one.gpus, gpu) != one.gpus.end();
    const std::string answer = advice.ends_with_failure ? "?" : completes ? "yes" : "no";
    row.emplace_back(nullptr, answer, completes ? Mood::good : Mood::bad);
  }
}

Table policies_table(const Advice& advice) {
  const PolicyAdvice& native = advice.native();
  Table table{.key = "policies",
              .title = fmt::format("Policies for {}", advice.file),
              .note = fmt::format("Replayed on {}; the best first.", format_bytes(advice.on.memory_bytes)),
              .columns = {{.key = "peak_reserved_bytes", .title = "reserved", .unit = Unit::bytes, .width = 10},
                          {.key = "overhead", .title = "over", .unit = Unit::part, .width = 8},
                          {.key = "ooms", .title = "fails", .unit = Unit::count, .width = 6},
                          {.title = "smallest GPU", .width = 15, .is_left = true, .views = kForPeople},
                          {.title = "driver ms", .unit = Unit::number, .width = 9, .views = kForPeople},
                          {.key = "host_time", .title = "host", .unit = Unit::number, .width = 5},
                          {.key = "policy", .title = "policy", .views = kNotInText},
                          hidden_column("driver_us"),
                          hidden_column("smallest_gpu"),
                          hidden_column("smallest_gpu_bytes"),
                          hidden_column("smallest_gpu_unsure"),
                          hidden_column("gpus"),
                          hidden_column("ns_per_event"),
                          hidden_column("line")},
              .indent = 0};
  if (has_columns(advice)) {
    for (const std::string& gpu : advice.gpus) table.columns.push_back({.title = " " + gpu, .views = kForPeople});
  }
  table.columns.push_back({.title = "to set", .views = kForPeople});
  for (const PolicyAdvice& one : advice.policies) {
    const bool has_host = one.ns_per_event > 0;
    const double driver_ms = one.driver_us / 1000;
    const bool has_gpu = !one.smallest_gpu.empty();
    const Json host = has_host && native.ns_per_event > 0 ? Json(one.ns_per_event / native.ns_per_event) : nullptr;
    std::vector<Cell> row = {one.peak_reserved_bytes,
                             {overhead_of(one.peak_reserved_bytes, advice.peak_requested_bytes),
                              overhead_text(one.peak_reserved_bytes, advice.peak_requested_bytes)},
                             {one.ooms, std::to_string(one.ooms)},
                             smallest_text(one, advice),
                             {driver_ms, fmt::format("{:.1f}", driver_ms)},
                             {host, host_text(one, native)},
                             one.policy,
                             one.driver_us,
                             has_gpu ? Json(one.smallest_gpu) : nullptr,
                             has_gpu ? Json(one.smallest_gpu_bytes) : nullptr,
                             one.is_smallest_unsure,
                             one.gpus,
                             has_host ? Json(one.ns_per_event) : nullptr,
                             one.line};
    if (has_columns(advice)) add_answers(row, one, advice);
    row.emplace_back(nullptr, one.line.empty() ? std::string(kNoSetting) : one.line,
                     one.policy == advice.recommendation.policy ? Mood::good : Mood::plain);
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string place_text(const Advice& advice) {
  const std::string usable = format_bytes(advice.on.usable_bytes);
  return advice.on.gpu.empty() || advice.on.gpu == usable ? usable : fmt::format("{} ({})", usable, advice.on.gpu);
}

// Says how exact the figures of the program's own policy are.
std::string exactness_text(const Advice& advice) {
  if (!advice.recorded_reserved_bytes) return "";
  const std::size_t recorded = *advice.recorded_reserved_bytes;
  if (advice.of_program().peak_reserved_bytes == recorded)
    return fmt::format("The program itself reserved {}, as the replay with {}.\n", format_bytes(recorded),
                       now_text(advice));
  for (const PolicyAdvice& one : advice.policies) {
    if (one.peak_reserved_bytes == recorded)
      return fmt::format("The program itself reserved {}, as the replay with {}.\n", format_bytes(recorded),
                         one.policy);
  }
  return fmt::format("The program itself reserved {}; the replay with {}, {}.\n", format_bytes(recorded),
                     now_text(advice), format_bytes(advice.of_program().peak_reserved_bytes));
}

constexpr std::string_view kAdviceLegend =
    "reserved: the most memory that the allocator takes from the GPU; over: how much that is over what is requested at "
    "once. fails: allocations without memory. smallest GPU: the one that completes, with the context's share. driver: "
    "simulated time of its calls. host: time of a malloc or free, 1 is PyTorch's default in this run.";

// A file that was read, with most bytes to be saved first; then the others.
bool comes_before(const Advice& one, const Advice& other) {
  if (one.error.empty() != other.error.empty()) return one.error.empty();
  return one.recommendation.saved_bytes > other.recommendation.saved_bytes;
}

std::string name_of(const Advice& advice) {
  const std::string file = printable(advice.file);
  return advice.device == 0 ? file : fmt::format("{} device {}", file, advice.device);
}

Table fleet_table(const std::vector<Advice>& advices) {
  Table table{.title = "All files",
              .note = "The file with most memory to be saved comes first.",
              .columns = {{.title = "saved", .unit = Unit::bytes, .width = 10, .unknown = "-"},
                          {.title = "reserved", .unit = Unit::bytes, .width = 10, .unknown = "-"},
                          {.title = "requested", .unit = Unit::bytes, .width = 10, .unknown = "-"},
                          {.title = "fails", .unit = Unit::count, .width = 6, .unknown = "-"},
                          {.title = "recommended", .is_left = true},
                          {.title = "to set", .views = kPageAlone},
                          {.title = "program"}},
              .indent = 0,
              .views = kForPeople};
  for (const Advice& advice : advices) {
    if (advice.error.empty()) {
      table.rows.push_back({advice.recommendation.saved_bytes, advice.of_program().peak_reserved_bytes,
                            advice.peak_requested_bytes, advice.of_program().ooms, advice.recommendation.policy,
                            advice.recommendation.line, name_of(advice)});
    } else {
      table.rows.push_back({nullptr, nullptr, nullptr, nullptr, "error", "", advice.error});
    }
  }
  return table;
}

// "Together … can be saved: heap:pages for 3 programs, native for 1."
std::string fleet_sentence(const std::vector<Advice>& advices) {
  std::size_t saved = 0;
  std::size_t reserved = 0;
  std::size_t failed = 0;
  std::map<std::string, std::size_t> counts;
  for (const Advice& advice : advices) {
    if (!advice.error.empty()) {
      ++failed;
      continue;
    }
    saved += advice.recommendation.saved_bytes;
    reserved += advice.of_program().peak_reserved_bytes;
    ++counts[advice.recommendation.policy];
  }
  std::vector<std::pair<std::string, std::size_t>> by_count(counts.begin(), counts.end());
  std::ranges::stable_sort(by_count, std::ranges::greater(), &std::pair<std::string, std::size_t>::second);
  std::string text = fmt::format("{} of {} reserved can be saved", format_bytes(saved), format_bytes(reserved));
  for (std::size_t i = 0; i < by_count.size(); ++i) {
    text += fmt::format("{}{} for {}", i == 0 ? ": " : ", ", by_count[i].first,
                        format_count(by_count[i].second, "program"));
  }
  if (failed > 0) text += fmt::format("; {} cannot be read", format_count(failed, "file"));
  return text + ".";
}

}  // namespace

Section report_of(const Advice& advice) {
  Section section(name_of(advice));
  section.add_value("file", advice.file);
  if (!advice.error.empty()) return section.add_value("error", advice.error);
  section.add_value("device", advice.device).add_value("events", advice.events);
  section.add_value("peak_requested_bytes", advice.peak_requested_bytes);
  section.add_value("failed_requests", advice.failed_requests);
  Section on = object_of("on");
  on.add_value("gpu", advice.on.gpu.empty() ? Json(nullptr) : Json(advice.on.gpu));
  on.add_value("memory_bytes", advice.on.memory_bytes).add_value("usable_bytes", advice.on.usable_bytes);
  section.add(std::move(on)).add_value("recorded_reserved_bytes", or_null(advice.recorded_reserved_bytes));
  section.add_value("gpus", advice.gpus).add_value("settings", advice.settings);
  section.add_value("ends_with_failure", advice.ends_with_failure).add_value("replays", advice.replays);
  section.add_value("policy", advice.policy);
  section.add(
      Note{.text = fmt::format("  {} events, {} requested at the peak, played on {}", with_commas(advice.events),
                               format_bytes(advice.peak_requested_bytes), place_text(advice)),
           .is_wrapped = false});
  if (advice.replays < advice.settings)
    section.add(Note{.text = fmt::format("  {} of {} settings were played; the others do the same as one of these",
                                         advice.replays, advice.settings),
                     .is_wrapped = false});
  section.add(policies_table(advice)).add_gap();
  section.add(Note{.text = std::string(kAdviceLegend)});
  if (std::string exactness = exactness_text(advice); !exactness.empty())
    section.add(Note{.text = std::move(exactness)});
  if (advice.ends_with_failure)
    section.add(
        Note{.text = "The history ends where memory ran out: which GPU is enough for the whole program is not known."});
  section.add(Note{.text = advice.recommendation.sentence, .is_bold = true});
  Section recommendation = object_of("recommendation");
  recommendation.add_value("policy", advice.recommendation.policy).add_value("line", advice.recommendation.line);
  recommendation.add_value("saved_bytes", advice.recommendation.saved_bytes);
  recommendation.add_value("sentence", advice.recommendation.sentence);
  return section.add(std::move(recommendation));
}

Section fleet_report(std::vector<Advice> advices) {
  std::ranges::stable_sort(advices, comes_before);
  Section section;
  section.add(fleet_table(advices)).add_gap();
  return section.add(Note{.text = fleet_sentence(advices), .is_bold = true});
}

namespace {

PolicyAdvice policy_of_json(const Json& json) {
  PolicyAdvice one;
  one.policy = json.at("policy");
  one.line = json.at("line");
  one.peak_reserved_bytes = json.at("peak_reserved_bytes");
  one.ooms = json.at("ooms");
  one.driver_us = json.at("driver_us");
  if (!json.at("smallest_gpu").is_null()) {
    one.smallest_gpu = json.at("smallest_gpu");
    one.smallest_gpu_bytes = json.at("smallest_gpu_bytes");
  }
  one.is_smallest_unsure = json.at("smallest_gpu_unsure");
  one.gpus = json.at("gpus").get<std::vector<std::string>>();
  if (!json.at("ns_per_event").is_null()) one.ns_per_event = json.at("ns_per_event");
  return one;
}

Advice advice_of(const Json& json) {
  Advice advice;
  advice.file = json.at("file");
  if (json.contains("error")) {
    advice.error = json.at("error");
    return advice;
  }
  advice.device = json.at("device");
  advice.events = json.at("events");
  advice.peak_requested_bytes = json.at("peak_requested_bytes");
  advice.failed_requests = json.at("failed_requests");
  const Json& on = json.at("on");
  advice.on = {.gpu = on.at("gpu").is_null() ? "" : on.at("gpu").get<std::string>(),
               .memory_bytes = on.at("memory_bytes"),
               .usable_bytes = on.at("usable_bytes")};
  if (!json.at("recorded_reserved_bytes").is_null())
    advice.recorded_reserved_bytes = json.at("recorded_reserved_bytes").get<std::size_t>();
  advice.gpus = json.at("gpus").get<std::vector<std::string>>();
  advice.settings = json.at("settings");
  advice.ends_with_failure = json.at("ends_with_failure");
  advice.replays = json.at("replays");
  for (const Json& one : json.at("policies")) advice.policies.push_back(policy_of_json(one));
  advice.policy = json.at("policy");
  for (const std::string& key : {key_of(Policy()), advice.policy})
    CACHALOT_REQUIRE(std::ranges::find(advice.policies, key, &PolicyAdvice::policy) != advice.policies.end(),
                     "advice about {} lacks the policy {}", advice.file, fmt::format("{}", Quoted{key}));
  const Json& recommendation = json.at("recommendation");
  advice.recommendation = {.policy = recommendation.at("policy"),
                           .line = recommendation.at("line"),
                           .saved_bytes = recommendation.at("saved_bytes"),
                           .sentence = recommendation.at("sentence")};
  return advice;
}

}  // namespace

Advice advice_of_json(std::string_view text) {
  try {
    return advice_of(Json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(std::string("no advice as JSON: ") + error.what());
  }
}

}  // namespace cachalot::tools
