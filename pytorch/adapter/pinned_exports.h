// The C symbol of an adapter for pinned memory, which the Python package calls.
#pragma once

#include <cstddef>

#include "adapter/exports.h"
#include "adapter/pinned.h"

// cachalot_adapter_install_pinned: makes cachalot torch's host allocator. Returns 0, or an error that is told in `error`.
#define CACHALOT_PINNED_ADAPTER(Allocator)                                                                           \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_install_pinned(char* error, std::size_t capacity) { \
    return cachalot::torch_adapter::do_or_tell(error, capacity, [](cachalot::Plug&) {                                \
      cachalot::torch_adapter::install_pinned<cachalot::torch_adapter::Allocator>();                                 \
    });                                                                                                              \
  }
