// NCCL in one process: its ranks are threads, or calls of one group.
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cachalot/simulator.h"
#include "cuda_check.h"
#include "simulator/nccl/nccl_abi.h"

namespace cachalot {
namespace {

using namespace simulator::nccl;

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr) << " "
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

// Two ranks, on devices 0 and 1, with memory of 4 MiB each for sent and for received data.
class SimulatorNccl : public SimulatorTest {
 protected:
  static constexpr std::size_t kBytes = 4 * kMib;

  void SetUp() override {
    ASSERT_NCCL(ncclCommInitAll(comms_, 2, nullptr));
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_CUDA(cudaSetDevice(rank));
      ASSERT_CUDA(cudaMalloc(&sent_[rank], kBytes));
      ASSERT_CUDA(cudaMalloc(&received_[rank], kBytes));
    }
  }
  void TearDown() override {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_NCCL(ncclCommDestroy(comms_[rank]));
      EXPECT_CUDA(cudaFree(sent_[rank]));
      EXPECT_CUDA(cudaFree(received_[rank]));
    }
  }

  template <typename Value>
  void give(int rank, const std::vector<Value>& values) {
    EXPECT_CUDA(cudaMemcpy(sent_[rank], values.data(), values.size() * sizeof(Value), cudaMemcpyHostToDevice));
  }
  template <typename Value>
  std::vector<Value> received(int rank, std::size_t count) {
    std::vector<Value> values(count);
    EXPECT_CUDA(cudaMemcpy(values.data(), received_[rank], count * sizeof(Value), cudaMemcpyDeviceToHost));
    return values;
  }
  // Makes the call of each rank, as one group.
  void for_both(const std::function<ncclResult_t(int rank)>& call) {
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(call(rank));
    EXPECT_NCCL(ncclGroupEnd());
  }
  template <typename Value>
  std::vector<Value> reduced(ncclDataType_t type, ncclRedOp_t op, const std::vector<Value>& a,
                             const std::vector<Value>& b) {
    give(0, a);
    give(1, b);
    for_both([&](int rank) {
      return ncclAllReduce(sent_[rank], received_[rank], a.size(), type, op, comms_[rank], nullptr);
    });
    EXPECT_EQ(received<Value>(0, a.size()), received<Value>(1, a.size()));
    return received<Value>(1, a.size());
  }

  ncclComm_t comms_[2] = {};
  void* sent_[2] = {};
  void* received_[2] = {};
};

using Ints = std::vector<int>;

TEST_F(SimulatorNccl, AReductionIsExactForIntegers) {
  EXPECT_EQ(reduced<int>(ncclInt32, ncclSum, {1, -2, 2147483647}, {10, 20, 1}), (Ints{11, 18, -2147483647 - 1}));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclProd, {3, -2}, {4, 5}), (Ints{12, -10}));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclMax, {3, -2}, {4, -5}), (Ints{4, -2}));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclMin, {3, -2}, {4, -5}), (Ints{3, -5}));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclAvg, {3, -2}, {5, -6}), (Ints{4, -4}));
  EXPECT_EQ(reduced<std::uint32_t>(ncclUint32, ncclMax, {0xffffffff}, {1}), (std::vector<std::uint32_t>{0xffffffff}));
  EXPECT_EQ(reduced<std::int64_t>(ncclInt64, ncclSum, {std::int64_t{1} << 60}, {1}),
            (std::vector<std::int64_t>{(std::int64_t{1} << 60) + 1}));
  EXPECT_EQ(reduced<std::uint64_t>(ncclUint64, ncclMin, {~std::uint64_t{0}}, {5}), (std::vector<std::uint64_t>{5}));
  EXPECT_EQ(reduced<std::int8_t>(ncclInt8, ncclSum, {100}, {100}), (std::vector<std::int8_t>{-56}));
  EXPECT_EQ(reduced<std::uint8_t>(ncclUint8, ncclMax, {200}, {100}), (std::vector<std::uint8_t>{200}));
}

TEST_F(SimulatorNccl, AReductionOfFloatsRoundsOnce) {
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclAvg, {1.5F}, {2}), (std::vector<float>{1.75F}));
  EXPECT_EQ(reduced<double>(ncclFloat64, ncclSum, {0.25}, {0.5}), (std::vector<double>{0.75}));
  EXPECT_EQ(reduced<float>(ncclFloat32, ncclMin, {1, -1}, {2, -INFINITY}), (std::vector<float>{1, -INFINITY}));
}

// The patterns of small floats: 1, 1.5, the smallest subnormal, the largest number, infinity, no number, 0.
TEST_F(SimulatorNccl, AReductionKnowsFloatsOf16And8Bits) {
  using Halves = std::vector<std::uint16_t>;
  using Bytes = std::vector<std::uint8_t>;
  EXPECT_EQ(reduced<std::uint16_t>(ncclFloat16, ncclSum, {0x3c00, 0x0001, 0x7bff, 0x3c00, 0x0000, 0x8000},
                                   {0x3e00, 0x0001, 0x7bff, 0x1000, 0x0000, 0x8000}),
            (Halves{0x4100, 0x0002, 0x7c00, 0x3c00, 0x0000, 0x8000}));
  EXPECT_EQ(
      reduced<std::uint16_t>(ncclBfloat16, ncclSum, {0x3f80, 0x7f80, 0x7f80, 0xbf80}, {0x3fc0, 0x3f80, 0xff80, 0}),
      (Halves{0x4020, 0x7f80, 0x7fff, 0xbf80}));
  EXPECT_EQ(reduced<std::uint16_t>(ncclBfloat16, ncclAvg, {0x3f80}, {0x4040}), (Halves{0x4000}));
  EXPECT_EQ(reduced<std::uint8_t>(ncclFloat8e4m3, ncclSum, {0x38, 0x7e, 0x01, 0x7f}, {0x3c, 0x7e, 0x01, 0x38}),
            (Bytes{0x42, 0x7e, 0x02, 0x7f}));
  EXPECT_EQ(reduced<std::uint8_t>(ncclFloat8e5m2, ncclProd, {0x3c, 0xc0, 0x7c}, {0x3e, 0x40, 0x3c}),
            (Bytes{0x3e, 0xc4, 0x7c}));
}

TEST_F(SimulatorNccl, AnOperatorMultipliesBeforeItAdds) {
  ncclRedOp_t ops[2] = {};
  float factor = 0.5F;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&ops[rank], &factor, ncclFloat32, ncclScalarHostImmediate, comms_[rank]));
  }
  EXPECT_GE(ops[0], ncclNumOps);
  EXPECT_EQ(reduced<float>(ncclFloat32, ops[0], {1}, {2}), (std::vector<float>{1.5F}));
  EXPECT_EQ(ncclAllReduce(sent_[0], received_[0], 1, ncclFloat64, ops[0], comms_[0], nullptr), ncclInvalidArgument)
      << "the factor is a float of 32 bits";
  for (int rank = 0; rank < 2; ++rank) EXPECT_NCCL(ncclRedOpDestroy(ops[rank], comms_[rank]));
  EXPECT_EQ(ncclAllReduce(sent_[0], received_[0], 1, ncclFloat32, ops[0], comms_[0], nullptr), ncclInvalidArgument);
}

TEST_F(SimulatorNccl, EachCollectivePutsTheDataWhereNcclDoes) {
  give<int>(0, {1, 2});
  give<int>(1, {30, 40});
  const auto expect = [&](const Ints& first, const Ints& second) {
    EXPECT_EQ(received<int>(0, first.size()), first);
    EXPECT_EQ(received<int>(1, second.size()), second);
  };
  for_both([&](int rank) { return ncclAllGather(sent_[rank], received_[rank], 2, ncclInt32, comms_[rank], nullptr); });
  expect({1, 2, 30, 40}, {1, 2, 30, 40});
  for_both([&](int rank) {
    return ncclReduceScatter(sent_[rank], received_[rank], 1, ncclInt32, ncclSum, comms_[rank], nullptr);
  });
  expect({31}, {42});
  for_both([&](int rank) { return ncclAlltoAll(sent_[rank], received_[rank], 1, ncclInt32, comms_[rank], nullptr); });
  expect({1, 30}, {2, 40});
  for_both(
      [&](int rank) { return ncclBroadcast(sent_[rank], received_[rank], 2, ncclInt32, 1, comms_[rank], nullptr); });
  expect({30, 40}, {30, 40});
  for_both([&](int rank) {
    return ncclReduce(sent_[rank], received_[rank], 2, ncclInt32, ncclMax, 0, comms_[rank], nullptr);
  });
  expect({30, 40}, {30, 40});
  for_both([&](int rank) { return ncclScatter(sent_[rank], received_[rank], 1, ncclInt32, 0, comms_[rank], nullptr); });
  expect({1}, {2});
  for_both([&](int rank) { return ncclGather(sent_[rank], received_[rank], 1, ncclInt32, 1, comms_[rank], nullptr); });
  expect({1}, {1, 30});
}

TEST_F(SimulatorNccl, ReceivesThatComeFirstInAGroupAreNoDeadlock) {
  give<int>(0, {7});
  give<int>(1, {8});
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NCCL(ncclRecv(received_[rank], 1, ncclInt32, 1 - rank, comms_[rank], nullptr));
    EXPECT_NCCL(ncclSend(sent_[rank], 1, ncclInt32, 1 - rank, comms_[rank], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd());
  EXPECT_EQ(received<int>(0, 1), Ints{8});
  EXPECT_EQ(received<int>(1, 1), Ints{7});
}

TEST_F(SimulatorNccl, SendsAreBufferedAndKeepTheirOrder) {
  for (const int value : {1, 2, 3}) {
    give<int>(0, {value});
    EXPECT_NCCL(ncclSend(sent_[0], 1, ncclInt32, 1, comms_[0], nullptr));
  }
  for (const int value : {1, 2, 3}) {
    EXPECT_NCCL(ncclRecv(received_[1], 1, ncclInt32, 0, comms_[1], nullptr));
    EXPECT_EQ(received<int>(1, 1), Ints{value});
  }
}

TEST_F(SimulatorNccl, ALargeCollectiveMovesNothingAndWaitsForNobody) {
  give<int>(0, {7});
  EXPECT_NCCL(ncclAllReduce(sent_[0], received_[0], kBytes / 4, ncclInt32, ncclSum, comms_[0], nullptr));
  EXPECT_EQ(received<int>(0, 1), Ints{0});
  EXPECT_NCCL(ncclAllReduce(sent_[1], received_[1], kBytes / 4, ncclInt32, ncclSum, comms_[1], nullptr));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclSum, {1}, {2}), Ints{3}) << "the next call is matched with the next";
}

TEST_F(SimulatorNccl, WhatIsReceivedIsAsKnownAsWhatRanksGive) {
  const auto is_known = [&](std::size_t bytes) { return cachalot_sim_get(nullptr, received_[0], bytes) == 1; };
  const auto all_reduce = [&](int rank) {
    return ncclAllReduce(sent_[rank], received_[rank], 2, ncclInt32, ncclSum, comms_[rank], nullptr);
  };
  give<int>(0, {1, 2});
  give<int>(1, {3, 4});
  for_both(all_reduce);
  EXPECT_TRUE(is_known(8));
  EXPECT_EQ(cachalot_sim_make_unknown(static_cast<char*>(sent_[1]) + 4, 4), cudaSuccess);
  for_both(all_reduce);
  EXPECT_FALSE(is_known(8));
  EXPECT_TRUE(is_known(4)) << "element by element";
  EXPECT_EQ(received<int>(0, 2), (Ints{4, 2})) << "unknown values are zeros";
  give<int>(1, {3, 4});
  for_both(all_reduce);
  for_both([&](int rank) {
    return ncclAllReduce(sent_[rank], received_[rank], kBytes / 4, ncclInt32, ncclSum, comms_[rank], nullptr);
  });
  EXPECT_FALSE(is_known(8));
  EXPECT_EQ(received<int>(0, 2), (Ints{0, 0})) << "what is not moved is unknown";
}

TEST_F(SimulatorNccl, ACollectiveIsALaunchOnItsStream) {
  ASSERT_CUDA(cudaSetDevice(0));
  cudaStream_t stream = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_NCCL(ncclAllReduce(sent_[0], received_[0], kBytes / 4, ncclInt32, ncclSum, comms_[0], stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  cudaGetLastError();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_NCCL(ncclAllReduce(sent_[0], received_[0], 1, ncclInt32, ncclSum, comms_[0], stream));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1U);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST_F(SimulatorNccl, MemoryIsTakenWithTheFirstUseAndGivenBack) {
  ASSERT_CUDA(cudaSetDevice(0));
  const std::size_t before = used_bytes();
  reduced<int>(ncclInt32, ncclSum, {1}, {2});
  const std::size_t connected = used_bytes();
  EXPECT_EQ(connected - before, 2 * 10 * kMib) << "two channels of an L4, each with 9.2 MiB in units of 2 MiB";
  reduced<int>(ncclInt32, ncclSum, {1}, {2});
  EXPECT_EQ(used_bytes(), connected);
  ncclComm_t others[2] = {};
  ASSERT_NCCL(ncclCommInitAll(others, 2, nullptr));
  EXPECT_EQ(used_bytes(), connected + 2 * kMib);
  for (const ncclComm_t other : others) EXPECT_NCCL(ncclCommDestroy(other));
  EXPECT_EQ(used_bytes(), connected);
}

TEST_F(SimulatorNccl, ACommunicatorTellsItsMemory) {
  ASSERT_CUDA(cudaSetDevice(0));
  const auto statistic = [&](ncclCommMemStat_t which) {
    std::uint64_t value = ~std::uint64_t{0};
    EXPECT_NCCL(ncclCommMemStats(comms_[0], which, &value));
    return value;
  };
  const std::uint64_t begin = statistic(ncclStatGpuMemTotal);
  EXPECT_GT(begin, 0U);
  EXPECT_LT(begin, 2 * kMib);
  const std::size_t before = used_bytes();
  reduced<int>(ncclInt32, ncclSum, {1}, {2});
  const std::uint64_t connected = statistic(ncclStatGpuMemTotal);
  EXPECT_GT(connected - begin, 2 * 8 * kMib);
  EXPECT_LE(connected - begin, used_bytes() - before);
  EXPECT_EQ(statistic(ncclStatGpuMemPersist), begin);
  EXPECT_EQ(statistic(ncclStatGpuMemSuspend), connected - begin);
  EXPECT_EQ(statistic(ncclStatGpuMemSuspended), 0U);
  std::uint64_t value = 0;
  EXPECT_EQ(ncclCommMemStats(comms_[0], static_cast<ncclCommMemStat_t>(4), &value), ncclInvalidArgument);
  EXPECT_EQ(ncclCommMemStats(comms_[0], ncclStatGpuMemTotal, nullptr), ncclInvalidArgument);
}

TEST_F(SimulatorNccl, ASuspendedCommunicatorGivesItsBuffersBack) {
  ASSERT_CUDA(cudaSetDevice(0));
  const std::size_t before = used_bytes();
  reduced<int>(ncclInt32, ncclSum, {1}, {2});
  const std::size_t connected = used_bytes();
  const auto suspended = [&] {
    std::uint64_t value = 0;
    EXPECT_NCCL(ncclCommMemStats(comms_[0], ncclStatGpuMemSuspended, &value));
    return value;
  };
  EXPECT_EQ(ncclCommResume(comms_[0]), ncclInvalidUsage);
  EXPECT_NCCL(ncclCommSuspend(comms_[0], 0)) << "nothing is asked for";
  EXPECT_EQ(suspended(), 0U);
  ASSERT_NCCL(ncclCommSuspend(comms_[0], kNcclSuspendMemory));
  EXPECT_EQ(suspended(), 1U);
  EXPECT_EQ(used_bytes(), before);
  EXPECT_EQ(ncclCommSuspend(comms_[0], kNcclSuspendMemory), ncclInvalidUsage);
  EXPECT_EQ(ncclAllReduce(sent_[0], received_[0], 1, ncclInt32, ncclSum, comms_[0], nullptr), ncclInvalidUsage);
  void* rest = nullptr;
  ASSERT_CUDA(cudaMalloc(&rest, free_bytes() - 4 * kMib));
  EXPECT_EQ(ncclCommResume(comms_[0]), ncclUnhandledCudaError);
  EXPECT_EQ(free_bytes(), 4 * kMib) << "nothing of it is taken";
  ASSERT_CUDA(cudaFree(rest));
  ASSERT_NCCL(ncclCommResume(comms_[0]));
  EXPECT_EQ(used_bytes(), connected);
  EXPECT_EQ(reduced<int>(ncclInt32, ncclSum, {1}, {2}), Ints{3});
}

TEST_F(SimulatorNccl, ACommunicatorTellsItsTeamsAndProperties) {
  const ncclTeam_t world = ncclTeamWorld(comms_[1]);
  EXPECT_EQ(world.count, 2);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(ncclTeamLsa(comms_[1]).count, 2) << "both are of one machine";
  const ncclTeam_t rail = ncclTeamRail(comms_[1]);
  EXPECT_EQ(rail.count, 1);
  EXPECT_EQ(ncclTeamRankToWorld(comms_[1], rail, 0), 1);
  EXPECT_EQ(ncclTeamRankToLsa(comms_[1], world, 0), 0);
  EXPECT_EQ(ncclTeamWorld(nullptr).count, 0);
  ncclCommProperties_t properties{};
  properties.magic = kNcclConfigMagic;
  properties.version = 23007;
  properties.ginType = 7;
  ASSERT_NCCL(ncclCommQueryProperties(comms_[1], &properties));
  EXPECT_EQ(properties.rank, 1);
  EXPECT_EQ(properties.nRanks, 2);
  EXPECT_EQ(properties.cudaDev, 1);
  EXPECT_EQ(properties.nvmlDev, 1);
  EXPECT_FALSE(properties.deviceApiSupport);
  EXPECT_EQ(properties.ginType, 0);
  EXPECT_EQ(properties.nLsaTeams, 1);
  properties.magic = 0;
  EXPECT_EQ(ncclCommQueryProperties(comms_[1], &properties), ncclInvalidUsage);
}

TEST_F(SimulatorNccl, AskedForMemoryItGivesThatOfTheDevice) {
  ASSERT_CUDA(cudaSetDevice(1));
  const std::size_t before = used_bytes();
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, 3 * kMib));
  EXPECT_EQ(used_bytes(), before + 4 * kMib);
  cudaPointerAttributes attributes{};
  EXPECT_CUDA(cudaPointerGetAttributes(&attributes, memory));
  EXPECT_EQ(attributes.device, 1);
  ncclWindow_t window = nullptr;
  EXPECT_NCCL(ncclCommWindowRegister(comms_[1], memory, 3 * kMib, &window, 1));
  EXPECT_NE(window, nullptr);
  EXPECT_EQ(used_bytes(), before + 4 * kMib) << "a window has the memory that is registered";
  void* registered = nullptr;
  EXPECT_NCCL(ncclWinGetUserPtr(comms_[1], window, &registered));
  EXPECT_EQ(registered, memory);
  EXPECT_EQ(ncclWinGetUserPtr(comms_[0], window, &registered), ncclInvalidArgument) << "of another communicator";
  EXPECT_NCCL(ncclCommWindowDeregister(comms_[1], window));
  EXPECT_NCCL(ncclMemFree(memory));
  EXPECT_NCCL(ncclMemFree(nullptr));
  EXPECT_EQ(used_bytes(), before);
  EXPECT_EQ(ncclMemAlloc(&memory, free_bytes() + kMib), ncclUnhandledCudaError);
  EXPECT_EQ(ncclMemFree(comms_), ncclUnhandledCudaError) << "not an address of device memory";
}

TEST_F(SimulatorNccl, RegisteredMemoryMustKeepItsPages) {
  ASSERT_CUDA(cudaSetDevice(0));
  void* handle = nullptr;
  ncclWindow_t window = nullptr;
  ASSERT_NCCL(ncclCommRegister(comms_[0], sent_[0], kBytes, &handle));
  ASSERT_NCCL(ncclCommWindowRegister(comms_[0], received_[0], kBytes, &window, 1));
  EXPECT_EQ(reduced<int>(ncclInt32, ncclSum, {1}, {2}), std::vector<int>{3});
  void* const before = sent_[0];
  ASSERT_CUDA(cudaFree(sent_[0]));
  void* other = nullptr;
  ASSERT_CUDA(cudaMalloc(&other, kBytes));
  EXPECT_EQ(ncclAllReduce(before, received_[0], 1, ncclInt32, ncclSum, comms_[0], nullptr), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("registered"), std::string::npos);
  EXPECT_NCCL(ncclCommDeregister(comms_[0], handle));
  EXPECT_EQ(ncclCommDeregister(comms_[0], handle), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommWindowDeregister(comms_[0], window));
  sent_[0] = other;
}

TEST_F(SimulatorNccl, WithoutMemoryTheFirstUseFails) {
  ASSERT_CUDA(cudaSetDevice(0));
  void* rest = nullptr;
  ASSERT_CUDA(cudaMalloc(&rest, free_bytes() - 4 * kMib));
  EXPECT_EQ(ncclAllReduce(sent_[0], received_[0], 1, ncclInt32, ncclSum, comms_[0], nullptr), ncclUnhandledCudaError);
  EXPECT_STREQ(ncclGetLastError(nullptr), "NCCL's cudaMalloc: out of memory");
  EXPECT_CUDA(cudaFree(rest));
}

TEST_F(SimulatorNccl, ASplitMakesACommunicatorForEachColor) {
  ncclComm_t together[2] = {};
  for_both([&](int rank) { return ncclCommSplit(comms_[rank], 5, -rank, &together[rank], nullptr); });
  int rank = -1;
  EXPECT_NCCL(ncclCommUserRank(together[0], &rank));
  EXPECT_EQ(rank, 1) << "the key orders the ranks";
  int count = 0;
  EXPECT_NCCL(ncclCommCount(together[0], &count));
  EXPECT_EQ(count, 2);
  give<int>(1, {9});
  for_both([&](int at) { return ncclBroadcast(sent_[at], received_[at], 1, ncclInt32, 0, together[at], nullptr); });
  EXPECT_EQ(received<int>(0, 1), Ints{9});

  ncclComm_t alone[2] = {};
  for_both([&](int at) { return ncclCommSplit(comms_[at], at == 0 ? 3 : kNcclNoColor, 0, &alone[at], nullptr); });
  EXPECT_NCCL(ncclCommCount(alone[0], &count));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(alone[1], nullptr);
  for (const ncclComm_t comm : {together[0], together[1], alone[0]}) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST_F(SimulatorNccl, AShrunkCommunicatorHasTheRanksThatAreLeft) {
  int excluded[] = {0};
  ncclComm_t rest = nullptr;
  ASSERT_NCCL(ncclCommShrink(comms_[1], excluded, 1, &rest, nullptr, 0));
  int count = 0;
  EXPECT_NCCL(ncclCommCount(rest, &count));
  EXPECT_EQ(count, 1);
  EXPECT_EQ(ncclCommShrink(comms_[0], excluded, 1, &rest, nullptr, 0), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommDestroy(rest));
}

TEST_F(SimulatorNccl, AnAbortEndsTheWaitOfAnotherThread) {
  ncclComm_t pair[2] = {};
  ASSERT_NCCL(ncclCommInitAll(pair, 2, nullptr));
  ncclResult_t result = ncclSuccess;
  std::thread waiting([&] { result = ncclAllReduce(sent_[0], received_[0], 1, ncclInt32, ncclSum, pair[0], nullptr); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it waits
  EXPECT_NCCL(ncclCommAbort(pair[0]));
  waiting.join();
  EXPECT_EQ(result, ncclInternalError);
  EXPECT_NCCL(ncclAllReduce(sent_[1], received_[1], 1, ncclInt32, ncclSum, pair[1], nullptr)) << "it had sent its part";
  EXPECT_EQ(ncclAllReduce(sent_[1], received_[1], 1, ncclInt32, ncclSum, pair[1], nullptr), ncclRemoteError)
      << "the other rank has left the communicator";
  EXPECT_NCCL(ncclCommDestroy(pair[1]));
}

TEST_F(SimulatorNccl, ThreadsMeetInACommunicatorOfAnId) {
  ncclUniqueId id{};
  ASSERT_NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_CUDA(cudaSetDevice(rank));
      ncclComm_t comm = nullptr;
      EXPECT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
      int device = -1;
      EXPECT_NCCL(ncclCommCuDevice(comm, &device));
      EXPECT_EQ(device, rank);
      give<int>(rank, {rank + 1});
      EXPECT_NCCL(ncclAllReduce(sent_[rank], received_[rank], 1, ncclInt32, ncclSum, comm, nullptr));
      EXPECT_EQ(received<int>(rank, 1), Ints{3});
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SimulatorNccl, ARankThatComesAfterItsCommunicatorWasRefusedIsRefused) {
  ncclUniqueId id{};
  ASSERT_NCCL(ncclGetUniqueId(&id));
  const auto join = [&](int rank) {
    EXPECT_CUDA(cudaSetDevice(0));
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclInvalidUsage) << "two ranks are on a device";
  };
  std::thread first(join, 0);
  join(1);
  first.join();
  join(2);
}

TEST_F(SimulatorNccl, BadArgumentsAreInvalid) {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 0), ncclInvalidArgument) << "an id of nobody";
  ASSERT_NCCL(ncclGetUniqueId(&id));
  EXPECT_EQ(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument);
  EXPECT_STREQ(ncclGetLastError(nullptr), "invalid rank requested: 2 of 2 ranks");
  EXPECT_EQ(ncclBroadcast(sent_[0], received_[0], 1, ncclInt32, 2, comms_[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(sent_[0], nullptr, 1, ncclInt32, ncclSum, comms_[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclAllReduce(sent_[0], received_[0], 1, ncclNumTypes, ncclSum, comms_[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommCount(reinterpret_cast<ncclComm_t>(&id), nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(ncclCommInitRankScalable(&comm, 1, 0, 0, nullptr, nullptr), ncclInvalidArgument);
}

TEST_F(SimulatorNccl, TheVersionIsThatOfTorch) {
  int version = 0;
  EXPECT_NCCL(ncclGetVersion(&version));
  EXPECT_EQ(version, 22809);
  EXPECT_STREQ(ncclGetErrorString(ncclRemoteError), "remote process exited or there was a network error");
}

}  // namespace
}  // namespace cachalot
