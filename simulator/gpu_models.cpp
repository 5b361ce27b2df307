#include "simulator/gpu_models.h"

#include <array>

#include "base/bytes.h"
#include "base/format.h"
#include "cachalot/errors.h"

namespace cachalot::simulator {
namespace {

// Sources. Memory: the total capacity that PyTorch's out-of-memory messages name on the product. Compute capability,
// threads, blocks and shared memory per multiprocessor: the table "Technical Specifications per Compute Capability" of
// the CUDA C++ Programming Guide. Multiprocessors, L2, bus and clocks: NVIDIA's data sheets and architecture white papers.
constexpr std::array kModels{
    GpuModel{"h200", "NVIDIA H200", 143167 * kMiB, 9, 0, 132, 2048, 32, 228 * kKiB, 227 * kKiB, 60 * kMiB, 6144,
             1980000, 3201000, 0x2335},
    GpuModel{"h100", "NVIDIA H100 80GB HBM3", 81004 * kMiB, 9, 0, 132, 2048, 32, 228 * kKiB, 227 * kKiB, 50 * kMiB,
             5120, 1980000, 2619000, 0x2330},
    GpuModel{"a100", "NVIDIA A100-SXM4-40GB", 40339 * kMiB, 8, 0, 108, 2048, 32, 164 * kKiB, 163 * kKiB, 40 * kMiB,
             5120, 1410000, 1215000, 0x20b0},
    GpuModel{"a100-80", "NVIDIA A100-SXM4-80GB", 81050 * kMiB, 8, 0, 108, 2048, 32, 164 * kKiB, 163 * kKiB, 40 * kMiB,
             5120, 1410000, 1593000, 0x20b2},
    GpuModel{"l4", "NVIDIA L4", 22563 * kMiB, 8, 9, 58, 1536, 24, 100 * kKiB, 99 * kKiB, 48 * kMiB, 192, 2040000,
             6251000, 0x27b8},
    GpuModel{"rtx4090", "NVIDIA GeForce RTX 4090", 24217 * kMiB, 8, 9, 128, 1536, 24, 100 * kKiB, 99 * kKiB, 72 * kMiB,
             384, 2520000, 10501000, 0x2684},
    GpuModel{"t4", "Tesla T4", 14913 * kMiB, 7, 5, 40, 1024, 16, 64 * kKiB, 64 * kKiB, 4 * kMiB, 256, 1590000, 5001000,
             0x1eb8},
    GpuModel{"v100", "Tesla V100-SXM2-16GB", 16160 * kMiB, 7, 0, 80, 2048, 32, 96 * kKiB, 96 * kKiB, 6 * kMiB, 4096,
             1530000, 877000, 0x1db1},
    GpuModel{"v100-32", "Tesla V100-SXM2-32GB", 32510 * kMiB, 7, 0, 80, 2048, 32, 96 * kKiB, 96 * kKiB, 6 * kMiB, 4096,
             1530000, 877000, 0x1db5},
};

}  // namespace

std::span<const GpuModel> gpu_models() { return kModels; }

std::string gpu_model_keys() {
  std::string keys;
  for (const GpuModel& model : kModels) keys += formatted("{}{}", keys.empty() ? "" : ", ", model.key);
  return keys;
}

const GpuModel& find_gpu_model(std::string_view key) {
  for (const GpuModel& model : kModels) {
    if (model.key == key) return model;
  }
  throw InvalidArgument(formatted("'{}' is no GPU of the table: {}", key, gpu_model_keys()));
}

}  // namespace cachalot::simulator
