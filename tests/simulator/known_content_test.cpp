// Tests of the simulator's knowledge of device memory: known, guessed or unknown.
#include <array>
#include <numeric>
#include <vector>

#include "cachalot/simulator.h"
#include "cuda_check.h"

namespace cachalot {
namespace {

class KnownContentOfMemory : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    ASSERT_CUDA(cudaMalloc(&memory_, 4 * kMib));
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    SimulatorTest::TearDown();
  }

  char* at(std::size_t offset) const { return static_cast<char*>(memory_) + offset; }
  // Returns 1 if the bytes are known, otherwise 0.
  int known(std::size_t offset, std::size_t bytes) const { return cachalot_sim_get(nullptr, at(offset), bytes); }
  int byte(std::size_t offset) const {
    unsigned char value = 0xEE;
    EXPECT_GE(cachalot_sim_get(&value, at(offset), 1), 0);
    return value;
  }

  void* memory_ = nullptr;
};

TEST_F(KnownContentOfMemory, NewMemoryIsUnknownAndReadsAsZeros) {
  EXPECT_EQ(known(0, 1), 0);
  EXPECT_EQ(byte(0), 0);
}

TEST_F(KnownContentOfMemory, CopiesAndFillsOfTheProgramAreKnown) {
  const std::array<char, 4> four = {1, 2, 3, 4};
  ASSERT_CUDA(cudaMemcpy(at(8), four.data(), 4, cudaMemcpyHostToDevice));
  EXPECT_EQ(known(8, 4), 1);
  EXPECT_EQ(known(7, 2), 0);
  EXPECT_EQ(known(8, 5), 0);
  ASSERT_CUDA(cudaMemset(at(12), 9, 4));
  EXPECT_EQ(known(8, 8), 1) << "two ranges side by side are one";
  ASSERT_CUDA(cudaMemcpy(at(100), at(8), 8, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(known(100, 8), 1) << "a copy is as known as its source";
  EXPECT_EQ(byte(103), 4);
  ASSERT_CUDA(cudaMemcpy(at(100), at(6), 8, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(known(100, 8), 0);
  EXPECT_EQ(byte(102), 1);
  EXPECT_EQ(known(102, 6), 1) << "byte by byte";
}

TEST_F(KnownContentOfMemory, WhatAGraphWritesIsUnknownAfterEachLaunch) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  ASSERT_CUDA(cudaMemsetAsync(at(8), 1, 4, stream));
  ASSERT_CUDA(cudaMemcpyAsync(at(16), at(8), 4, cudaMemcpyDeviceToDevice, stream));
  ASSERT_CUDA(cudaMemset2DAsync(at(40), 8, 1, 4, 2, stream));
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_CUDA(cudaMemset(at(0), 9, 64));
    EXPECT_EQ(known(0, 64), 1);
    ASSERT_CUDA(cudaGraphLaunch(exec, stream));
    EXPECT_EQ(known(8, 1), 0);
    EXPECT_EQ(known(16, 1), 0);
    EXPECT_EQ(known(0, 8) + known(12, 4) + known(20, 12), 3);
    EXPECT_EQ(known(40, 1) + known(48, 1), 0) << "rows";
    EXPECT_EQ(known(44, 4), 1) << "between them";
  }
  ASSERT_CUDA(cudaGraphExecDestroy(exec));
  ASSERT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(KnownContentOfMemory, KindsAreReadAndWrittenByteByByte) {
  const std::array<char, 6> values = {1, 2, 3, 4, 5, 6};
  const std::array<unsigned char, 6> kinds = {2, 2, 0, 1, 1, 2};
  ASSERT_EQ(cachalot_sim_kinds_in(at(0), 8), 1);
  ASSERT_EQ(cachalot_sim_put_kinds(at(1), values.data(), values.size(), kinds.data()), 0);
  EXPECT_EQ(known(1, 2), 1);
  EXPECT_EQ(byte(3), 0) << "an unknown byte reads as zero";
  EXPECT_EQ(byte(4), 4);
  EXPECT_EQ(cachalot_sim_kinds_in(at(0), 8), 1 + 2 + 4);
  EXPECT_EQ(cachalot_sim_kinds_in(at(1), 2), 4);
  EXPECT_EQ(cachalot_sim_kinds_in(at(3), 1), 1);
  EXPECT_EQ(cachalot_sim_kinds_in(at(4), 2), 2);
  EXPECT_EQ(cachalot_sim_kinds_in(at(4), 3), 2 + 4);
  EXPECT_EQ(cachalot_sim_kinds_in(at(6), 2), 1 + 4);
  std::array<unsigned char, 8> read{};
  ASSERT_EQ(cachalot_sim_get_kinds(read.data(), at(0), read.size()), 0);
  EXPECT_EQ(read, (std::array<unsigned char, 8>{0, 2, 2, 0, 1, 1, 2, 0}));
  const unsigned char none = 3;
  EXPECT_NE(cachalot_sim_put_kinds(at(1), values.data(), 1, &none), 0);
  EXPECT_EQ(known(1, 1), 1);
}

TEST_F(KnownContentOfMemory, CopiesThatAreTooLargeToBeExecutedMakeMemoryUnknown) {
  const std::vector<char> ones(2 * kMib, 1);
  ASSERT_CUDA(cudaMemcpy(at(5), ones.data(), 1, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpy(at(0), ones.data(), ones.size(), cudaMemcpyHostToDevice));
  EXPECT_EQ(known(5, 1), 0);
  EXPECT_EQ(byte(5), 0);
}

TEST_F(KnownContentOfMemory, LargeCopiesCarryKnownBytesToTheHostAndBack) {
  constexpr std::size_t kPlace = 3 * kMib - 2;
  const std::array<char, 4> four = {1, 2, 3, 4};
  ASSERT_CUDA(cudaMemcpy(at(kPlace), four.data(), 4, cudaMemcpyHostToDevice));
  ASSERT_EQ(cachalot_sim_put(at(0), four.data(), 4, 1), 0);
  std::vector<char> host(4 * kMib, 9);
  ASSERT_CUDA(cudaMemcpy(host.data(), at(0), host.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::vector<char>(&host[kPlace], &host[kPlace + 4]), std::vector<char>(four.begin(), four.end()));
  EXPECT_EQ(host[0], 1) << "guesses as well";
  EXPECT_EQ(host[kPlace + 4], 0) << "unknown bytes are zeros";
  ASSERT_CUDA(cudaMemset(at(kPlace), 7, 4));
  host[kPlace + 1] = 5;
  ASSERT_CUDA(cudaMemcpy(at(0), host.data(), host.size(), cudaMemcpyHostToDevice));
  EXPECT_EQ(known(kPlace, 4), 1);
  EXPECT_EQ(byte(kPlace), 1);
  EXPECT_EQ(byte(kPlace + 1), 5) << "the program has written to it";
  EXPECT_EQ(byte(1), 2);
  EXPECT_EQ(known(1, 1), 0) << "a guess stays one";
  EXPECT_EQ(known(kPlace + 4, 1), 0);
}

TEST_F(KnownContentOfMemory, LargeCopiesWithinTheDeviceCarryKnownBytes) {
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 4 * kMib));
  ASSERT_CUDA(cudaMemset(at(2 * kMib), 6, kMib));
  ASSERT_CUDA(cudaMemset(other, 5, kMib));
  ASSERT_CUDA(cudaMemcpy(other, at(0), 4 * kMib, cudaMemcpyDeviceToDevice));
  const auto* copied = static_cast<const char*>(other);
  EXPECT_EQ(cachalot_sim_get(nullptr, copied + 2 * kMib, kMib), 1);
  EXPECT_EQ(cachalot_sim_get(nullptr, copied, 1), 0);
  unsigned char value = 0;
  EXPECT_EQ(cachalot_sim_get(&value, copied + 3 * kMib - 1, 1), 1);
  EXPECT_EQ(value, 6);
  ASSERT_CUDA(cudaMemcpy(other, other, 4 * kMib, cudaMemcpyDeviceToDevice));
  EXPECT_EQ(cachalot_sim_get(nullptr, copied + 2 * kMib, kMib), 1);
  ASSERT_CUDA(cudaFree(other));
}

TEST_F(KnownContentOfMemory, ValuesThatArePutAreKnownOrGuessed) {
  const std::array<char, 4> four = {1, 2, 3, 4};
  ASSERT_EQ(cachalot_sim_put(at(0), four.data(), 4, 0), 0);
  ASSERT_EQ(cachalot_sim_put(at(4), four.data(), 4, 1), 0);
  EXPECT_EQ(known(0, 4), 1);
  EXPECT_EQ(known(3, 2), 0);
  EXPECT_EQ(byte(5), 2);
  ASSERT_EQ(cachalot_sim_put(at(4), four.data(), 2, 0), 0);
  EXPECT_EQ(known(0, 6), 1);
  EXPECT_EQ(known(6, 1), 0);
}

TEST_F(KnownContentOfMemory, WhatIsMadeUnknownReadsAsZerosAndTheRestStays) {
  std::array<char, 16> bytes{};
  std::iota(bytes.begin(), bytes.end(), char{1});
  ASSERT_EQ(cachalot_sim_put(at(0), bytes.data(), bytes.size(), 0), 0);
  ASSERT_EQ(cachalot_sim_make_unknown(at(4), 4), 0);
  EXPECT_EQ(known(0, 4), 1);
  EXPECT_EQ(known(4, 1), 0);
  EXPECT_EQ(known(8, 8), 1);
  EXPECT_EQ(byte(3), 4);
  EXPECT_EQ(byte(4), 0);
  EXPECT_EQ(byte(7), 0);
  EXPECT_EQ(byte(8), 9);
}

TEST_F(KnownContentOfMemory, ManyRangesAreMadeUnknownAtOnce) {
  const std::array<char, 16> bytes = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  ASSERT_EQ(cachalot_sim_put(at(0), bytes.data(), bytes.size(), 0), 0);
  const auto address = [&](std::size_t offset) { return reinterpret_cast<std::uint64_t>(at(offset)); };
  const std::array<std::uint64_t, 6> ranges = {address(2), 0, address(8), 2, 0, 1};
  ASSERT_EQ(cachalot_sim_make_all_unknown(ranges.data(), 3), 0);
  EXPECT_EQ(known(0, 2), 1);
  EXPECT_EQ(known(2, 1), 0);
  EXPECT_EQ(known(3, 1), 0);
  EXPECT_EQ(known(4, 4), 1);
  EXPECT_EQ(known(8, 1), 0);
  EXPECT_EQ(known(9, 7), 1);
  const std::array<std::uint64_t, 4> partly = {address(0), address(4 * kMib), 1, 1};
  EXPECT_NE(cachalot_sim_make_all_unknown(partly.data(), 2), 0) << "the last is no memory";
  EXPECT_EQ(known(0, 1), 0);
}

TEST_F(KnownContentOfMemory, AGuessOfOneByteHoldsForALargeRange) {
  const char seven = 7;
  ASSERT_EQ(cachalot_sim_put(at(10), &seven, 1, 0), 0);
  ASSERT_EQ(cachalot_sim_guess(at(0), 3 * kMib, 1), 0);
  EXPECT_EQ(byte(10), 1);
  EXPECT_EQ(byte(3 * kMib - 1), 1);
  EXPECT_EQ(byte(3 * kMib), 0);
  EXPECT_EQ(known(10, 1), 0);
  ASSERT_CUDA(cudaMemset(at(20), 5, 1));
  EXPECT_EQ(byte(19), 1);
  EXPECT_EQ(byte(20), 5);
  EXPECT_EQ(byte(21), 1);
  ASSERT_EQ(cachalot_sim_make_unknown(at(0), 3 * kMib), 0);
  EXPECT_EQ(byte(10), 0) << "what was there before the guess has not come back";
}

TEST_F(KnownContentOfMemory, FreedMemoryIsUnknown) {
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, 2 * kMib));
  ASSERT_CUDA(cudaMemset(other, 5, 16));
  ASSERT_CUDA(cudaFree(other));
  ASSERT_CUDA(cudaMalloc(&other, 2 * kMib));
  EXPECT_EQ(cachalot_sim_get(nullptr, other, 1), 0);
  ASSERT_CUDA(cudaFree(other));
}

TEST_F(KnownContentOfMemory, AnAnswerIsWhatCopiesOfANumberReturn) {
  cachalot_sim_answer(42);
  std::int32_t number = 0;
  std::int64_t large = 0;
  std::int16_t small = 3;
  ASSERT_CUDA(cudaMemcpy(&number, at(0), sizeof(number), cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaMemcpy(&large, at(0), sizeof(large), cudaMemcpyDeviceToHost));
  ASSERT_CUDA(cudaMemcpy(&small, at(0), sizeof(small), cudaMemcpyDeviceToHost));
  EXPECT_EQ(number, 42);
  EXPECT_EQ(large, 42);
  EXPECT_EQ(small, 0);
  cachalot_sim_answer(-1);
  ASSERT_CUDA(cudaMemcpy(&number, at(0), sizeof(number), cudaMemcpyDeviceToHost));
  EXPECT_EQ(number, 0);
}

TEST_F(KnownContentOfMemory, MemoryThatIsNotOfADeviceHasNoContent) {
  int on_host = 0;
  EXPECT_EQ(cachalot_sim_get(nullptr, &on_host, 1), -1);
  EXPECT_EQ(cachalot_sim_kinds_in(&on_host, 1), -1);
  unsigned char kind = 2;
  EXPECT_NE(cachalot_sim_get_kinds(&kind, &on_host, 1), 0);
  EXPECT_NE(cachalot_sim_put_kinds(&on_host, &on_host, 1, &kind), 0);
  EXPECT_NE(cachalot_sim_put(&on_host, &on_host, 1, 0), 0);
  EXPECT_NE(cachalot_sim_make_unknown(at(4 * kMib), 1), 0);
}

}  // namespace
}  // namespace cachalot
