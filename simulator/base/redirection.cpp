// The C library tells by the return address which library calls dlopen or dlsym: it searches that library's RUNPATH and takes
// RTLD_NEXT to be behind it. So the functions here are written in assembly, for each processor: each lets C++ look at its arguments, then jumps to
// the C library's function, which returns to the caller.
#include "simulator/base/redirection.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "simulator/base/static_runtimes.h"

// These have C linkage, so that assembly can name them. Each thread sets them to equal values.
extern "C" {
__attribute__((visibility("hidden"))) void* cachalot_real_dlopen = nullptr;
__attribute__((visibility("hidden"))) void* cachalot_real_dlmopen = nullptr;
__attribute__((visibility("hidden"))) void* cachalot_real_dlsym = nullptr;
}

namespace cachalot::simulator {
namespace {

// The C library gave them these versions on each processor and keeps them.
#if defined(__x86_64__)
constexpr const char* kVersion = "GLIBC_2.2.5";
constexpr const char* kVersionOfDlmopen = "GLIBC_2.3.4";
#elif defined(__aarch64__)
constexpr const char* kVersion = "GLIBC_2.17";
constexpr const char* kVersionOfDlmopen = kVersion;
#endif

void find_real_functions() {
  if (__atomic_load_n(&cachalot_real_dlsym, __ATOMIC_ACQUIRE)) [[likely]]
    return;
  const auto set = [](void*& function, const char* name, const char* version) {
    __atomic_store_n(&function, dlvsym(RTLD_NEXT, name, version), __ATOMIC_RELEASE);
  };
  set(cachalot_real_dlopen, "dlopen", kVersion);
  set(cachalot_real_dlmopen, "dlmopen", kVersionOfDlmopen);
  set(cachalot_real_dlsym, "dlsym", kVersion);
}

// Returns 12 for "libcudart.so.12.9.79", 0 for "libcudart.so", and nullopt for another library's name. A wheel gives its own copy a name
// with a hash: "libcudart.3c9a6f9b.so.13" (torch), "libcudart-d0da41ae.so.12" (auditwheel).
std::optional<int> runtime_version(std::string_view path) {
  constexpr std::string_view kName = "libcudart", kEnding = ".so";
  const std::string_view name = file_name(path);
  const std::size_t end_of_stem = name.find(kEnding, kName.size());
  if (!name.starts_with(kName) || end_of_stem == name.npos) return std::nullopt;
  if (end_of_stem != kName.size() && name[kName.size()] != '.' && name[kName.size()] != '-') return std::nullopt;
  const std::string_view rest = name.substr(end_of_stem + kEnding.size());
  if (rest.empty()) return 0;
  return rest[0] == '.' ? std::optional(std::atoi(rest.data() + 1)) : std::nullopt;
}

// The driver, NVML, which comes with it (nvml.cpp), or NCCL: this library has their functions.
bool is_this_library(std::string_view path) {
  const std::string_view name = file_name(path);
  const auto is = [name](std::string_view library) {
    return name.starts_with(library) && (name.size() == library.size() || name[library.size()] == '.');
  };
  return is("libcuda.so") || is("libnvidia-ml.so") || is("libnccl.so");
}

bool is_loaded(int version) {
  const auto is_it = [](dl_phdr_info* library, std::size_t, void* wanted) -> int {
    return runtime_version(library->dlpi_name) == *static_cast<int*>(wanted);
  };
  return dl_iterate_phdr(is_it, &version) != 0;
}

// The version of a runtime that is asked for as libcudart.so: of the file that the name is a link to; else the one that the
// program has loaded.
int version_behind(const char* file) {
  int version = 0;
  if (char* resolved = realpath(file, nullptr)) {
    version = runtime_version(resolved).value_or(0);
    std::free(resolved);
  }
  if (version == 0) version = is_loaded(12) ? 12 : 13;
  return version;
}

// The file of this folder that stands for CUDA's runtime: it leads to this library (cudart/libcudart12.cpp, libcudart13.cpp).
const std::string& runtime_path(int version) {
  static const auto& folder = *new std::string(own_path().substr(0, own_path().rfind('/') + 1));
  static const auto& path12 = *new std::string(folder + "cudart/libcudart.so.12");
  static const auto& path13 = *new std::string(folder + "cudart/libcudart.so.13");
  return version == 12 ? path12 : path13;
}

// cuDNN makes products of matrices with cublasLt, and plans none without it; the real one does nothing without a GPU.
// All others that load cublasLt get the file that they ask for.
bool is_product_library_of_cudnn(std::string_view path, const void* caller) {
  if (!file_name(path).starts_with("libcublasLt.so")) return false;
  Dl_info info{};
  return dladdr(caller, &info) != 0 && file_name(info.dli_fname).starts_with("libcudnn");
}

// Null where the library is not one of CUDA's that is simulated. A path that leads nowhere is left to fail.
const std::string* simulated_library(const char* file) {
  const std::string_view path = file;
  std::optional<int> version = runtime_version(path);
  if (!version && !is_this_library(path)) return nullptr;
  if (path.find('/') != path.npos && access(file, F_OK) != 0) return nullptr;
  if (!version) return &own_path();
  if (version == 0) version = version_behind(file);
  return version == 12 || version == 13 ? &runtime_path(*version) : nullptr;
}

constexpr std::string_view kMathematics[] = {"cublas", "cudnn", "cufft", "curand", "cusolver", "cusparse"};

bool is_of_mathematics(std::string_view function) {
  return std::ranges::any_of(kMathematics, [&](std::string_view library) {
    return function.starts_with(library) && function.size() > library.size() &&
           std::isupper(static_cast<unsigned char>(function[library.size()])) != 0;
  });
}

// cuDNN is made of several files, which look each other's functions up; cuSOLVER does so with cuBLAS.
bool is_in_library_of_mathematics(const void* address) {
  constexpr std::string_view kBegin = "lib";
  Dl_info info{};
  if (dladdr(address, &info) == 0) return false;
  const std::string_view name = file_name(info.dli_fname);
  return name.starts_with(kBegin) && std::ranges::any_of(kMathematics, [&](std::string_view library) {
           return name.substr(kBegin.size()).starts_with(library);
         });
}

// Returns this library's path as the dynamic linker names it.
const char* loaded_path() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&own_function), &info);
  return info.dli_fname;
}

void* own_library() {
  static void* const library = real_dlopen(loaded_path(), RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

}  // namespace

void* real_dlopen(const char* file, int mode) {
  find_real_functions();
  return reinterpret_cast<void* (*)(const char*, int)>(cachalot_real_dlopen)(file, mode);
}

void* real_dlsym(void* library, const char* name) {
  find_real_functions();
  return reinterpret_cast<void* (*)(void*, const char*)>(cachalot_real_dlsym)(library, name);
}

void* own_function(const char* name) { return real_dlsym(own_library(), name); }

// Never destroyed: static destructors of the program may still load libraries.
const std::string& own_path() {
  static const auto& path = *[] {
    char* resolved = realpath(loaded_path(), nullptr);
    auto* text = new std::string(resolved ? resolved : loaded_path());
    std::free(resolved);
    return text;
  }();
  return path;
}

}  // namespace cachalot::simulator

using namespace cachalot::simulator;

extern "C" {

// The file to open in place of `file`; `caller` is an address in the library that opens it. A program that asks whether the
// real library is loaded (RTLD_NOLOAD) is answered for the simulated one, which may not be loaded yet.
__attribute__((visibility("hidden"))) const char* cachalot_file_to_open(const char* file, int* mode,
                                                                        const void* caller) {
  find_real_functions();
  hook_static_runtimes();
  if (!file) return file;
  if (is_product_library_of_cudnn(file, caller)) return own_path().c_str();
  const std::string* simulated = simulated_library(file);
  if (!simulated) return file;
  if ((*mode & RTLD_NOLOAD) != 0) {
    if (void* real = real_dlopen(file, *mode)) {
      dlclose(real);
      *mode &= ~RTLD_NOLOAD;
    }
  }
  return simulated->c_str();
}

// The library to search for a function; `caller` is an address in the library that asks. One of mathematics is found in the
// program's symbols, where this library is the first, but a program that loads cuBLAS by name asks that.
__attribute__((visibility("hidden"))) void* cachalot_library_to_search(void* library, const char* name,
                                                                       const void* caller) {
  find_real_functions();
  hook_static_runtimes();
  if (library == RTLD_DEFAULT || library == RTLD_NEXT || !name || !is_of_mathematics(name)) return library;
  if (is_in_library_of_mathematics(caller) || !own_function(name) || !real_dlsym(library, name)) return library;
  return own_library();
}

}  // extern "C"

#if defined(__x86_64__)

// rdi, rsi and rdx are the first three arguments; the stack is kept aligned to 16 bytes around the calls.
__asm__(R"(
  .macro cachalot_begin name, first, second  # keeps two registers; 8(%rsp) is the second, 24(%rsp) in the caller
  .globl \name
  .type \name, @function
\name:
  .cfi_startproc
  endbr64
  pushq \first
  .cfi_adjust_cfa_offset 8
  pushq \second
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  .endm

  .macro cachalot_restore first, second
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq \second
  .cfi_adjust_cfa_offset -8
  popq \first
  .cfi_adjust_cfa_offset -8
  .endm

  .macro cachalot_go_on name
  jmp *cachalot_real_\name(%rip)
  .cfi_endproc
  .size \name, .-\name
  .endm

  .text
  cachalot_begin dlopen, %rdi, %rsi
  leaq 8(%rsp), %rsi
  movq 24(%rsp), %rdx
  call cachalot_file_to_open
  cachalot_restore %rdi, %rsi
  movq %rax, %rdi
  cachalot_go_on dlopen

  cachalot_begin dlmopen, %rdi, %rdx
  movq %rsi, %rdi
  leaq 8(%rsp), %rsi
  movq 24(%rsp), %rdx
  call cachalot_file_to_open
  cachalot_restore %rdi, %rdx
  movq %rax, %rsi
  cachalot_go_on dlmopen

  cachalot_begin dlsym, %rdi, %rsi
  movq 24(%rsp), %rdx
  call cachalot_library_to_search
  cachalot_restore %rdi, %rsi
  movq %rax, %rdi
  cachalot_go_on dlsym
)");

#elif defined(__aarch64__)

// x0, x1 and x2 are the first three arguments, x30 is the return address; x16 may be changed on the way into a function. The
// stack is kept aligned to 16 bytes. bti c is where an indirect call may land, on processors that check that.
__asm__(R"(
  .macro cachalot_begin name  // keeps x0 at 16, x1 at 24 and x2 at 32 from sp
  .globl \name
  .type \name, %function
\name:
  .cfi_startproc
  hint #34  // bti c
  stp x29, x30, [sp, #-48]!
  .cfi_adjust_cfa_offset 48
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  mov x29, sp
  stp x0, x1, [sp, #16]
  str x2, [sp, #32]
  .endm

  .macro cachalot_go_on name  // with x0, x1 and x2 of the stack
  ldp x0, x1, [sp, #16]
  ldr x2, [sp, #32]
  ldp x29, x30, [sp], #48
  .cfi_adjust_cfa_offset -48
  .cfi_restore x29
  .cfi_restore x30
  adrp x16, cachalot_real_\name
  ldr x16, [x16, #:lo12:cachalot_real_\name]
  br x16
  .cfi_endproc
  .size \name, .-\name
  .endm

  .text
  .p2align 2
  cachalot_begin dlopen
  add x1, sp, #24
  mov x2, x30
  bl cachalot_file_to_open
  str x0, [sp, #16]
  cachalot_go_on dlopen

  cachalot_begin dlmopen
  mov x0, x1
  add x1, sp, #32
  mov x2, x30
  bl cachalot_file_to_open
  str x0, [sp, #24]
  cachalot_go_on dlmopen

  cachalot_begin dlsym
  mov x2, x30
  bl cachalot_library_to_search
  str x0, [sp, #16]
  cachalot_go_on dlsym
)");

#else
#error "the simulator redirects dlopen on x86-64 and aarch64 alone"
#endif
