// The code that compiled programs bring along, for several compute capabilities: which of it a GPU would run. Programs
// register it before main and when they load libraries. It is looked into only when somebody asks. Thread-safe.
#pragma once

#include <optional>

#include "simulator/gpu_models.h"

namespace cachalot::simulator {

// Of the fat binary with this wrapper (fatbinary_section.h of the toolkit), which outlives its kernels' registration.
void register_kernel(const void* wrapper, const void* function);
void forget_kernels(const void* wrapper);

// Compute capabilities, 86 for 8.6.
struct CodeVersion {
  int binary = 0;  // of the machine code: the GPU's own where it must be made from PTX
  int ptx = 0;     // of the PTX that it is made of
};

// The code of this kernel that the GPU would run: the newest binary of its generation that is not newer than it, else the
// newest PTX that is not newer. Empty for a function that nobody registered, and where there is none.
std::optional<CodeVersion> code_for(const GpuModel& gpu, const void* function);

}  // namespace cachalot::simulator
