// Every call of the device fails once: a program is played again and again, and each time the next of its calls fails,
// with out of memory and with another error. Afterwards nothing is lost and the program goes on to its end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/programs/player.h"
#include "tests/programs/random_program.h"
#include "tests/reliability/heaps.h"

namespace cachalot {
namespace {

enum class Failure : std::uint64_t { out_of_memory = 0, error = 1 };  // as Operation::Kind::fail has it

Program with_fault(Program program, std::uint64_t nth, Failure failure) {
  const Operation fail{Operation::Kind::fail, 0, 0, static_cast<std::uint64_t>(failure), nth};
  program.operations.insert(program.operations.begin(), fail);
  return program;
}

// How many calls of device 0 were made to fail, one a play.
std::uint64_t sweep(const Program& program, Failure failure) {
  for (std::uint64_t nth = 1;; ++nth) {
    const Program failing = with_fault(program, nth, failure);
    Player player(failing, {.validate_every = 8});
    const std::string trouble = play(failing, player);
    if (!trouble.empty()) {
      ADD_FAILURE() << "call " << nth << ": " << trouble << "\n" << to_text(failing);
      return nth;
    }
    if (player.faults_injected() == 0) return nth - 1;
  }
}

class EveryDeviceCall : public testing::TestWithParam<const char*> {};

TEST_P(EveryDeviceCall, MayFailOnce) {
  constexpr std::uint64_t kPrograms = 4;
  constexpr std::size_t kOperations = 150;
  std::uint64_t faults = 0;
  for (std::uint64_t seed = 1; seed <= scaled(kPrograms); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Program program = random_play(seed, kOperations, {.device_mib = {64, 32}, .options = GetParam()});
    faults += sweep(program, Failure::out_of_memory) + sweep(program, Failure::error);
    if (HasFailure()) return;
  }
  EXPECT_GE(faults, scaled(kPrograms) * 100);
  fmt::print("{} calls were made to fail\n", faults);
  RecordProperty("faults", std::to_string(faults));
}

INSTANTIATE_TEST_SUITE_P(Heaps, EveryDeviceCall, testing::ValuesIn(kHeaps));

}  // namespace
}  // namespace cachalot
