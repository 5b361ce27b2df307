// The memory that nvidia-smi shows of a process beside its requests: the CUDA context and the code of CUDA's libraries.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "simulator/models/gpu_models.h"

namespace cachalot::simulator {

// The libraries that take memory with their first handle on a device.
enum class ContextLibrary { cublas, cudnn, cusolver, cusparse };
inline constexpr std::array kContextLibraries{ContextLibrary::cublas, ContextLibrary::cudnn, ContextLibrary::cusolver,
                                              ContextLibrary::cusparse};
std::string_view to_string(ContextLibrary library);

// The time at which a context loads kernels: at their first use, CUDA's default since 12.2, or all at once
// (CUDA_MODULE_LOADING=EAGER).
enum class ModuleLoading { lazy, eager };
std::string_view to_string(ModuleLoading loading);
ModuleLoading module_loading_of_environment();

// Memory of one device, in bytes: that of its primary context, and that of each library.
struct ContextCosts {
  std::size_t context_bytes = 0;
  std::array<std::size_t, kContextLibraries.size()> library_bytes{};

  std::size_t& of(ContextLibrary library) { return library_bytes[static_cast<std::size_t>(library)]; }
  std::size_t of(ContextLibrary library) const { return library_bytes[static_cast<std::size_t>(library)]; }
  std::size_t total() const {
    std::size_t bytes = context_bytes;
    for (const std::size_t of_library : library_bytes) bytes += of_library;
    return bytes;
  }
};

// The bytes that a GPU may take below and above an estimate.
struct Spread {
  std::size_t less_bytes = 0;
  std::size_t more_bytes = 0;

  Spread& operator+=(const Spread& other) {
    less_bytes += other.less_bytes;
    more_bytes += other.more_bytes;
    return *this;
  }
};

// Returns the estimate for a process that uses PyTorch on such a GPU; context_costs.cpp has its sources and its spread.
// In units of 2 MiB, as a device gives memory.
ContextCosts estimated_context_costs(const GpuModel& gpu, ModuleLoading loading);

// The limits of a context for which the driver holds memory, and their defaults: the stack of a thread, the heap of
// malloc in kernels, and the buffer of printf.
struct MemoryLimits {
  std::size_t stack_bytes = 1024;
  std::size_t heap_bytes = std::size_t{8} << 20;
  std::size_t printf_bytes = std::size_t{7} << 20;
};

// Returns what the driver holds for limits beyond the defaults, which are a part of the context's memory. Limits below them
// give nothing back.
std::size_t limit_bytes(const GpuModel& gpu, const MemoryLimits& limits);

// Executable CUDA graphs, and kernels in them.
struct GraphCount {
  std::size_t graphs = 0;
  std::size_t kernel_nodes = 0;
};

// Returns the estimate of the driver's memory for executable graphs with `kernel_nodes` kernels.
std::size_t graph_bytes(std::size_t kernel_nodes);

// A context or library that a device had no memory for.
struct ContextLack {
  std::string_view what;  // "the CUDA context" or a library
  std::size_t bytes = 0;
  std::size_t free_bytes = 0;
};

// A device's charges.
struct ContextCharge {
  ContextCosts costs;
  std::optional<ModuleLoading> estimate;  // nullopt: the user gave the size, or wants none
  std::optional<ContextLack> lack;        // the first, if any
  MemoryLimits limits;                    // the largest that were set
  std::size_t limit_bytes = 0;            // for these; 0 if the context itself costs nothing
  GraphCount graphs;                      // the most that there were
  std::size_t graph_bytes = 0;            // for these; 0 likewise

  std::size_t total() const { return costs.total() + limit_bytes + graph_bytes; }
};

// Returns the bytes of a size that the user gives for a context: 1429MiB. Throws InvalidArgument that names the value
// and the rule: a size, none or model.
std::size_t parse_context_bytes(std::string_view text);

// Returns what the same process would be charged with on another GPU: an estimate for the libraries that were charged,
// or the size that the user gave; and what its limits and graphs take there.
std::size_t context_bytes(const GpuModel& gpu, const ContextCharge& charge);

// Returns the spread of what context_bytes returns, and of what the device lacked memory for. Of a size that the user
// gave: none.
Spread context_spread(const GpuModel& gpu, const ContextCharge& charge);

}  // namespace cachalot::simulator
