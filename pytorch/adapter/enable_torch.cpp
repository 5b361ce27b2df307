// The adapter as a library for C++ programs over libtorch, compiled with the libtorch of the program. CACHALOT_PRELOAD: a library
// that is preloaded, and makes cachalot the allocator as soon as libtorch's libraries, on which it depends, are loaded.
#include "cachalot/enable_torch.h"

#include <torch/version.h>

#if TORCH_VERSION_MAJOR != 2
#error "cachalot has adapters for torch 2 alone"
#elif TORCH_VERSION_MINOR == 10
#include "adapter/torch_2_10.cpp"
#elif TORCH_VERSION_MINOR == 11
#include "adapter/torch_2_11.cpp"
#elif TORCH_VERSION_MINOR == 12
#include "adapter/torch_2_12.cpp"
#elif TORCH_VERSION_MINOR == 13
#include "adapter/torch_2_13.cpp"
#elif TORCH_VERSION_MINOR == 14
#include "adapter/torch_2_14.cpp"
#elif TORCH_VERSION_MINOR == 15
#include "adapter/torch_2_15.cpp"
#else
#error "cachalot has no adapter for this version of torch: it has adapters for 2.10 to 2.15"
#endif

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

// Functions of libcachalot_torch.so.
extern "C" int cachalot_plug_give_options(const char* options);
extern "C" const char* cachalot_last_error();

namespace cachalot {

[[gnu::visibility("default")]] void enable_torch(std::string_view options) {
  if (cachalot_plug_give_options(std::string(options).c_str()) != 0)
    throw std::runtime_error(std::string("cachalot::enable_torch: ") + cachalot_last_error());
  char error[4096];
  if (cachalot_adapter_install(/*late=*/0, error, sizeof error) != 0)
    throw std::runtime_error(std::string("cachalot::enable_torch: ") + error);
}

#ifdef CACHALOT_PRELOAD
namespace {

const bool kIsPreloaded = [] {
  try {
    enable_torch();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s; libtorch's own allocator serves\n", failure.what());
    return false;
  }
  return true;
}();

}  // namespace
#endif

}  // namespace cachalot
