// The GPUs that the simulator can be, with what a program can ask of a device.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::simulator {

struct GpuModel {
  std::string_view key;      // as `gpu` of CACHALOT_SIM
  std::string_view aliases;  // other names, separated by spaces
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
  bool integrated;  // its memory is the machine's, which the processor uses, too
};

// Returns every model, in the order of the table.
std::span<const GpuModel> gpu_models();

// Returns the model of a name: its key, an alias or its product's name. Upper and lower case, spaces, dashes, "NVIDIA",
// "GeForce" and "Tesla", a leading "RTX" and a trailing "GB" make no difference. Throws InvalidArgument, which names the
// nearest model.
const GpuModel& find_gpu_model(std::string_view name);

}  // namespace cachalot::simulator
