// The GPUs the simulator can be: what a program can ask of a device, as published.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::simulator {

struct GpuModel {
  std::string_view key;      // as in CACHALOT_SIM_GPU
  std::string_view product;  // as cudaDeviceProp::name
  std::size_t memory_bytes;  // as cudaDeviceProp::totalGlobalMem: what the driver leaves of the nominal size
  int major;                 // compute capability
  int minor;
  int multiprocessors;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  std::size_t shared_per_multiprocessor;
  std::size_t shared_per_block_optin;
  std::size_t l2_bytes;
  int memory_bus_bits;
  int clock_khz;
  int memory_clock_khz;
  int pci_device_id;
};

std::span<const GpuModel> gpu_models();
// Throws InvalidArgument, which names the keys there are.
const GpuModel& find_gpu_model(std::string_view key);
// "h200, h100, …"
std::string gpu_model_keys();

}  // namespace cachalot::simulator
