// How much device memory NCCL takes for a communicator, and when: an estimate, from how NCCL 2.28.9 allocates
// (memory_model.cpp names the files); and the memory itself.
//
// * When the communicator is made: tables of the other ranks for each channel, and the communicator itself.
// * When an algorithm is first used, its connections (NCCL_RUNTIME_CONNECT, the default since 2.22): for each channel, and each
//   rank that this one receives from, a buffer with a part for each protocol: Simple (NCCL_BUFFSIZE), LL and LL128.
//
// The number of channels depends on links that are not simulated: see `channels`. simulator/README.md, "NCCL", has the spread.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "simulator/context_costs.h"
#include "simulator/gpu_models.h"

namespace cachalot::simulator::nccl {

// The user's limits: minCTAs and maxCTAs of the configuration, NCCL_MIN_CTAS and NCCL_MAX_CTAS (or _NCHANNELS). 0: none.
struct ChannelLimits {
  int least = 0;
  int most = 0;
};

// Reads the environment, which goes before the configuration's values, as in NCCL.
ChannelLimits limits_of(int config_least, int config_most);

// Returns the number of channels of collectives.
int channels(const GpuModel& gpu, const ChannelLimits& limits);
// Returns the number of channels between two ranks that send and receive.
int channels_of_pair(const GpuModel& gpu, const ChannelLimits& limits);

// All in bytes, as they are asked for: the device gives units of 2 MiB.
std::size_t communicator_bytes(int channels, int ranks);
std::size_t receive_buffer_bytes();

// Returns the spread of so many bytes that a device was charged with: from half to twice of them.
Spread spread_of(std::size_t bytes);

// The device memory of one communicator, which grows when it is first used in a way. Not thread-safe, as a
// communicator is not.
class ChannelMemory {
 public:
  // Each takes memory of the device, unless it was taken before, and throws ncclUnhandledCudaError if there is none.
  void make(int device, int ranks, const ChannelLimits& limits);
  void connect_ring() { connect(kRing, channels_); }
  void connect_tree() { connect(kTree, channels_); }
  void connect_from(int peer) { connect(peer, channels_of_pair_); }

  ChannelMemory() = default;
  ~ChannelMemory() { free_all(); }
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;
  void free_all();
  std::size_t bytes() const { return bytes_; }

 private:
  // Connections by what they are for: a rank that sends to this one, or an algorithm.
  static constexpr int kRing = -1;
  static constexpr int kTree = -2;

  void connect(int what, int channels);
  void take(std::size_t bytes);

  int device_ = 0;
  int channels_ = 0;
  int channels_of_pair_ = 0;
  std::set<int> connected_;
  std::vector<void*> taken_;
  std::size_t bytes_ = 0;
};

}  // namespace cachalot::simulator::nccl
