// One rank of a communicator, in a process of its own: nccl_rank ID RANK RANKS WHAT. It prints results, one per line.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "simulator/nccl/nccl_abi.h"

using namespace cachalot::simulator::nccl;

namespace {

struct Rank {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int ranks = 0;
  int* memory = nullptr;  // of the device: room for 16 numbers, of which the first is rank + 1
};

void print(const char* what, ncclResult_t result, int value) {
  std::printf("%s %d %d\n", what, static_cast<int>(result), value);
  std::fflush(stdout);
}

int read(const int* memory) {
  int value = 0;
  cudaMemcpy(&value, memory, sizeof(value), cudaMemcpyDeviceToHost);
  return value;
}

void all_reduce(const Rank& own) {
  const ncclResult_t result = ncclAllReduce(own.memory, own.memory, 1, ncclInt32, ncclSum, own.comm, nullptr);
  print("sum", result, read(own.memory));
}

// Rank 1 ends, in one way or another; the others must learn it.
void wait_for_rank_1(const Rank& own) {
  const ncclResult_t result = ncclAllReduce(own.memory, own.memory, 1, ncclInt32, ncclSum, own.comm, nullptr);
  ncclResult_t state = ncclSuccess;
  ncclCommGetAsyncError(own.comm, &state);
  print("gone", result, state);
}

void rank_1_is_killed(const Rank& own) {
  if (own.rank == 1) raise(SIGKILL);
  wait_for_rank_1(own);
}

// The child has the descriptors of its parent.
void rank_1_leaves_a_child(const Rank& own) {
  if (own.rank == 1) {
    if (fork() == 0) {
      std::fclose(stdout);
      std::fclose(stderr);
      sleep(20);
    }
    _exit(0);
  }
  wait_for_rank_1(own);
}

// A large call does not wait, and yet the communicator has an error afterwards.
void rank_1_is_killed_before_a_large_call(const Rank& own) {
  if (own.rank == 1) raise(SIGKILL);
  void* large = nullptr;
  cudaMalloc(&large, std::size_t{4} << 20);
  const ncclResult_t result = ncclAllReduce(large, large, 1 << 20, ncclInt32, ncclSum, own.comm, nullptr);
  ncclResult_t state = ncclSuccess;
  for (int tries = 0; tries < 1000 && state == ncclSuccess; ++tries) {
    usleep(10'000);
    ncclCommGetAsyncError(own.comm, &state);
  }
  print("large", result, state);
}

// A rank that has made its calls may end before the others have made theirs.
void rank_1_ends_first(const Rank& own) {
  void* large = nullptr;
  cudaMalloc(&large, std::size_t{4} << 20);
  if (own.rank != 1) sleep(1);
  ncclAllReduce(large, large, 1 << 20, ncclInt32, ncclSum, own.comm, nullptr);
  if (own.rank == 1) {
    ncclSend(own.memory, 1, ncclInt32, 0, own.comm, nullptr);
    _exit(0);
  }
  const ncclResult_t result = ncclRecv(own.memory + 1, 1, ncclInt32, 1, own.comm, nullptr);
  ncclResult_t state = ncclSuccess;
  ncclCommGetAsyncError(own.comm, &state);
  print("received", result == ncclSuccess ? state : result, read(own.memory + 1));
}

void ranks_disagree(const Rank& own) {
  const ncclResult_t result = own.rank == 0
                                  ? ncclAllReduce(own.memory, own.memory, 1, ncclInt32, ncclSum, own.comm, nullptr)
                                  : ncclAllGather(own.memory, own.memory, 1, ncclInt32, own.comm, nullptr);
  print(ncclGetLastError(own.comm), result, 0);
}

// The other calls, for a rank whose others are absent.
void rest(const Rank& own) {
  int* gathered = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&gathered), static_cast<std::size_t>(own.ranks) * sizeof(int));
  ncclResult_t result = ncclAllGather(own.memory, gathered, 1, ncclInt32, own.comm, nullptr);
  int sum = 0;
  for (int rank = 0; rank < own.ranks; ++rank) sum += read(gathered + rank);
  print("gathered", result, sum);
  ncclComm_t child = nullptr;
  result = ncclCommSplit(own.comm, 1, 0, &child, nullptr);
  int count = 0;
  ncclCommCount(child, &count);
  ncclCommDestroy(child);
  print("split", result, count);
  ncclSend(own.memory, 1, ncclInt32, own.ranks - 1, own.comm, nullptr);
  result = ncclRecv(own.memory, 1, ncclInt32, own.ranks - 1, own.comm, nullptr);
  print("received", result, read(own.memory));
  result = ncclBroadcast(nullptr, own.memory, 1, ncclInt32, own.ranks - 1, own.comm, nullptr);
  print("broadcast", result, read(own.memory));
}

ncclUniqueId id_of(const char* digits) {
  ncclUniqueId id{};
  for (std::size_t i = 0; i < sizeof(id.internal) && std::strlen(digits) >= 2 * (i + 1); ++i)
    id.internal[i] = static_cast<char>(std::strtoul(std::string(digits + 2 * i, 2).c_str(), nullptr, 16));
  return id;
}

}  // namespace

int main(int count, char** arguments) {
  static const std::map<std::string, void (*)(const Rank&)> kPrograms{
      {"all_reduce", all_reduce},
      {"rank_1_is_killed", rank_1_is_killed},
      {"rank_1_leaves_a_child", rank_1_leaves_a_child},
      {"rank_1_is_killed_before_a_large_call", rank_1_is_killed_before_a_large_call},
      {"rank_1_ends_first", rank_1_ends_first},
      {"ranks_disagree", ranks_disagree},
      {"rest", rest},
  };
  if (count != 5 || !kPrograms.contains(arguments[4])) return 2;
  Rank own{.rank = std::atoi(arguments[2]), .ranks = std::atoi(arguments[3])};
  const ncclResult_t joined = ncclCommInitRank(&own.comm, own.ranks, id_of(arguments[1]), own.rank);
  if (joined != ncclSuccess) {
    print(ncclGetLastError(nullptr), joined, 0);
    return 0;
  }
  cudaMalloc(reinterpret_cast<void**>(&own.memory), 16 * sizeof(int));
  const int value = own.rank + 1;
  cudaMemcpy(own.memory, &value, sizeof(value), cudaMemcpyHostToDevice);
  kPrograms.at(arguments[4])(own);
  ncclCommDestroy(own.comm);
  return 0;
}
