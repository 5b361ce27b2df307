#include "simulator/models/context_costs.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <tuple>

#include "base/bytes.h"
#include "base/environment.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "simulator/device/address_space.h"

namespace cachalot::simulator {
namespace {

// All with lazy loading. The context alone is before any library. With cuBLAS, and with the kernels that a training
// uses, is what nvidia-smi shows beside PyTorch's own memory; with convolutions, cuDNN's comes to that. These two are
// from the half of docs/accuracy.md's rows that is for tuning: A100 (itu-rad/GPUMemNet, versions not stated), L40S and
// H100 (mila-iqia/milabench, PyTorch 2.6 for CUDA 12.6; 730 and 1,110 MiB for 16-bit kernels, 870 and 1,250 for 32-bit
// ones; with cuDNN 885 and 1,220 to 1,280). Other GPUs have those of the A100, which are the largest, or of their
// neighbours. No published measurement tells CUDA 12 from CUDA 13.
//
// The low and the high figures are estimates where no source is named. With cuBLAS: low, 0.5 GiB, is a program that uses
// few kernels, on any GPU; high is a fifth more than the largest that was measured on the architecture, and where nothing
// was measured that of the A100, 1.7 GiB. cuDNN: low is the least, and high the most (A100, 330 MiB) that was measured.
struct Estimate {
  std::size_t mib;
  std::size_t low_mib;
  std::size_t high_mib;
};

struct Row {
  int major;  // compute capability: of this one and of those up to the next row
  int minor;
  Estimate context;
  Estimate with_blas;
  Estimate cudnn;
};

constexpr Row kRows[] = {
    {0, 0, {300, 200, 450}, {1429, 512, 1740}, {300, 30, 330}},  // estimated as Turing
    {7, 0, {350, 300, 400}, {1429, 512, 1740}, {300, 30, 330}},  // V100: 300 to 400 MB (pytorch/pytorch#20532)
    {7, 5, {300, 200, 450}, {1429, 512, 1740}, {300, 30, 330}},  // estimated
    // A100, context: estimated, 300 to 450 are commonly reported. cuDNN: 270 to 330, measured (itu-rad/GPUMemNet)
    {8, 0, {420, 300, 450}, {1429, 512, 1740}, {300, 270, 330}},
    // RTX 3090, PyTorch 2.7.1 for CUDA 12.8, driver 610: measured (invoke-ai/InvokeAI#9413); its spread as Turing's
    {8, 6, {256, 200, 450}, {1429, 512, 1740}, {300, 30, 330}},
    // RTX 6000 Ada, PyTorch 2.10.0 for CUDA 13.0: measured (unslothai/unsloth-zoo#1053); with cuBLAS 730 to 870, measured
    {8, 9, {426, 300, 550}, {800, 512, 1050}, {90, 30, 330}},
    // H100, context: estimated, 450 to 550 are commonly reported; with cuBLAS 1,110 to 1,250, measured
    {9, 0, {500, 450, 550}, {1180, 512, 1500}, {70, 30, 330}},
    {10, 0, {500, 400, 700}, {1180, 512, 1740}, {70, 30, 330}},  // estimated as Hopper
    {12, 0, {450, 400, 700}, {1180, 512, 1740}, {70, 30, 330}},  // estimated as Hopper; context: between Ada and Hopper
};

// Estimated; no measurement with lazy loading was at hand. High: cuSPARSE loaded whole took 347 MB on a GTX 650 Ti
// (kunzmi/managedCuda#20).
constexpr Estimate kSolver{100, 20, 350};
constexpr Estimate kSparse{100, 20, 350};
// PyTorch 1.13's context took 666,632,192 bytes with eager loading, and 287,047,680 with lazy loading
// (pytorch/pytorch#86509): 362 MiB more. The spread is an estimate, half to twice: newer versions have more kernels.
constexpr Estimate kEager{362, 181, 724};

// The memory of an executable graph per kernel. About 10 KB, says CUDA's own library for task graphs (NVIDIA/cccl#3768,
// 2025). Low: half of that, an estimate. High: drivers before CUDA 12.4 took 64 KiB (with driver 470, graphs of 500,
// 1000 and 2000 kernels took 362, 395 and 458 MB with their context: NVIDIA's developer forum, topic 244901), and that
// of 12.4 takes 0.3 of the memory of those of 12.2 and 12.3, tensors of the graphs included (vllm-project/vllm#5517).
// The simulated driver is 13.0.
constexpr std::size_t kNodeBytes = 10 * kKiB;
constexpr Spread kNodeSpread{5 * kKiB, 10 * kKiB};

const Row& row_of(const GpuModel& gpu) {
  const auto is_newer = [&](const Row& row) { return std::tie(row.major, row.minor) > std::tie(gpu.major, gpu.minor); };
  return *std::prev(std::find_if(std::begin(kRows), std::end(kRows), is_newer));
}

std::size_t units(std::size_t mib) { return round_up(mib * kMiB, kPhysicalUnit); }

Spread spread_of(const Estimate& estimate) {
  return {(estimate.mib - estimate.low_mib) * kMiB, (estimate.high_mib - estimate.mib) * kMiB};
}

// Returns whether the program has used the library, even where memory was not enough for it.
bool uses(const ContextCharge& charge, ContextLibrary library) {
  return charge.costs.of(library) > 0 || (charge.lack && charge.lack->what == to_string(library));
}

}  // namespace

std::string_view to_string(ContextLibrary library) {
  constexpr std::array<std::string_view, kContextLibraries.size()> kNames{"cublas", "cudnn", "cusolver", "cusparse"};
  return kNames.at(static_cast<std::size_t>(library));
}

std::string_view to_string(ModuleLoading loading) { return loading == ModuleLoading::eager ? "eager" : "lazy"; }

ModuleLoading module_loading_of_environment() {
  return environment("CUDA_MODULE_LOADING") == "EAGER" ? ModuleLoading::eager : ModuleLoading::lazy;
}

ContextCosts estimated_context_costs(const GpuModel& gpu, ModuleLoading loading) {
  const Row& row = row_of(gpu);
  ContextCosts costs;
  costs.context_bytes = units(row.context.mib + (loading == ModuleLoading::eager ? kEager.mib : 0));
  costs.of(ContextLibrary::cublas) = units(row.with_blas.mib - row.context.mib);
  costs.of(ContextLibrary::cudnn) = units(row.cudnn.mib);
  costs.of(ContextLibrary::cusolver) = units(kSolver.mib);
  costs.of(ContextLibrary::cusparse) = units(kSparse.mib);
  return costs;
}

std::size_t parse_context_bytes(std::string_view text) {
  try {
    return parse_bytes(text);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(formatted("'{:.60}' is not valid: it must be a size, such as 1429MiB, none or model", text));
  }
}

// The local memory of a thread is that of its stack, and the driver keeps it for all threads that the GPU can host at
// once (CUDA driver API, cuCtxSetLimit: "the stack size in bytes of each GPU thread"; that all threads count is
// measured: 216 MiB for the default of 1 KiB on an A100, arcs-skku/EMDC_llvm#13; about 800 MB more for 8 KiB on an RTX
// 3090, which are 861 MiB here, taichi-dev/taichi#7906). The heap "has a fixed size", "in addition to memory allocated
// through host-side CUDA API calls" (CUDA C++ Programming Guide, Heap Memory Allocation), and so has printf's buffer
// (Formatted Output).
std::size_t limit_bytes(const GpuModel& gpu, const MemoryLimits& limits) {
  constexpr MemoryLimits kDefault;
  const auto beyond = [](std::size_t bytes, std::size_t of_default) { return bytes - std::min(bytes, of_default); };
  const auto threads =
      static_cast<std::size_t>(gpu.multiprocessors) * static_cast<std::size_t>(gpu.threads_per_multiprocessor);
  return threads * beyond(limits.stack_bytes, kDefault.stack_bytes) + beyond(limits.heap_bytes, kDefault.heap_bytes) +
         beyond(limits.printf_bytes, kDefault.printf_bytes);
}

std::size_t graph_bytes(std::size_t kernel_nodes) { return kernel_nodes * kNodeBytes; }

std::size_t context_bytes(const GpuModel& gpu, const ContextCharge& charge) {
  std::size_t bytes = charge.graph_bytes;
  bytes += charge.limit_bytes > 0 ? round_up(limit_bytes(gpu, charge.limits), kPhysicalUnit) : 0;
  if (!charge.estimate) return bytes + charge.costs.total();
  const ContextCosts estimated = estimated_context_costs(gpu, *charge.estimate);
  bytes += charge.costs.context_bytes > 0 ? estimated.context_bytes : 0;
  for (const ContextLibrary library : kContextLibraries)
    bytes += charge.costs.of(library) > 0 ? estimated.of(library) : 0;
  return bytes;
}

Spread context_spread(const GpuModel& gpu, const ContextCharge& charge) {
  if (!charge.estimate || (charge.costs.context_bytes == 0 && !charge.lack)) return {};
  const Row& row = row_of(gpu);
  Spread spread = spread_of(uses(charge, ContextLibrary::cublas) ? row.with_blas : row.context);
  if (*charge.estimate == ModuleLoading::eager) spread += spread_of(kEager);
  if (uses(charge, ContextLibrary::cudnn)) spread += spread_of(row.cudnn);
  if (uses(charge, ContextLibrary::cusolver)) spread += spread_of(kSolver);
  if (uses(charge, ContextLibrary::cusparse)) spread += spread_of(kSparse);
  if (charge.graph_bytes > 0) {
    const std::size_t nodes = charge.graphs.kernel_nodes;
    spread += {nodes * kNodeSpread.less_bytes, nodes * kNodeSpread.more_bytes};
  }
  return spread;
}

}  // namespace cachalot::simulator
