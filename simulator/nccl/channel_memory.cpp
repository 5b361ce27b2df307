#include "simulator/nccl/channel_memory.h"

#include "simulator/nccl/errors.h"

namespace cachalot::simulator::nccl {

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
