// libcudart.so.12 for programs that load it by name: what CUDA 12 means by a name is found here, all else in the simulator,
// which this library needs.

#define NAME(name)                                                                                             \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n\tendbr64\n\tjmp *cudart12_" #name \
          "@GOTPCREL(%rip)\n.size " #name ", .-" #name);
#include "simulator/cudart/cuda12_names.inc"
