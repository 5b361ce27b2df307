#include "simulator/nccl/memory_model.h"

#include <algorithm>
#include <cstdlib>

#include "base/bytes.h"
#include "simulator/nccl/abi.h"
#include "simulator/nccl/nccl_calls.h"

namespace cachalot::simulator::nccl {
namespace {

// All from the sources of NCCL 2.28.9 (github.com/NVIDIA/nccl, tag v2.28.9-1), unless it is called an estimate.
//
// src/include/device.h: NCCL_STEPS of a buffer; then lines or elements per thread, threads, and bytes of each
// (NCCL_LL_LINES_PER_THREAD, NCCL_LL_MAX_NTHREADS, ncclLLFifoLine; NCCL_LL128_ELEMS_PER_THREAD, NCCL_LL128_MAX_NTHREADS,
// std::uint64_t). src/init.cc, computeBuffSizes, makes buffers of them.
constexpr std::size_t kSteps = 8;
constexpr std::size_t kLlBytes = kSteps * 8 * 512 * 16;
constexpr std::size_t kLl128Bytes = kSteps * 120 * 640 * 8;
constexpr std::size_t kSimpleBytes = 4 * kMiB;  // src/init.cc, DEFAULT_BUFFSIZE; NCCL_BUFFSIZE
// src/include/comm.h, ncclRecvMem, which src/transport/p2p.cc, p2pRecvSetup, allocates in front of the buffers.
constexpr std::size_t kFlagBytes = 4 * kKiB;

constexpr int kMostChannels = 64;                      // src/include/device.h, MAXCHANNELS
constexpr std::size_t kPeerBytes = 640;                // ncclDevChannelPeer, an estimate: four connections
constexpr std::size_t kCommunicatorBytes = 64 * kKiB;  // what src/init.cc, devCommSetup, allocates, an estimate

// A whole number from 1 on; 0 otherwise.
long positive(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::max(0L, std::strtol(text, nullptr, 10)) : 0;
}

int limit(const char* variable, const char* older, int config) {
  for (const char* name : {variable, older}) {
    if (const long value = positive(name); value > 0) return static_cast<int>(std::min<long>(value, kMostChannels));
  }
  return config == kNcclUndefined ? 0 : std::clamp(config, 0, kMostChannels);
}

// GPUs for servers with NVLink: of the capability x.0.
bool has_nvlink(const GpuModel& gpu) { return gpu.minor == 0 && gpu.major < 12; }

int limited(int count, const ChannelLimits& limits) {
  if (limits.most > 0) count = std::min(count, limits.most);
  return std::max(count, limits.least);
}

}  // namespace

ChannelLimits limits_of(int config_least, int config_most) {
  return {limit("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", config_least),
          limit("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", config_most)};
}

// An estimate, as NCCL_DEBUG=INFO prints for servers with NVSwitch and for cards on PCIe: src/graph/search.cc and
// src/graph/connect.cc count channels by links that are not simulated.
int channels(const GpuModel& gpu, const ChannelLimits& limits) {
  constexpr int kVolta = 7;
  if (!has_nvlink(gpu)) return limited(2, limits);
  return limited(gpu.major == kVolta ? 12 : 24, limits);
}

int channels_of_pair(const GpuModel& gpu, const ChannelLimits& limits) {
  return std::min(channels(gpu, limits), has_nvlink(gpu) ? 4 : 2);
}

std::size_t communicator_bytes(int channels, int ranks) {
  return kCommunicatorBytes + static_cast<std::size_t>(channels) * static_cast<std::size_t>(ranks) * kPeerBytes;
}

std::size_t receive_buffer_bytes() {
  const long simple = positive("NCCL_BUFFSIZE");
  return kFlagBytes + kLlBytes + kLl128Bytes + (simple > 0 ? static_cast<std::size_t>(simple) : kSimpleBytes);
}

// An estimate: the number of channels of a machine is half or twice that of `channels`.
Spread spread_of(std::size_t bytes) { return {bytes / 2, bytes}; }

void ChannelMemory::make(int device, int ranks, const ChannelLimits& limits) {
  device_ = device;
  const GpuModel* gpu = nullptr;
  on_process("cudaGetDevice", [&](Process& process) { gpu = process.config().gpu; });
  channels_ = channels(*gpu, limits);
  channels_of_pair_ = channels_of_pair(*gpu, limits);
  take(communicator_bytes(channels_, ranks));
}

void ChannelMemory::connect(int what, int channels) {
  if (connected_.contains(what)) return;
  for (int channel = 0; channel < channels; ++channel) take(receive_buffer_bytes());
  connected_.insert(what);
}

void ChannelMemory::take(std::size_t bytes) {
  taken_.reserve(taken_.size() + 1);
  void* start = nullptr;
  require_cuda("NCCL's cudaMalloc", guarded([&](Process& process) {
                 start =
                     process.allocations().malloc_for_nccl(process.devices().at(device_), NcclMemory::buffers, bytes);
                 return start ? cudaSuccess : cudaErrorMemoryAllocation;
               }));
  taken_.push_back(start);
  bytes_ += bytes;
}

// After a reset of the device there is nothing to free.
void ChannelMemory::free_all() {
  for (void* start : taken_) {
    guarded([&](Process& process) {
      process.allocations().free_of_nccl(NcclMemory::buffers, reinterpret_cast<Address>(start));
      return cudaSuccess;
    });
  }
  taken_.clear();
  bytes_ = 0;
  connected_.clear();
}

}  // namespace cachalot::simulator::nccl
