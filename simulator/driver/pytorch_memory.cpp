// Learns of the blocks of PyTorch's allocators. libc10_cuda, and cachalot's adapter, report each block that they allocate or free to
// PyTorch's memory profiler, a function of libc10: where this library is preloaded, this library gets the reports first.
//
// PyTorch has hooks in Python for this (torch.cuda._gpu_trace). They would clear the exception that Python is raising when a
// block is freed, such as that which ends the recomputation of an activation checkpoint (PyTorch 2.11).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

#include "cachalot/simulator.h"

namespace {

constexpr const char* kLibrary = "libc10.so";
constexpr const char* kReport = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE";
constexpr const char* kIsOn = "_ZN3c1022memoryProfilingEnabledEv";

// c10::Device: its type and its number.
struct TorchDevice {
  std::int8_t type = 0;
  std::int8_t index = 0;
};
constexpr std::int8_t kCuda = 1;

// Returns libc10's own function, or null where it is not loaded.
template <typename Function>
Function* own_function(const char* name) {
  void* const library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

bool finds_races() {
  static const bool finds = [] {
    const char* const setting = cachalot_sim_setting("races");
    return setting != nullptr && setting[0] == '1';
  }();
  return finds;
}

}  // namespace

// PyTorch's functions, under their mangled names.
extern "C" {

__attribute__((visibility("default"))) void cachalot_sim_report_memory(
    void* start, std::int64_t change, std::size_t allocated, std::size_t reserved,
    TorchDevice device) __asm__("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
__attribute__((visibility("default"))) bool cachalot_sim_is_memory_profiled() __asm__(
    "_ZN3c1022memoryProfilingEnabledEv");

void cachalot_sim_report_memory(void* start, std::int64_t change, std::size_t allocated, std::size_t reserved,
                                TorchDevice device) {
  const auto address = reinterpret_cast<std::uint64_t>(start);
  if (device.type == kCuda && finds_races()) {
    if (change > 0)
      cachalot_sim_block_allocated(device.index, address, static_cast<std::uint64_t>(change));
    else
      cachalot_sim_block_freed(address);
  }
  static auto* const report = own_function<void(void*, std::int64_t, std::size_t, std::size_t, TorchDevice)>(kReport);
  if (report != nullptr) report(start, change, allocated, reserved, device);
}

// The answer is PyTorch's own unless races are watched, for which cachalot's adapter must report.
bool cachalot_sim_is_memory_profiled() {
  static auto* const is_on = own_function<bool()>(kIsOn);
  return finds_races() || (is_on != nullptr && is_on());
}

}  // extern "C"
