// The memory of an integrated GPU, which is the machine's (Jetson, GB10). cuMemGetInfo counts there as free the unused memory,
// without the memory that the system would give up at once, such as its cache of files; and an allocation beyond what is
// available makes the machine swap until it stands still, where it should fail. Source of both: "Estimating Total Allocatable Device
// Memory on an Integrated GPU Device" in the CUDA for Tegra application note, and pytorch issue 174358.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "cachalot/device.h"

CACHALOT_BEGIN

// HostMemory tells the use of the machine's memory, from files that Linux writes.
class HostMemory {
 public:
  // `folder` has the files meminfo and pressure/memory, as /proc.
  explicit HostMemory(std::string folder) : folder_(std::move(folder)) {}
  // Returns that of the machine: of the folder that CACHALOT_PROC names, or else of /proc; nullopt for a simulated GPU without
  // CACHALOT_PROC, whose memory is not the machine's.
  static std::optional<HostMemory> of_machine(bool is_gpu_simulated);

  // Returns the bytes that the system can give without swapping: MemAvailable of meminfo; nullopt where the file cannot be read
  // or does not have it.
  std::optional<std::size_t> available_bytes() const;
  // Returns the part of the last ten seconds, in percent, in which a process waited for memory: "some avg10" of pressure/memory;
  // nullopt where the kernel does not tell.
  std::optional<double> stalled_percent() const;

 private:
  std::string folder_;
};

// Returns the bytes that an integrated GPU leaves available to the system: 1 GiB, of small machines a sixteenth. These are
// the steps at which Azure Kubernetes Service evicts programs from a node: 500 MiB of 8 GiB, 750 MiB of 16 GiB, 1 GiB of 32 GiB
// and more (learn.microsoft.com, SoftEvictionThreshold).
constexpr std::size_t kept_for_system(std::size_t total_bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return total_bytes / 16 < kMost ? total_bytes / 16 : kMost;
}

// Returns `reported`, the driver's figures of an integrated GPU, with the `available` bytes less those that are kept for the
// system as free, at most all that it has.
MemoryInfo with_available_bytes(const MemoryInfo& reported, std::optional<std::size_t> available);

CACHALOT_END
