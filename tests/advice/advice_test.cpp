// Advice is what a replay of the program under each policy comes to.
#include "tools/simulation/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "cachalot/options.h"
#include "tests/tools/data_files.h"
#include "tests/tools/temporary_file.h"
#include "tools/replay/policies.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::size_t kDeviceBytes = 80 * kGiB;

AdvisedProgram program_of(const std::string& path) {
  AdvisedProgram program;
  program.file = path;
  program.trace = std::make_shared<const Trace>(read_trace(path));
  return program;
}

AdvisedProgram frag_toy() { return program_of(kTraces + "frag_toy.csv.gz"); }

AdviceOptions options_without_times() {
  AdviceOptions options;
  options.measures_host_time = false;
  return options;
}

Card card(const std::string& key, std::size_t mib, std::size_t context_mib) {
  Card card;
  card.key = key;
  card.memory_bytes = mib * kMiB;
  card.context_bytes = context_mib * kMiB;
  return card;
}

ReplayDevice device_of(std::size_t bytes) { return {.gpu = "", .memory_bytes = bytes, .usable_bytes = bytes}; }

const PolicyAdvice& of(const Advice& advice, const std::string& policy) {
  const auto found = std::ranges::find(advice.policies, policy, &PolicyAdvice::policy);
  if (found == advice.policies.end()) throw std::runtime_error("no row of " + policy);
  return *found;
}

std::string json_text(const Advice& advice) { return text_of(json_of(report_of(advice))); }

TEST(Policies, AreOptionsThatTheAllocatorTakes) {
  for (Policy policy : policies_of_sweep()) {
    if (policy.heap == Policy::Heap::expandable_segments) continue;
    policy.limit_bytes = policy.garbage_collection_threshold == 0 ? 0 : 12345678;
    EXPECT_NO_THROW(parse_options(config_of(policy))) << key_of(policy);
  }
}

TEST(Policies, HaveTheLineToSet) {
  EXPECT_EQ(line_of({}, kDeviceBytes), "");
  EXPECT_EQ(line_of({.max_split_size_mb = 32}, kDeviceBytes), "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:32");
  EXPECT_EQ(line_of({.heap = Policy::Heap::pages, .remap_slack = 0.03}, kDeviceBytes),
            "python -m cachalot run --config heap:pages,remap_slack:0.03");
  EXPECT_EQ(line_of({.garbage_collection_threshold = 0.8, .limit_bytes = 8 * kGiB}, kDeviceBytes),
            "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,per_process_memory_fraction:0.1");
}

TEST(Policies, OptionsThatAreLeftOutChangeNothing) {
  const AdvisedProgram program = frag_toy();
  const ProgramShape shape = shape_of(*program.trace);
  const std::size_t scarce = peak_live_bytes(*program.trace) / 10 * 11;
  std::size_t left_out = 0;
  for (const Policy& policy : policies_of_sweep()) {
    const Policy active = without_idle_options(policy, shape);
    if (active == policy || policy.garbage_collection_threshold != 0 || policy.remap_slack > 0.02) continue;
    ++left_out;
    for (const std::size_t bytes : {scarce, kDeviceBytes}) {
      const PolicyFigures all = *figures_of(*program.trace, policy, bytes);
      const PolicyFigures some = *figures_of(*program.trace, active, bytes);
      EXPECT_EQ(all.peak_held_bytes, some.peak_held_bytes) << key_of(policy) << " on " << bytes;
      EXPECT_EQ(all.ooms, some.ooms) << key_of(policy) << " on " << bytes;
    }
  }
  EXPECT_GT(left_out, 10U);
}

TEST(Advice, IsWhatReplaysComeTo) {
  const AdvisedProgram program = frag_toy();
  const Advice advice = advise(program, device_of(kDeviceBytes), {}, options_without_times());
  for (const char* policy : {"max_split_size_mb:128", "roundup_power2_divisions:4", "heap:pages,remap_slack:0.03"}) {
    ReplayOptions options;
    options.config = policy;
    options.device_bytes = kDeviceBytes;
    const ReplayResult result = replay(*program.trace, options);
    EXPECT_EQ(of(advice, policy).peak_reserved_bytes, result.peak_driver_bytes) << policy;
    EXPECT_EQ(of(advice, policy).driver_us, result.driver_us) << policy;
  }
  EXPECT_TRUE(std::ranges::is_sorted(advice.policies, {}, &PolicyAdvice::peak_reserved_bytes));
  EXPECT_LT(advice.replays, advice.settings);
}

TEST(Advice, RecommendsWhatTheReplayShows) {
  const Advice advice = advise(frag_toy(), device_of(kDeviceBytes), {card("small", 3300, 50), card("large", 9000, 50)},
                               options_without_times());
  const PolicyAdvice& choice = of(advice, advice.recommendation.policy);
  const PolicyAdvice& native = advice.native();
  EXPECT_EQ(advice.recommendation.saved_bytes, native.peak_reserved_bytes - choice.peak_reserved_bytes);
  EXPECT_FALSE(choice.needs_limit) << "a fraction of one GPU, without room, is listed and not recommended";
  EXPECT_THAT(advice.recommendation.sentence, HasSubstr(format_bytes(choice.peak_reserved_bytes) + " instead of " +
                                                        format_bytes(native.peak_reserved_bytes)));
  EXPECT_EQ(choice.smallest_gpu, "small");
  const double nearly = 1.01 * static_cast<double>(advice.policies[0].peak_reserved_bytes);
  for (const PolicyAdvice& one : advice.policies) {
    if (static_cast<double>(one.peak_reserved_bytes) >= nearly) continue;
    EXPECT_GE(one.driver_us, choice.driver_us) << one.policy;
  }
}

TEST(Advice, KeepsTheDefaultWhereNothingIsSaved) {
  const TemporaryFile file("a,0,4194304,0\na,1,16777216,0\n");
  const Advice advice = advise(program_of(file.path()), device_of(kDeviceBytes), {}, options_without_times());
  EXPECT_EQ(advice.recommendation.policy, "native");
  EXPECT_EQ(advice.recommendation.line, "");
  EXPECT_EQ(advice.recommendation.saved_bytes, 0U);
  EXPECT_THAT(advice.recommendation.sentence, HasSubstr("Keep PyTorch's default: "));

  AdvisedProgram expandable = program_of(file.path());
  expandable.policy.heap = Policy::Heap::expandable_segments;
  EXPECT_THAT(advise(expandable, device_of(kDeviceBytes), {}, options_without_times()).recommendation.sentence,
              HasSubstr("Keep expandable_segments:True: "));
}

// The program's own policy is not advice, and savings are told against it.
TEST(Advice, ComparesWithThePolicyThatTheProgramRanWith) {
  AdvisedProgram program = frag_toy();
  program.policy.heap = Policy::Heap::expandable_segments;
  AdviceOptions options = options_without_times();
  options.sweep = true;
  options.top = 1;
  const Advice advice = advise(program, device_of(kDeviceBytes), {}, options);
  const PolicyAdvice& now = of(advice, "expandable_segments:True");  // listed, although others are better
  const PolicyAdvice& choice = of(advice, advice.recommendation.policy);
  ASSERT_NE(&now, &choice);
  EXPECT_EQ(advice.recommendation.saved_bytes, now.peak_reserved_bytes - choice.peak_reserved_bytes);
  EXPECT_THAT(advice.recommendation.sentence, HasSubstr("instead of " + format_bytes(now.peak_reserved_bytes)));
  EXPECT_EQ(advice_of_json(json_text(advice)).of_program().policy, now.policy);
}

TEST(Advice, ComparesFailuresBeforeMemory) {
  const AdvisedProgram program = frag_toy();
  const std::size_t scarce = peak_live_bytes(*program.trace) / 100 * 103;
  const Advice advice = advise(program, device_of(scarce), {}, options_without_times());
  ASSERT_GT(advice.native().ooms, 0U);
  EXPECT_TRUE(std::ranges::is_sorted(advice.policies, {}, &PolicyAdvice::ooms));
  EXPECT_LT(of(advice, advice.recommendation.policy).ooms, advice.native().ooms);
  EXPECT_THAT(advice.recommendation.sentence, HasSubstr("with it, and "));
}

TEST(Advice, ChargesTheContextAndOthersToTheGpu) {
  AdvisedProgram program = frag_toy();
  const std::size_t held_mib =
      of(advise(program, device_of(kDeviceBytes), {}, options_without_times()), "heap:pages").peak_reserved_bytes /
      kMiB;
  const std::vector<Card> cards = {card("one", held_mib + 99, 100), card("two", held_mib * 102 / 100 + 100, 100)};
  AdviceOptions options = options_without_times();
  EXPECT_THAT(of(advise(program, device_of(kDeviceBytes), {cards[1]}, options), "heap:pages").gpus, ElementsAre("two"));
  program.other_bytes = 1000 * kMiB;
  EXPECT_THAT(of(advise(program, device_of(kDeviceBytes), cards, options), "heap:pages").gpus, ElementsAre());
}

TEST(Advice, PromisesNoGpuThatMayBeTooSmall) {
  AdvisedProgram program = frag_toy();
  std::vector<Card> cards = {card("small", 3300, 50), card("large", 9000, 50)};
  constexpr const char* kPromise = "is enough instead of";
  const auto sentence = [&] {
    return advise(program, device_of(kDeviceBytes), cards, options_without_times()).recommendation.sentence;
  };
  EXPECT_THAT(sentence(), HasSubstr(kPromise));
  cards[0].more_bytes = cards[0].memory_bytes;  // the context may take all of it
  EXPECT_THAT(sentence(), Not(HasSubstr(kPromise)));
  cards[0].more_bytes = 0;
  program.ends_with_failure = true;
  EXPECT_THAT(sentence(), Not(HasSubstr(kPromise)));
  const std::string text =
      text_of(report_of(advise(program, device_of(kDeviceBytes), cards, options_without_times())), Style());
  EXPECT_THAT(text, AllOf(HasSubstr("not known"), HasSubstr("The history ends where memory ran out")));
}

TEST(Sweep, EndsOnlyReplaysThatAreNotAmongTheBest) {
  const AdvisedProgram program = program_of(kTraces + "lsm.csv.gz");
  AdviceOptions options = options_without_times();
  options.sweep = true;
  const Advice all = advise(program, device_of(kDeviceBytes), {}, options);
  options.top = 5;
  options.jobs = 2;
  const Advice best = advise(program, device_of(kDeviceBytes), {}, options);
  ASSERT_GE(best.policies.size(), 5U);
  ASSERT_LE(best.policies.size(), 6U);  // PyTorch's default is among them or behind them
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(best.policies[i].policy, all.policies[i].policy);
  EXPECT_EQ(best.native().peak_reserved_bytes, all.native().peak_reserved_bytes);
}

TEST(AdviceJson, IsTheSameWhateverTheNumberOfThreadsAndIsReadBack) {
  AdviceOptions options = options_without_times();
  const std::vector<Card> cards = {card("small", 3300, 50), card("large", 9000, 50)};
  const std::string text = json_text(advise(frag_toy(), device_of(kDeviceBytes), cards, options));
  options.jobs = 4;
  EXPECT_EQ(json_text(advise(frag_toy(), device_of(kDeviceBytes), cards, options)), text);
  EXPECT_EQ(json_text(advice_of_json(text)), text);
  EXPECT_THROW(advice_of_json("{}"), InvalidArgument);
  EXPECT_THROW(advice_of_json("["), InvalidArgument);
}

TEST(Fleet, HasTheMostToBeSavedFirstAndFailuresLast) {
  const auto saving = [](const std::string& file, std::size_t mib) {
    Advice advice;
    advice.file = file;
    advice.policies.emplace_back().policy = "native";
    advice.policies.back().peak_reserved_bytes = 1000 * kMiB;
    advice.recommendation = {.policy = "heap:pages", .line = "", .saved_bytes = mib * kMiB, .sentence = ""};
    return advice;
  };
  Advice failed;
  failed.file = "broken";
  failed.error = "broken: no pickle";
  const std::string text = text_of(fleet_report({failed, saving("little", 10), saving("much", 300)}), Style());
  EXPECT_LT(text.find("much"), text.find("little"));
  EXPECT_LT(text.find("little"), text.find("broken: no pickle"));
  EXPECT_THAT(text,
              HasSubstr("310.00 MiB of 1.95 GiB reserved can be saved: heap:pages for 2 programs; 1 file cannot"));
}

}  // namespace
}  // namespace cachalot::tools
