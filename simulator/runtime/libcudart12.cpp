// libcudart.so.12 for programs that load it by name: what CUDA 12 means by a name is found here, all else in the simulator,
// which this library needs.

#if defined(__x86_64__)

#define NAME(name)                                                                                             \
  __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n\tendbr64\n\tjmp *cudart12_" #name \
          "@GOTPCREL(%rip)\n.size " #name ", .-" #name);

#elif defined(__aarch64__)

// hint #34 is bti c; x16 may be changed on the way into a function.
#define NAME(name)                                                                                          \
  __asm__(".text\n.p2align 2\n.globl " #name "\n.type " #name ", %function\n" #name                         \
          ":\n\thint #34\n\tadrp x16, :got:cudart12_" #name "\n\tldr x16, [x16, #:got_lo12:cudart12_" #name \
          "]\n\tbr x16\n.size " #name ", .-" #name);

#endif
#include "simulator/runtime/cuda12_names.inc"
