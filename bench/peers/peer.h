// The common parts of every peer's program: streams, the simulated runtime's counters, and figures as lines of JSON. On a GPU
// there are no counters, and no memory that they count.
//
// A peer is an allocator on device 0 of the CUDA runtime that the process has loaded; bench/workloads.h says what it must
// be able to do (Allocates). Its calls may come from any thread; stream() from one thread alone.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/workloads.h"
#include "cachalot/simulator.h"

namespace cachalot::bench {

inline void check_cuda(const char* call, cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// The common parts of peers, and their properties that the figures need.
class PeerBase {
 public:
  static constexpr bool kFixedMemory = false;    // takes all its memory at once: how much says nothing
  static constexpr bool kLinearInHoles = false;  // a pair's time grows with the number of holes
  static constexpr bool kMillionBlocks = true;   // a million live blocks take seconds, not minutes

  // A stream of its own for each index.
  Stream stream(int index) {
    while (static_cast<std::size_t>(index) >= streams_.size()) {
      cudaStream_t made = nullptr;
      check_cuda("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
      streams_.push_back(made);
    }
    return streams_[static_cast<std::size_t>(index)];
  }

 private:
  std::vector<Stream> streams_;
};

// The simulated runtime's functions beyond CUDA (cachalot/simulator.h), looked up in the process.
class Simulator {
 public:
  Simulator() {
    find(launch_, "cachalot_sim_launch");
    find(advance_, "cachalot_sim_advance");
    find(peak_used_bytes_, "cachalot_sim_peak_used_bytes");
    find(calls_, "cachalot_sim_calls");
  }

  // False on a GPU: nothing is counted.
  bool is_there() const { return launch_ != nullptr; }

  // Work on a block, queued on its stream; the host's time goes on. Nothing on a GPU.
  void use(Stream stream) const {
    if (!is_there()) return;
    constexpr std::int64_t kWorkNs = 10'000;
    constexpr std::int64_t kHostNs = 1'000;
    launch_(stream, kWorkNs);
    advance_(kHostNs);
  }
  std::int64_t peak_used_bytes() const { return peak_used_bytes_(0); }
  // Calls that take, give back, map or unmap memory.
  std::int64_t memory_calls() const {
    return count({"malloc", "free", "reserve", "unreserve", "create", "release", "map", "unmap", "set_access"});
  }
  // Calls that make streams wait for each other, or ask whether they are done.
  std::int64_t event_calls() const {
    return count({"event_create", "event_destroy", "event_record", "event_query", "event_synchronize", "stream_wait",
                  "synchronize"});
  }

 private:
  template <typename Function>
  static void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  std::int64_t count(std::initializer_list<const char*> names) const {
    std::int64_t sum = 0;
    for (const char* name : names) sum += calls_(0, name);
    return sum;
  }

  decltype(cachalot_sim_launch)* launch_ = nullptr;
  decltype(cachalot_sim_advance)* advance_ = nullptr;
  decltype(cachalot_sim_peak_used_bytes)* peak_used_bytes_ = nullptr;
  decltype(cachalot_sim_calls)* calls_ = nullptr;
};

// One line of JSON on standard output.
inline void print_figure(const std::string& name, double value, const char* unit) {
  std::printf("{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name.c_str(), value, unit);
  std::fflush(stdout);
}
inline void print_left_out(const std::string& name, const char* why) {
  std::printf("{\"figure\": \"%s\", \"left_out\": \"%s\"}\n", name.c_str(), why);
  std::fflush(stdout);
}

}  // namespace cachalot::bench
