// The C symbols of an adapter, which the Python package calls.
#pragma once

#include <torch/version.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string_view>

#include "adapter/install.h"
#include "plug.h"

namespace cachalot::torch_adapter {

inline int fail(std::string_view reason, char* error, std::size_t capacity) {
  if (capacity == 0) return 1;
  const std::size_t bytes = std::min(reason.size(), capacity - 1);
  std::memcpy(error, reason.data(), bytes);
  error[bytes] = '\0';
  return 1;
}

template <typename Allocator>
int install_or_tell(bool late, char* error, std::size_t capacity) {
  try {
    Plug* const plug = cachalot_plug(kPlugVersion);
    if (plug == nullptr) return fail("libcachalot_torch.so is of another version than its adapter", error, capacity);
    install_cachalot<Allocator>(*plug, late);
    return 0;
  } catch (const c10::Error& failure) {
    return fail(failure.what_without_backtrace(), error, capacity);
  } catch (const std::exception& failure) {
    return fail(failure.what(), error, capacity);
  }
}

}  // namespace cachalot::torch_adapter

// cachalot_adapter_torch_version: "2.11.0". cachalot_adapter_install: 0, or an error that is told in `error`.
#define CACHALOT_ADAPTER(Allocator, minor)                                                                         \
  static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == minor, "this file is for torch 2." #minor);     \
  extern "C" [[gnu::visibility("default")]] const char* cachalot_adapter_torch_version() { return TORCH_VERSION; } \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_install(int late, char* error,                    \
                                                                         std::size_t capacity) {                   \
    return cachalot::torch_adapter::install_or_tell<Allocator>(late != 0, error, capacity);                        \
  }
