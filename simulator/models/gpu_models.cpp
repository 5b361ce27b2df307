#include "simulator/models/gpu_models.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "base/bytes.h"
#include "base/format.h"
#include "base/suggestions.h"
#include "cachalot/errors.h"

namespace cachalot::simulator {
namespace {

// The properties that a compute capability fixes: the table "Technical Specifications per Compute Capability" of the
// CUDA C++ Programming Guide.
struct Architecture {
  int major;
  int minor;
  int threads;
  int blocks;
  std::size_t shared;
  std::size_t shared_per_block;
};

constexpr Architecture kPascal{6, 0, 2048, 32, 64 * kKiB, 48 * kKiB};
constexpr Architecture kPascalGraphics{6, 1, 2048, 32, 96 * kKiB, 48 * kKiB};
constexpr Architecture kVolta{7, 0, 2048, 32, 96 * kKiB, 96 * kKiB};
constexpr Architecture kTuring{7, 5, 1024, 16, 64 * kKiB, 64 * kKiB};
constexpr Architecture kAmpere{8, 0, 2048, 32, 164 * kKiB, 163 * kKiB};
constexpr Architecture kAmpereGraphics{8, 6, 1536, 16, 100 * kKiB, 99 * kKiB};
constexpr Architecture kAda{8, 9, 1536, 24, 100 * kKiB, 99 * kKiB};
constexpr Architecture kHopper{9, 0, 2048, 32, 228 * kKiB, 227 * kKiB};
constexpr Architecture kBlackwell{10, 0, 2048, 32, 228 * kKiB, 227 * kKiB};
constexpr Architecture kBlackwellGraphics{12, 0, 1536, 24, 100 * kKiB, 99 * kKiB};
constexpr Architecture kBlackwellIntegrated{12, 1, 1536, 24, 100 * kKiB, 99 * kKiB};

struct Memory {
  std::size_t bytes;
};

// The total that CUDA reported of such a card under Linux, in MiB. Sources: deviceQuery, torch's device properties and
// out-of-memory messages, and the "CUDA:0 (<product>, <MiB>)" line of Ultralytics, in public logs. Drivers differ by up to
// one per cent.
constexpr Memory reported(std::size_t mib) { return {mib * kMiB}; }
// Estimated: no log was at hand. The nominal size, less what the driver takes of the reported cards of its family:
// 1 to 3 % of GeForce cards, 4 to 8 % of GDDR cards with ECC, half a per cent of HBM.
constexpr Memory estimated(std::size_t mib) { return {mib * kMiB}; }

constexpr GpuModel model(std::string_view key, std::string_view aliases, std::string_view product, Memory memory,
                         const Architecture& architecture, int multiprocessors, std::size_t l2_kib, int bus_bits,
                         int clock_mhz, int memory_clock_mhz, int pci_device_id) {
  return {key,
          aliases,
          product,
          memory.bytes,
          architecture.major,
          architecture.minor,
          multiprocessors,
          architecture.threads,
          architecture.blocks,
          architecture.shared,
          architecture.shared_per_block,
          l2_kib * kKiB,
          bus_bits,
          clock_mhz * 1000,
          memory_clock_mhz * 1000,
          pci_device_id,
          false};
}

// A model that has no memory of its own.
constexpr GpuModel integrated(GpuModel model) {
  model.integrated = true;
  return model;
}

// Multiprocessors, L2, bus and clocks: NVIDIA's data sheets and architecture white papers. PCI device: pci.ids.
// clang-format off
constexpr std::array kModels{
    model("gb200", "", "NVIDIA GB200", estimated(188717), kBlackwell, 152, 129536, 8192, 2062, 3996, 0x2941),
    model("b200", "", "NVIDIA B200", estimated(182626), kBlackwell, 148, 129536, 8192, 1965, 3996, 0x2901),
    model("gh200", "gh200-96", "NVIDIA GH200 480GB", estimated(96768), kHopper, 132, 61440, 6144, 1980, 2619, 0x2342),
    model("gh200-144", "", "NVIDIA GH200 144G HBM3e", estimated(146831), kHopper, 132, 61440, 6144, 1980, 3201, 0x2348),
    // DGX Spark: 128 GB of LPDDR5x, 273 GB/s, which the processor uses, too (the DGX Spark data sheet).
    integrated(model("gb10", "dgx-spark spark", "NVIDIA GB10", estimated(122570), kBlackwellIntegrated, 48, 24576, 256, 2418, 4266, 0x2e12)),
    model("h200", "", "NVIDIA H200", reported(143167), kHopper, 132, 61440, 6144, 1980, 3201, 0x2335),
    model("h100", "h100-80 h100-sxm h100-sxm5", "NVIDIA H100 80GB HBM3", reported(81004), kHopper, 132, 51200, 5120, 1980, 2619, 0x2330),
    model("h100-nvl", "h100-94", "NVIDIA H100 NVL", reported(95320), kHopper, 132, 61440, 6144, 1785, 2619, 0x2321),
    model("h100-pcie", "", "NVIDIA H100 PCIe", estimated(81004), kHopper, 114, 51200, 5120, 1755, 1593, 0x2331),
    model("a100", "a100-40 a100-sxm a100-sxm-40 a100-pcie-40", "NVIDIA A100-SXM4-40GB", reported(40339), kAmpere, 108, 40960, 5120, 1410, 1215, 0x20b0),
    model("a100-80", "a100-sxm-80 a100-pcie-80", "NVIDIA A100-SXM4-80GB", reported(81050), kAmpere, 108, 40960, 5120, 1410, 1593, 0x20b2),
    model("a30", "", "NVIDIA A30", reported(24095), kAmpere, 56, 24576, 3072, 1440, 1215, 0x20b7),
    model("v100", "v100-16 v100-sxm-16", "Tesla V100-SXM2-16GB", reported(16160), kVolta, 80, 6144, 4096, 1530, 877, 0x1db1),
    model("v100-32", "v100-sxm-32", "Tesla V100-SXM2-32GB", reported(32510), kVolta, 80, 6144, 4096, 1530, 877, 0x1db5),
    model("p100", "p100-16 p100-pcie", "Tesla P100-PCIE-16GB", estimated(16281), kPascal, 56, 4096, 4096, 1328, 715, 0x15f8),

    model("l40s", "", "NVIDIA L40S", reported(45486), kAda, 142, 98304, 384, 2520, 9001, 0x26b9),
    model("l40", "", "NVIDIA L40", reported(45466), kAda, 142, 98304, 384, 2490, 9001, 0x26b5),
    model("l4", "", "NVIDIA L4", reported(22563), kAda, 58, 49152, 192, 2040, 6251, 0x27b8),
    model("a40", "", "NVIDIA A40", estimated(45403), kAmpereGraphics, 84, 6144, 384, 1740, 7251, 0x2235),
    model("a10g", "", "NVIDIA A10G", reported(22528), kAmpereGraphics, 80, 6144, 384, 1710, 6251, 0x2237),
    model("a10", "", "NVIDIA A10", estimated(22528), kAmpereGraphics, 72, 6144, 384, 1695, 6251, 0x2236),
    model("t4", "", "Tesla T4", reported(14913), kTuring, 40, 4096, 256, 1590, 5001, 0x1eb8),
    model("p40", "", "Tesla P40", estimated(22919), kPascalGraphics, 30, 3072, 384, 1531, 3615, 0x1b38),
    model("p4", "", "Tesla P4", estimated(7611), kPascalGraphics, 20, 2048, 256, 1113, 3003, 0x1bb3),

    model("rtxpro6000", "rtx-pro-6000-blackwell pro6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", estimated(97249), kBlackwellGraphics, 188, 131072, 512, 2617, 14001, 0x2bb1),
    model("rtx6000ada", "6000ada rtx-6000-ada-generation", "NVIDIA RTX 6000 Ada Generation", reported(48520), kAda, 142, 98304, 384, 2505, 10001, 0x26b1),
    model("rtx5000ada", "5000ada rtx-5000-ada-generation", "NVIDIA RTX 5000 Ada Generation", estimated(32243), kAda, 100, 65536, 256, 2550, 9001, 0x26b2),
    model("rtx4500ada", "4500ada rtx-4500-ada-generation", "NVIDIA RTX 4500 Ada Generation", estimated(24100), kAda, 60, 49152, 192, 2580, 9001, 0x27b1),
    model("rtx4000ada", "4000ada rtx-4000-ada-generation", "NVIDIA RTX 4000 Ada Generation", estimated(20020), kAda, 48, 49152, 160, 2175, 9001, 0x27b2),
    model("rtx2000ada", "2000ada rtx-2000-ada-generation", "NVIDIA RTX 2000 Ada Generation", estimated(15950), kAda, 22, 12288, 128, 2130, 8001, 0x28b0),
    model("a6000", "", "NVIDIA RTX A6000", reported(48670), kAmpereGraphics, 84, 6144, 384, 1800, 8001, 0x2230),
    model("a5000", "", "NVIDIA RTX A5000", estimated(24100), kAmpereGraphics, 64, 6144, 384, 1695, 8001, 0x2231),
    model("a5500", "", "NVIDIA RTX A5500", estimated(24100), kAmpereGraphics, 80, 6144, 384, 1665, 8001, 0x2233),
    model("a4500", "", "NVIDIA RTX A4500", estimated(20060), kAmpereGraphics, 56, 6144, 320, 1650, 8001, 0x2232),
    model("a4000", "", "NVIDIA RTX A4000", reported(15985), kAmpereGraphics, 48, 4096, 256, 1560, 7001, 0x24b0),
    model("a2000", "a2000-6", "NVIDIA RTX A2000", estimated(5930), kAmpereGraphics, 26, 3072, 192, 1200, 6001, 0x2531),
    model("a2000-12", "", "NVIDIA RTX A2000 12GB", estimated(12022), kAmpereGraphics, 26, 3072, 192, 1200, 6001, 0x2571),
    model("quadrortx8000", "", "Quadro RTX 8000", estimated(48600), kTuring, 72, 6144, 384, 1770, 7001, 0x1e30),
    model("quadrortx6000", "", "Quadro RTX 6000", estimated(24220), kTuring, 72, 6144, 384, 1770, 7001, 0x1e30),
    model("quadrortx5000", "", "Quadro RTX 5000", estimated(16125), kTuring, 48, 4096, 256, 1815, 7001, 0x1eb0),
    model("quadrortx4000", "", "Quadro RTX 4000", estimated(7982), kTuring, 36, 4096, 256, 1545, 6501, 0x1eb1),

    model("rtx5090", "", "NVIDIA GeForce RTX 5090", reported(32120), kBlackwellGraphics, 170, 98304, 512, 2407, 14001, 0x2b85),
    model("rtx5080", "", "NVIDIA GeForce RTX 5080", estimated(15980), kBlackwellGraphics, 84, 65536, 256, 2617, 15001, 0x2c02),
    model("rtx5070ti", "", "NVIDIA GeForce RTX 5070 Ti", estimated(15980), kBlackwellGraphics, 70, 49152, 256, 2452, 14001, 0x2c05),
    model("rtx5070", "", "NVIDIA GeForce RTX 5070", estimated(11990), kBlackwellGraphics, 48, 49152, 192, 2512, 14001, 0x2f04),
    model("rtx5060ti", "rtx5060ti-16", "NVIDIA GeForce RTX 5060 Ti", estimated(15980), kBlackwellGraphics, 36, 32768, 128, 2572, 14001, 0x2d04),
    model("rtx5060ti-8", "", "NVIDIA GeForce RTX 5060 Ti", estimated(7900), kBlackwellGraphics, 36, 32768, 128, 2572, 14001, 0x2d04),
    model("rtx5060", "", "NVIDIA GeForce RTX 5060", estimated(7900), kBlackwellGraphics, 30, 32768, 128, 2497, 14001, 0x2d05),
    model("rtx5050", "", "NVIDIA GeForce RTX 5050", estimated(7900), kBlackwellGraphics, 20, 24576, 128, 2572, 10001, 0x2d83),
    model("rtx4090", "", "NVIDIA GeForce RTX 4090", reported(24217), kAda, 128, 73728, 384, 2520, 10501, 0x2684),
    model("rtx4080super", "rtx4080s", "NVIDIA GeForce RTX 4080 SUPER", estimated(16077), kAda, 80, 65536, 256, 2550, 11501, 0x2702),
    model("rtx4080", "", "NVIDIA GeForce RTX 4080", reported(16077), kAda, 76, 65536, 256, 2505, 11201, 0x2704),
    model("rtx4070tisuper", "rtx4070tis", "NVIDIA GeForce RTX 4070 Ti SUPER", estimated(16077), kAda, 66, 49152, 256, 2610, 10501, 0x2705),
    model("rtx4070ti", "", "NVIDIA GeForce RTX 4070 Ti", reported(12007), kAda, 60, 49152, 192, 2610, 10501, 0x2782),
    model("rtx4070super", "rtx4070s", "NVIDIA GeForce RTX 4070 SUPER", estimated(12007), kAda, 56, 49152, 192, 2475, 10501, 0x2783),
    model("rtx4070", "", "NVIDIA GeForce RTX 4070", estimated(12007), kAda, 46, 36864, 192, 2475, 10501, 0x2786),
    model("rtx4060ti-16", "", "NVIDIA GeForce RTX 4060 Ti", estimated(15950), kAda, 34, 32768, 128, 2535, 9001, 0x2805),
    model("rtx4060ti", "rtx4060ti-8", "NVIDIA GeForce RTX 4060 Ti", reported(7806), kAda, 34, 32768, 128, 2535, 9001, 0x2803),
    model("rtx4060", "", "NVIDIA GeForce RTX 4060", reported(7936), kAda, 24, 24576, 128, 2460, 8501, 0x2882),
    model("rtx3090ti", "", "NVIDIA GeForce RTX 3090 Ti", estimated(24260), kAmpereGraphics, 84, 6144, 384, 1860, 10501, 0x2203),
    model("rtx3090", "", "NVIDIA GeForce RTX 3090", reported(24260), kAmpereGraphics, 82, 6144, 384, 1695, 9751, 0x2204),
    model("rtx3080ti", "", "NVIDIA GeForce RTX 3080 Ti", reported(12031), kAmpereGraphics, 80, 6144, 384, 1665, 9501, 0x2208),
    model("rtx3080-12", "", "NVIDIA GeForce RTX 3080", reported(12117), kAmpereGraphics, 70, 6144, 384, 1710, 9501, 0x220a),
    model("rtx3080", "rtx3080-10", "NVIDIA GeForce RTX 3080", reported(10002), kAmpereGraphics, 68, 5120, 320, 1710, 9501, 0x2206),
    model("rtx3070ti", "", "NVIDIA GeForce RTX 3070 Ti", estimated(7965), kAmpereGraphics, 48, 4096, 256, 1770, 9501, 0x2482),
    model("rtx3070", "", "NVIDIA GeForce RTX 3070", estimated(7965), kAmpereGraphics, 46, 4096, 256, 1725, 7001, 0x2484),
    model("rtx3060ti", "", "NVIDIA GeForce RTX 3060 Ti", estimated(7965), kAmpereGraphics, 38, 4096, 256, 1665, 7001, 0x2486),
    model("rtx3060", "rtx3060-12", "NVIDIA GeForce RTX 3060", reported(11910), kAmpereGraphics, 28, 2304, 192, 1777, 7501, 0x2503),
    model("rtx3050", "", "NVIDIA GeForce RTX 3050", estimated(7965), kAmpereGraphics, 20, 2048, 128, 1777, 7001, 0x2507),
    model("rtx2080ti", "", "NVIDIA GeForce RTX 2080 Ti", reported(11020), kTuring, 68, 5632, 352, 1545, 7001, 0x1e07),
    model("rtx2080super", "rtx2080s", "NVIDIA GeForce RTX 2080 SUPER", estimated(7965), kTuring, 48, 4096, 256, 1815, 7751, 0x1e81),
    model("rtx2080", "", "NVIDIA GeForce RTX 2080", estimated(7965), kTuring, 46, 4096, 256, 1710, 7001, 0x1e87),
    model("rtx2070super", "rtx2070s", "NVIDIA GeForce RTX 2070 SUPER", estimated(7965), kTuring, 40, 4096, 256, 1770, 7001, 0x1e84),
    model("rtx2070", "", "NVIDIA GeForce RTX 2070", estimated(7965), kTuring, 36, 4096, 256, 1620, 7001, 0x1f02),
    model("rtx2060super", "rtx2060s", "NVIDIA GeForce RTX 2060 SUPER", reported(7965), kTuring, 34, 4096, 256, 1650, 7001, 0x1f06),
    model("rtx2060", "", "NVIDIA GeForce RTX 2060", estimated(5930), kTuring, 30, 3072, 192, 1680, 7001, 0x1f08),
    model("gtx1660ti", "", "NVIDIA GeForce GTX 1660 Ti", estimated(5940), kTuring, 24, 1536, 192, 1770, 6001, 0x2182),
    model("gtx1660super", "gtx1660s", "NVIDIA GeForce GTX 1660 SUPER", estimated(5940), kTuring, 22, 1536, 192, 1785, 7001, 0x21c4),
    model("gtx1660", "", "NVIDIA GeForce GTX 1660", estimated(5940), kTuring, 22, 1536, 192, 1785, 4001, 0x2184),
    model("gtx1650", "", "NVIDIA GeForce GTX 1650", estimated(3911), kTuring, 14, 1024, 128, 1665, 4001, 0x1f82),
    model("gtx1080ti", "", "NVIDIA GeForce GTX 1080 Ti", estimated(11178), kPascalGraphics, 28, 2816, 352, 1582, 5505, 0x1b06),
    model("gtx1080", "", "NVIDIA GeForce GTX 1080", estimated(8119), kPascalGraphics, 20, 2048, 256, 1733, 5005, 0x1b80),
    model("gtx1070ti", "", "NVIDIA GeForce GTX 1070 Ti", estimated(8119), kPascalGraphics, 19, 2048, 256, 1683, 4004, 0x1b82),
    model("gtx1070", "", "NVIDIA GeForce GTX 1070", reported(8119), kPascalGraphics, 15, 2048, 256, 1683, 4004, 0x1b81),
    model("gtx1060", "gtx1060-6", "NVIDIA GeForce GTX 1060 6GB", estimated(6078), kPascalGraphics, 10, 1536, 192, 1708, 4004, 0x1c03),
    model("gtx1050ti", "", "NVIDIA GeForce GTX 1050 Ti", estimated(4040), kPascalGraphics, 6, 1024, 128, 1392, 3504, 0x1c82),

    model("titanrtx", "", "NVIDIA TITAN RTX", estimated(24220), kTuring, 72, 6144, 384, 1770, 7001, 0x1e02),
    model("titanv", "", "NVIDIA TITAN V", estimated(12066), kVolta, 80, 4608, 3072, 1455, 850, 0x1d81),
    model("titanxp", "", "NVIDIA TITAN Xp", reported(12195), kPascalGraphics, 30, 3072, 384, 1582, 5705, 0x1b02),
    model("titanx", "titanx-pascal", "NVIDIA TITAN X (Pascal)", estimated(12195), kPascalGraphics, 28, 3072, 384, 1531, 5005, 0x1b00),
};
// clang-format on

// Letters and digits in lower case, without the makers' words that people put before a name or leave out.
std::string folded_name(std::string_view name) {
  std::string result;
  for (const char character : name) {
    const auto letter = static_cast<unsigned char>(character);
    if (std::isalnum(letter)) result += static_cast<char>(std::tolower(letter));
  }
  for (const std::string_view word : {"nvidia", "geforce", "tesla", "rtx"}) {
    if (result.starts_with(word)) result.erase(0, word.size());
  }
  if (result.size() > 2 && result.ends_with("gb")) result.resize(result.size() - 2);
  return result;
}

bool has_alias(const GpuModel& model, const std::string& folded) {
  std::string_view rest = model.aliases;
  while (!rest.empty()) {
    const std::size_t space = std::min(rest.find(' '), rest.size());
    if (folded_name(rest.substr(0, space)) == folded) return true;
    rest.remove_prefix(std::min(space + 1, rest.size()));
  }
  return false;
}

// "did you mean 'a100'? "
std::string suggestion(std::string_view name) {
  std::vector<std::string_view> keys;
  keys.reserve(std::size(kModels));
  for (const GpuModel& model : kModels) keys.push_back(model.key);
  const std::string question = did_you_mean(name, keys);
  return question.empty() ? "" : question + " ";
}

}  // namespace

std::span<const GpuModel> gpu_models() { return kModels; }

// A product's name comes last: the 3080 of 12 GB has the same as the one of 10 GB.
const GpuModel& find_gpu_model(std::string_view name) {
  const std::string folded = folded_name(name);
  const auto is_key = [&](const GpuModel& model) { return folded_name(model.key) == folded; };
  const auto is_named = [&](const GpuModel& model) {
    return has_alias(model, folded) || folded_name(model.product) == folded;
  };
  for (const GpuModel& model : kModels) {
    if (is_key(model)) return model;
  }
  for (const GpuModel& model : kModels) {
    if (is_named(model)) return model;
  }
  throw InvalidArgument(formatted(
      "'{:.60}' is not a known GPU: {}`cachalot gpus` lists them; for another GPU, give its memory instead, such "
      "as 24GiB",
      name, suggestion(name)));
}

}  // namespace cachalot::simulator
