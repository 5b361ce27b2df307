// Tests of a program's end, and of the libraries that it loads: in programs of their own, whose exit code and silence
// are checked.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

#include "tests/tools/run_command.h"

namespace cachalot {
namespace {

constexpr int kAsked = 7;
constexpr int kSkipped = 77;

constexpr const char* kEnds[] = {
    "end_with_statics",
    "end_with_what_is_leaked",
    "end_with_what_is_on_the_stack",
    "end_at_once",
    "end_by_quick_exit",
    "end_in_another_thread",
    "end_while_threads_allocate",
    "end_of_main_thread_alone",
    "end_with_tensors_that_outlive_all",
    "end_with_frees_at_exit",
    "end_after_an_exception",
    "end_of_threads_that_free_last",
};
constexpr const char* kLoads[] = {
    "load_again_and_again",
    "end_threads_after_it_was_closed",
    "load_from_several_threads",
};
constexpr const char* kResets[] = {"reset_and_begin_again", "end_after_a_reset"};
// Copies share a device: simulated ones would give each of them the same addresses.
constexpr const char* kCopies[] = {"load_copies", "load_copies_for_all", "load_the_plug_in",
                                   "load_the_plug_in_for_all"};

// On simulated devices, or with the simulated CUDA runtime in front.
enum class On { devices, runtime };

// LeakSanitizer does not look for pointers on the stack of a main thread that has ended by itself.
const char* without_leak_check(std::string_view scenario) {
  return scenario == "end_of_main_thread_alone" ? "ASAN_OPTIONS=detect_leaks=0 " : "";
}

// Ends as asked, in time, without a word.
void expect_quiet_end(const std::string& scenario, const std::string& options, On on) {
  const std::string simulator = CACHALOT_SIMULATOR;
  if (on == On::runtime && simulator.empty()) GTEST_SKIP() << "there is no simulated runtime in this build";
  const std::string before =
      on == On::runtime ? fmt::format("LD_PRELOAD='{}' ", simulator) : "CUDA_VISIBLE_DEVICES= CACHALOT_SIMULATE=1 ";
  const tools::Outcome outcome =
      tools::run_command(fmt::format("{}{}CACHALOT_CONF='{}' timeout 120 '{}' {} '{}'", without_leak_check(scenario),
                                     before, options, CACHALOT_LIFE_PROGRAM, scenario, options));
  if (outcome.exit_code == kSkipped) GTEST_SKIP() << "needs a GPU, or a simulated one, and what this build has not";
  EXPECT_EQ(outcome.exit_code, kAsked);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "");
}

using Case = std::tuple<const char*, const char*, On>;
class ProgramEnds : public ::testing::TestWithParam<Case> {};
class LibraryLoads : public ::testing::TestWithParam<Case> {};
class ProgramsOnCuda : public ::testing::TestWithParam<Case> {};

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto [scenario, options, on] = info.param;
  const std::string_view text = options;
  const std::string heap = text.starts_with("heap:pages") ? "pages" : "segments";
  const std::string guard = text.ends_with("guard:True") ? "_guarded" : "";
  return fmt::format("{}_over_{}{}_on_{}", scenario, heap, guard, on == On::runtime ? "the_runtime" : "devices");
}

constexpr const char* kHeaps[] = {"", "heap:pages"};
INSTANTIATE_TEST_SUITE_P(Each, ProgramEnds,
                         ::testing::Combine(::testing::ValuesIn(kEnds), ::testing::ValuesIn(kHeaps),
                                            ::testing::Values(On::devices, On::runtime)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Each, LibraryLoads,
                         ::testing::Combine(::testing::ValuesIn(kLoads), ::testing::ValuesIn(kHeaps),
                                            ::testing::Values(On::devices, On::runtime)),
                         name_of);
constexpr const char* kHeapsAndGuard[] = {"", "heap:pages", "guard:True", "heap:pages,guard:True"};
INSTANTIATE_TEST_SUITE_P(Resets, ProgramsOnCuda,
                         ::testing::Combine(::testing::ValuesIn(kResets), ::testing::ValuesIn(kHeapsAndGuard),
                                            ::testing::Values(On::runtime)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Copies, ProgramsOnCuda,
                         ::testing::Combine(::testing::ValuesIn(kCopies), ::testing::ValuesIn(kHeaps),
                                            ::testing::Values(On::runtime)),
                         name_of);

TEST(ProgramsWithoutACompiler, DoWithoutKernelsThatTheDriverDoesNotCompileAndSaySoOnce) {
  if (std::string(CACHALOT_SIMULATOR).empty()) GTEST_SKIP() << "there is no simulated runtime in this build";
  const tools::Outcome outcome = tools::run_command(fmt::format(
      "CUDA_DISABLE_PTX_JIT=1 LD_PRELOAD='{}' '{}' verify_patterns", CACHALOT_SIMULATOR, CACHALOT_LIFE_PROGRAM));
  EXPECT_EQ(outcome.exit_code, kAsked);
  EXPECT_EQ(
      outcome.err,
      "cachalot: the driver does not compile the CUDA kernels for device 0 (CUDA_ERROR_JIT_COMPILATION_DISABLED): "
      "patterns and moves are copied by the host\n");
}

TEST(ProgramsOnTheSimulator, HaveADriverWhoseCallsTakeNoTime) {
  if (std::string(CACHALOT_SIMULATOR).empty()) GTEST_SKIP() << "there is no simulated runtime in this build";
  const tools::Outcome outcome =
      tools::run_command(fmt::format("LD_PRELOAD='{}' '{}' time_no_calls", CACHALOT_SIMULATOR, CACHALOT_LIFE_PROGRAM));
  EXPECT_EQ(outcome.exit_code, kAsked) << outcome.err;
}

TEST_P(ProgramEnds, AsAskedAndInSilence) {
  const auto [scenario, options, on] = GetParam();
  expect_quiet_end(scenario, options, on);
}

TEST_P(LibraryLoads, AsOftenAndBesideWhomItMust) {
  const auto [scenario, options, on] = GetParam();
  expect_quiet_end(scenario, options, on);
}

TEST_P(ProgramsOnCuda, LiveThroughResetsAndBesideOtherCopies) {
  const auto [scenario, options, on] = GetParam();
  expect_quiet_end(scenario, options, on);
}

}  // namespace
}  // namespace cachalot
