// Programs of operations, out of the fuzzer's bytes, on every heap (tests/programs).
#include <iterator>

#include "tests/fuzz/bytes.h"
#include "tests/programs/player.h"
#include "tests/reliability/heaps.h"

namespace cachalot::fuzz {
namespace {

constexpr std::size_t kMostOperations = 300;
constexpr std::uint32_t kNames = 24;  // few, so that operations meet

// 0 B to 48 MiB, more of the small ones.
std::uint64_t some_amount(Bytes& bytes) {
  const std::uint32_t word = bytes.word();
  return (word & 0xffff) << (word >> 16) % 11;
}

Operation some_operation(Bytes& bytes) {
  Operation operation;
  operation.kind = static_cast<Operation::Kind>(bytes.below(static_cast<std::uint32_t>(Operation::Kind::kCount)));
  const std::uint8_t where = bytes.byte();
  operation.device = where & 1;
  operation.stream = where >> 1 & (kProgramStreams - 1);
  operation.name = bytes.below(kNames);
  operation.amount = some_amount(bytes);
  switch (operation.kind) {
    case Operation::Kind::set_memory_fraction:
      operation.amount %= 1001;
      break;
    case Operation::Kind::create_pool:
    case Operation::Kind::begin_capture:
      operation.name = 1 + operation.name % 3;  // 0 does not name a pool
      break;
    case Operation::Kind::fail:
      operation.amount %= 16;
      operation.stream &= 1;
      break;
    case Operation::Kind::misuse:
      operation.amount %= static_cast<std::uint64_t>(Misuse::kCount);
      break;
    default:
      break;
  }
  return operation;
}

Program some_program(Bytes& bytes) {
  Program program;
  program.device_mib = {64, 32};
  program.options = kHeaps[bytes.below(std::size(kHeaps))];
  while (!bytes.empty() && program.operations.size() < kMostOperations) {
    program.operations.push_back(some_operation(bytes));
  }
  return program;
}

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cachalot::Bytes bytes(data, size);
  const cachalot::Program program = cachalot::fuzz::some_program(bytes);
  const std::string trouble = cachalot::play(program, {.validate_every = 32});
  if (!trouble.empty()) cachalot::fuzz::broken(trouble + "\n" + cachalot::to_text(program));
  return 0;
}
