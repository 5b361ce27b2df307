// What NVML, the library of nvidia-smi, says of the GPUs' memory and of the processes that use it. It is loaded at run time.
#pragma once

#include <memory>
#include <vector>

#include "tools/live/sample.h"

namespace cachalot::tools::live {

class Nvml {
 public:
  // Returns null where the library is missing or does not start.
  static std::unique_ptr<Nvml> load();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Returns the GPUs whose memory NVML tells. Where it does not tell the processes of one, that has none.
  std::vector<GpuSample> gpus() const;

 private:
  explicit Nvml(void* library) : library_(library) {}
  template <typename Function>
  Function* find(const char* name) const;
  bool read_processes(void* device, GpuSample& gpu) const;
  bool read_memory(void* device, GpuSample& gpu) const;

  void* const library_;
};

}  // namespace cachalot::tools::live
