// NVML: the frame of its functions, and what they know of the machine.
//
// A call of NVML does not count as one of CUDA: a process that asks it may fork, and its child may use CUDA; a forked child may ask it; and
// it lists all devices of the machine, whatever CUDA_VISIBLE_DEVICES leaves.
//
// Thread-safe, as NVML is.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/models/config.h"

// NVML's header is not among CUDA's: functions and types are declared as it has them.
#define NVML_FUNCTION(name) extern "C" __attribute__((visibility("default"))) int name

namespace cachalot::simulator {

// nvmlReturn_t
enum NvmlResult : int {
  kNvmlSuccess = 0,
  kNvmlInvalidArgument = 2,
  kNvmlNotSupported = 3,
  kNvmlNotFound = 6,
  kNvmlInsufficientSize = 7,
  kNvmlDriverNotLoaded = 9,
  kNvmlUnknown = 999,
};

using NvmlDevice = void*;  // of a device: its number on the machine from 1

inline NvmlDevice nvml_device(int machine_number) {
  return reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(machine_number) + 1);
}

inline int machine_number_of(NvmlDevice handle) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)) - 1;
}

// Returns the settings of CACHALOT_SIM, read once; null if they are bad, which one line on standard error says.
const Config* nvml_config() noexcept;

// Calls body(config) and returns its result, or kNvmlDriverNotLoaded. Any exception is kNvmlUnknown.
template <typename Body>
int nvml_call(Body&& body) noexcept {
  const Config* const config = nvml_config();
  if (config == nullptr) return kNvmlDriverNotLoaded;
  try {
    return body(*config);
  } catch (...) {
    return kNvmlUnknown;
  }
}

// Calls body(config, machine_number) with the handle's device.
template <typename Body>
int nvml_call_of(NvmlDevice handle, Body&& body) noexcept {
  return nvml_call([&](const Config& config) -> int {
    const int number = machine_number_of(handle);
    if (number < 0 || number >= config.machine_devices) return kNvmlInvalidArgument;
    return body(config, number);
  });
}

// Gives the value, the same for each device.
template <typename Value>
int nvml_value(NvmlDevice handle, Value* out, std::type_identity_t<Value> value) noexcept {
  return nvml_call_of(handle, [&](const Config&, int) {
    if (out == nullptr) return kNvmlInvalidArgument;
    *out = value;
    return kNvmlSuccess;
  });
}

// Copies the text, with its zero, into `length` characters.
NvmlResult nvml_text(std::string_view text, char* out, unsigned int length);

}  // namespace cachalot::simulator
