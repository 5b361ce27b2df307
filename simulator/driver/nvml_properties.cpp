// NVML's answers about a device itself: its kind, clocks, links, place in the machine, and state, which is that of an idle GPU.

#include <sched.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <string>
#include <type_traits>

#include "simulator/driver/nvml.h"
#include "simulator/models/device_attributes.h"

using namespace cachalot::simulator;

namespace {

struct NvmlPci {  // nvmlPciInfo_t
  char legacy_bus_id[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct NvmlUtilization {
  unsigned int gpu, memory;  // per cent
};
struct NvmlFieldValue {
  unsigned int field, scope;
  long long timestamp, latency_us;
  unsigned int type;
  int result;
  unsigned long long value;
};

bool has(const GpuModel& gpu, std::string_view word) { return gpu.product.find(word) != std::string_view::npos; }

// nvmlBrandType_t
unsigned int brand_of(const GpuModel& gpu) {
  constexpr std::array<std::pair<std::string_view, unsigned int>, 7> kBrands = {{{"GeForce RTX", 15},
                                                                                 {"GeForce", 5},
                                                                                 {"TITAN RTX", 16},
                                                                                 {"TITAN", 6},
                                                                                 {"Tesla", 2},
                                                                                 {"Quadro RTX", 12},
                                                                                 {"Quadro", 1}}};
  for (const auto& [word, brand] : kBrands) {
    if (has(gpu, word)) return brand;
  }
  constexpr unsigned int kNvidiaRtx = 13, kNvidia = 14;
  return has(gpu, "RTX") ? kNvidiaRtx : kNvidia;
}

bool is_for_servers(const GpuModel& gpu) { return !has(gpu, "GeForce") && !has(gpu, "TITAN") && !has(gpu, "RTX"); }

// nvmlDeviceArchitecture_t: 3 is Maxwell, 10 Blackwell.
unsigned int architecture_of(const GpuModel& gpu) {
  const int version = 10 * gpu.major + gpu.minor;
  if (version >= 100) return 10;
  if (version >= 90) return 9;
  if (version == 89) return 8;
  if (version >= 80) return 7;
  if (version == 75) return 6;
  if (version >= 70) return 5;
  return version >= 60 ? 4 : 3;
}

// "Arithmetic Instructions" of the CUDA C++ Programming Guide: single-precision additions per clock.
unsigned int cores_of(const GpuModel& gpu) {
  const int version = 10 * gpu.major + gpu.minor;
  const int per_multiprocessor = version == 60 || version == 70 || version == 75 || version == 80 ? 64 : 128;
  return static_cast<unsigned int>(gpu.multiprocessors * per_multiprocessor);
}

unsigned int pcie_generation_of(const GpuModel& gpu) { return gpu.major >= 9 ? 5 : gpu.major == 8 ? 4 : 3; }

// Gives a value that of(config) returns.
template <typename Value, typename Of>
int give(NvmlDevice handle, Value* out, Of&& of) noexcept {
  return nvml_call_of(handle, [&](const Config& config, int) {
    if (out == nullptr) return kNvmlInvalidArgument;
    *out = of(config);
    return kNvmlSuccess;
  });
}

template <typename Value>
int give_if_for_servers(NvmlDevice handle, Value* current, Value* pending, Value value) noexcept {
  return nvml_call_of(handle, [&](const Config& config, int) {
    if (current == nullptr || pending == nullptr) return kNvmlInvalidArgument;
    if (!is_for_servers(*config.gpu)) return kNvmlNotSupported;
    *current = *pending = value;
    return kNvmlSuccess;
  });
}

// Gives the clock of a domain in MHz: 2 is the memory's, 0, 1 and 3 run with the multiprocessors.
int give_clock(NvmlDevice handle, unsigned int domain, unsigned int* mhz) noexcept {
  constexpr unsigned int kMemory = 2, kDomains = 4;
  if (domain >= kDomains) return kNvmlInvalidArgument;
  return give(handle, mhz, [&](const Config& config) {
    return static_cast<unsigned int>((domain == kMemory ? config.gpu->memory_clock_khz : config.gpu->clock_khz) / 1000);
  });
}

// Sets the first bits of a mask of `words` words.
int give_mask(NvmlDevice handle, unsigned int words, unsigned long* mask, int bits) noexcept {
  return nvml_call_of(handle, [&](const Config&, int) {
    if (mask == nullptr || words == 0) return kNvmlInvalidArgument;
    constexpr int kBits = sizeof(*mask) * CHAR_BIT;
    std::fill_n(mask, words, 0UL);
    for (int i = 0; i < std::min(bits, static_cast<int>(words) * kBits); ++i) mask[i / kBits] |= 1UL << (i % kBits);
    return kNvmlSuccess;
  });
}

int processors_of_machine() { return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF))); }

int check_two(NvmlDevice one, NvmlDevice other, const int* out, int& own, int& peer) noexcept {
  return nvml_call_of(one, [&](const Config& config, int number) {
    own = number;
    peer = machine_number_of(other);
    return out == nullptr || peer < 0 || peer >= config.machine_devices ? kNvmlInvalidArgument : kNvmlSuccess;
  });
}

}  // namespace

// ---- kind ------------------------------------------------------------------------------------------------------------

NVML_FUNCTION(nvmlDeviceGetCudaComputeCapability)(NvmlDevice handle, int* major, int* minor) {
  return nvml_call_of(handle, [&](const Config& config, int) {
    if (major == nullptr || minor == nullptr) return kNvmlInvalidArgument;
    *major = config.gpu->major;
    *minor = config.gpu->minor;
    return kNvmlSuccess;
  });
}

NVML_FUNCTION(nvmlDeviceGetBrand)(NvmlDevice handle, unsigned int* brand) {
  return give(handle, brand, [](const Config& config) { return brand_of(*config.gpu); });
}
NVML_FUNCTION(nvmlDeviceGetArchitecture)(NvmlDevice handle, unsigned int* architecture) {
  return give(handle, architecture, [](const Config& config) { return architecture_of(*config.gpu); });
}
NVML_FUNCTION(nvmlDeviceGetNumGpuCores)(NvmlDevice handle, unsigned int* cores) {
  return give(handle, cores, [](const Config& config) { return cores_of(*config.gpu); });
}
NVML_FUNCTION(nvmlDeviceGetMemoryBusWidth)(NvmlDevice handle, unsigned int* bits) {
  return give(handle, bits,
              [](const Config& config) { return static_cast<unsigned int>(config.gpu->memory_bus_bits); });
}

// GPUs are not divided.
NVML_FUNCTION(nvmlDeviceGetMigMode)(NvmlDevice handle, unsigned int* current, unsigned int* pending) {
  return give_if_for_servers(handle, current, pending, 0U);
}
NVML_FUNCTION(nvmlDeviceGetMaxMigDeviceCount)(NvmlDevice handle, unsigned int* count) {
  return nvml_value(handle, count, 0U);
}
NVML_FUNCTION(nvmlDeviceIsMigDeviceHandle)(NvmlDevice handle, unsigned int* is_one) {
  return nvml_value(handle, is_one, 0U);
}
NVML_FUNCTION(nvmlDeviceGetVirtualizationMode)(NvmlDevice handle, unsigned int* mode) {
  return nvml_value(handle, mode, 0U);
}

// ---- place in the machine --------------------------------------------------------------------------------------------

NVML_FUNCTION(nvmlDeviceGetPciInfo_v3)(NvmlDevice handle, NvmlPci* pci) {
  return nvml_call_of(handle, [&](const Config& config, int number) {
    if (pci == nullptr) return kNvmlInvalidArgument;
    constexpr unsigned int kVendor = 0x10DE;
    *pci = {};
    pci->bus = static_cast<unsigned int>(pci_bus(number));
    pci->pci_device_id = static_cast<unsigned int>(config.gpu->pci_device_id) << 16 | kVendor;
    const std::string id = pci_bus_id(number);  // with eight digits for the domain in the new field
    id.copy(pci->legacy_bus_id, sizeof(pci->legacy_bus_id) - 1);
    ("0000" + id).copy(pci->bus_id, sizeof(pci->bus_id) - 1);
    return kNvmlSuccess;
  });
}
NVML_FUNCTION(nvmlDeviceGetPciInfo_v2)(NvmlDevice handle, NvmlPci* pci) { return nvmlDeviceGetPciInfo_v3(handle, pci); }
NVML_FUNCTION(nvmlDeviceGetPciInfo)(NvmlDevice handle, NvmlPci* pci) { return nvmlDeviceGetPciInfo_v3(handle, pci); }

NVML_FUNCTION(nvmlDeviceGetBoardId)(NvmlDevice handle, unsigned int* board) {
  return nvml_value(handle, board, static_cast<unsigned int>(pci_bus(machine_number_of(handle))) << 8);
}
NVML_FUNCTION(nvmlDeviceGetMultiGpuBoard)(NvmlDevice handle, unsigned int* is_one) {
  return nvml_value(handle, is_one, 0U);
}

NVML_FUNCTION(nvmlDeviceOnSameBoard)(NvmlDevice handle, NvmlDevice other, int* are) {
  int own = 0, peer = 0;
  const int result = check_two(handle, other, are, own, peer);
  if (result == kNvmlSuccess) *are = own == peer ? 1 : 0;
  return result;
}

// Devices share the host's processor.
NVML_FUNCTION(nvmlDeviceGetTopologyCommonAncestor)(NvmlDevice handle, NvmlDevice other, int* level) {
  enum { kInternal = 0, kNode = 40 };
  int own = 0, peer = 0;
  const int result = check_two(handle, other, level, own, peer);
  if (result == kNvmlSuccess) *level = own == peer ? kInternal : kNode;
  return result;
}

// All processors are near each device; there is one node of memory.
NVML_FUNCTION(nvmlDeviceGetCpuAffinity)(NvmlDevice handle, unsigned int words, unsigned long* mask) {
  return give_mask(handle, words, mask, processors_of_machine());
}
NVML_FUNCTION(nvmlDeviceGetCpuAffinityWithinScope)
(NvmlDevice handle, unsigned int words, unsigned long* mask, unsigned int) {
  return give_mask(handle, words, mask, processors_of_machine());
}
NVML_FUNCTION(nvmlDeviceGetMemoryAffinity)(NvmlDevice handle, unsigned int words, unsigned long* mask, unsigned int) {
  return give_mask(handle, words, mask, 1);
}
NVML_FUNCTION(nvmlDeviceSetCpuAffinity)(NvmlDevice handle) {
  return nvml_call_of(handle, [](const Config&, int) { return kNvmlSuccess; });
}
NVML_FUNCTION(nvmlDeviceClearCpuAffinity)(NvmlDevice handle) { return nvmlDeviceSetCpuAffinity(handle); }
NVML_FUNCTION(nvmlDeviceGetNumaNodeId)(NvmlDevice handle, unsigned int* node) { return nvml_value(handle, node, 0U); }

// ---- links: PCIe alone -----------------------------------------------------------------------------------------------

// Devices read and write each other's memory over PCIe.
NVML_FUNCTION(nvmlDeviceGetP2PStatus)(NvmlDevice handle, NvmlDevice peer, int capability, int* status) {
  enum { kRead = 0, kWrite = 1 };
  enum { kOk = 0, kPathNotSupported = 5 };
  int own = 0, other = 0;
  const int result = check_two(handle, peer, status, own, other);
  if (result == kNvmlSuccess) *status = capability == kRead || capability == kWrite ? kOk : kPathNotSupported;
  return result;
}

#define NVML_OF_PCIE(name, of)                                         \
  NVML_FUNCTION(name)(NvmlDevice handle, unsigned int* out) {          \
    return give(handle, out, [](const Config& config) { return of; }); \
  }
NVML_OF_PCIE(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation_of(*config.gpu))
NVML_OF_PCIE(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_generation_of(*config.gpu))
NVML_OF_PCIE(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation_of(*config.gpu))
NVML_OF_PCIE(nvmlDeviceGetMaxPcieLinkWidth, (static_cast<void>(config), 16U))
NVML_OF_PCIE(nvmlDeviceGetCurrPcieLinkWidth, (static_cast<void>(config), 16U))
NVML_OF_PCIE(nvmlDeviceGetPcieReplayCounter, (static_cast<void>(config), 0U))
NVML_FUNCTION(nvmlDeviceGetPcieThroughput)(NvmlDevice handle, unsigned int, unsigned int* kib_per_s) {
  return nvml_value(handle, kib_per_s, 0U);
}

// The structure begins with its size, with a version in the highest byte. Of zeros, it says that there is no fabric.
NVML_FUNCTION(nvmlDeviceGetGpuFabricInfoV)(NvmlDevice handle, unsigned int* info) {
  return nvml_call_of(handle, [&](const Config&, int) {
    constexpr std::size_t kMostBytes = 256;
    if (info == nullptr) return kNvmlInvalidArgument;
    const std::size_t bytes = *info & 0xFFFFFF;
    if (bytes < sizeof(*info) || bytes > kMostBytes) return kNvmlInvalidArgument;
    std::memset(info + 1, 0, bytes - sizeof(*info));
    return kNvmlSuccess;
  });
}

// ---- state: an idle GPU ----------------------------------------------------------------------------------------------

#define NVML_CLOCK(name)                                                           \
  NVML_FUNCTION(name)(NvmlDevice handle, unsigned int domain, unsigned int* mhz) { \
    return give_clock(handle, domain, mhz);                                        \
  }
NVML_CLOCK(nvmlDeviceGetClockInfo)
NVML_CLOCK(nvmlDeviceGetMaxClockInfo)
NVML_CLOCK(nvmlDeviceGetMaxCustomerBoostClock)
NVML_CLOCK(nvmlDeviceGetApplicationsClock)
NVML_CLOCK(nvmlDeviceGetDefaultApplicationsClock)
NVML_FUNCTION(nvmlDeviceGetClock)(NvmlDevice handle, unsigned int domain, unsigned int, unsigned int* mhz) {
  return give_clock(handle, domain, mhz);
}

NVML_FUNCTION(nvmlDeviceGetUtilizationRates)(NvmlDevice handle, NvmlUtilization* rates) {
  return nvml_value(handle, rates, {0, 0});
}
NVML_FUNCTION(nvmlDeviceGetTemperature)(NvmlDevice handle, unsigned int, unsigned int* degrees) {
  return nvml_value(handle, degrees, 30U);
}
NVML_FUNCTION(nvmlDeviceGetPowerUsage)(NvmlDevice handle, unsigned int* milliwatts) {
  return nvml_value(handle, milliwatts, 30'000U);
}
NVML_FUNCTION(nvmlDeviceGetTotalEnergyConsumption)(NvmlDevice handle, unsigned long long* millijoules) {
  return nvml_value(handle, millijoules, 0ULL);
}
NVML_FUNCTION(nvmlDeviceGetCurrentClocksEventReasons)(NvmlDevice handle, unsigned long long* reasons) {
  constexpr unsigned long long kIdle = 1;
  return nvml_value(handle, reasons, kIdle);
}
NVML_FUNCTION(nvmlDeviceGetCurrentClocksThrottleReasons)(NvmlDevice handle, unsigned long long* reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}
NVML_FUNCTION(nvmlDeviceGetEccMode)(NvmlDevice handle, unsigned int* current, unsigned int* pending) {
  return give_if_for_servers(handle, current, pending, 1U);
}

// The default of each, or none of it.
#define NVML_ZERO(name) \
  NVML_FUNCTION(name)(NvmlDevice handle, unsigned int* value) { return nvml_value(handle, value, 0U); }
NVML_ZERO(nvmlDeviceGetPerformanceState)
NVML_ZERO(nvmlDeviceGetPowerState)
NVML_ZERO(nvmlDeviceGetComputeMode)
NVML_ZERO(nvmlDeviceGetDisplayMode)
NVML_ZERO(nvmlDeviceGetDisplayActive)
NVML_ZERO(nvmlDeviceGetAccountingMode)
NVML_FUNCTION(nvmlDeviceGetPersistenceMode)(NvmlDevice handle, unsigned int* is_on) {
  return nvml_value(handle, is_on, 1U);
}

// Each field says by itself that it is not supported.
NVML_FUNCTION(nvmlDeviceGetFieldValues)(NvmlDevice handle, int count, NvmlFieldValue* values) {
  return nvml_call_of(handle, [&](const Config&, int) {
    if (values == nullptr || count < 0) return kNvmlInvalidArgument;
    for (int i = 0; i < count; ++i) values[i].result = kNvmlNotSupported;
    return kNvmlSuccess;
  });
}

// ---- the rest --------------------------------------------------------------------------------------------------------

#define NVML_UNSUPPORTED(name) \
  NVML_FUNCTION(name)() { return kNvmlNotSupported; }
#include "simulator/driver/nvml_unsupported.inc"
