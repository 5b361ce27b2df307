#include "simulator/context_costs.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <tuple>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"
#include "device/address_space.h"

namespace cachalot::simulator {
namespace {

// All with lazy loading. The context alone is before any library. With cuBLAS, and with the kernels that a training
// uses, is what nvidia-smi shows beside PyTorch's own memory; with convolutions, cuDNN's comes to that. These two are
// from the half of docs/accuracy.md's rows that is for tuning: A100 (itu-rad/GPUMemNet, versions not stated), L40S and
// H100 (mila-iqia/milabench, PyTorch 2.6 for CUDA 12.6; 730 and 1,110 MiB for 16-bit kernels, 870 and 1,250 for 32-bit
// ones; with cuDNN 885 and 1,220 to 1,280). Other GPUs have those of the A100, which are the largest, or of their
// neighbours. Spread: from 0.5 GiB, for a program that uses few kernels, to 1.7 GiB. No published measurement tells
// CUDA 12 from CUDA 13.
struct Row {
  int major;  // compute capability: of this one and of those up to the next row
  int minor;
  std::size_t context_mib;
  std::size_t with_blas_mib;
  std::size_t cudnn_mib;
};

constexpr Row kRows[] = {
    {0, 0, 300, 1429, 300},  // estimated as Volta
    {7, 0, 350, 1429, 300},  // V100: 300 to 400 MB (pytorch/pytorch#20532)
    {7, 5, 300, 1429, 300},  // estimated, 200 to 450
    {8, 0, 420, 1429, 300},  // A100, context: estimated, 300 to 450 are commonly reported
    {8, 6, 256, 1429, 300},  // RTX 3090, PyTorch 2.7.1 for CUDA 12.8, driver 610: measured (invoke-ai/InvokeAI#9413)
    {8, 9, 426, 800, 90},    // RTX 6000 Ada, PyTorch 2.10.0 for CUDA 13.0: measured (unslothai/unsloth-zoo#1053)
    {9, 0, 500, 1180, 70},   // H100, context: estimated, 450 to 550 are commonly reported
    {10, 0, 500, 1180, 70},  // estimated as Hopper; context: 400 to 700
    {12, 0, 450, 1180, 70},  // estimated as Hopper; context: between Ada and Hopper, 400 to 700
};

// Estimated; no measurement with lazy loading was at hand. From 20 to 350: cuSPARSE loaded whole took 347 MB on a
// GTX 650 Ti (kunzmi/managedCuda#20).
constexpr std::size_t kSolverMib = 100;
constexpr std::size_t kSparseMib = 100;
// PyTorch 1.13's context took 666,632,192 bytes with eager loading, and 287,047,680 with lazy loading
// (pytorch/pytorch#86509).
constexpr std::size_t kEagerBytes = 666'632'192 - 287'047'680;

const Row& row_of(const GpuModel& gpu) {
  const auto is_newer = [&](const Row& row) { return std::tie(row.major, row.minor) > std::tie(gpu.major, gpu.minor); };
  return *std::prev(std::find_if(std::begin(kRows), std::end(kRows), is_newer));
}

std::size_t units(std::size_t bytes) { return round_up(bytes, kPhysicalUnit); }

}  // namespace

std::string_view to_string(ContextLibrary library) {
  switch (library) {
    case ContextLibrary::cublas:
      return "cublas";
    case ContextLibrary::cudnn:
      return "cudnn";
    case ContextLibrary::cusolver:
      return "cusolver";
    case ContextLibrary::cusparse:
      return "cusparse";
  }
  return "";
}

std::string_view to_string(ModuleLoading loading) { return loading == ModuleLoading::eager ? "eager" : "lazy"; }

ModuleLoading module_loading_of_environment() {
  const char* const text = std::getenv("CUDA_MODULE_LOADING");
  return text != nullptr && std::string_view(text) == "EAGER" ? ModuleLoading::eager : ModuleLoading::lazy;
}

ContextCosts estimated_context_costs(const GpuModel& gpu, ModuleLoading loading) {
  const Row& row = row_of(gpu);
  ContextCosts costs;
  costs.context_bytes = units(row.context_mib * kMiB + (loading == ModuleLoading::eager ? kEagerBytes : 0));
  costs.of(ContextLibrary::cublas) = units((row.with_blas_mib - row.context_mib) * kMiB);
  costs.of(ContextLibrary::cudnn) = units(row.cudnn_mib * kMiB);
  costs.of(ContextLibrary::cusolver) = units(kSolverMib * kMiB);
  costs.of(ContextLibrary::cusparse) = units(kSparseMib * kMiB);
  return costs;
}

std::size_t parse_context_bytes(std::string_view text) {
  try {
    return parse_bytes(text);
  } catch (const InvalidArgument&) {
    throw InvalidArgument(formatted("'{:.60}' is not valid: it must be a size, such as 1429MiB, none or model", text));
  }
}

std::size_t context_bytes(const GpuModel& gpu, const ContextCharge& charge) {
  if (!charge.estimate) return charge.costs.total();
  const ContextCosts estimated = estimated_context_costs(gpu, *charge.estimate);
  std::size_t bytes = charge.costs.context_bytes > 0 ? estimated.context_bytes : 0;
  for (const ContextLibrary library : kContextLibraries)
    bytes += charge.costs.of(library) > 0 ? estimated.of(library) : 0;
  return bytes;
}

}  // namespace cachalot::simulator
