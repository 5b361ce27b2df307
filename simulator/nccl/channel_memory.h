// The device memory of one communicator, which grows when it is first used in a way (memory_model.h). Not thread-safe, as a
// communicator is not.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "simulator/nccl/memory_model.h"

namespace cachalot::simulator::nccl {

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
