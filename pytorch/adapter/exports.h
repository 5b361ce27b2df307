// The C symbols of an adapter, which the Python package calls.
#pragma once

#include <torch/version.h>

#include <cstddef>
#include <exception>
#include <string_view>

#include "adapter/install.h"
#include "adapter/pinned.h"
#include "plug.h"

namespace cachalot::torch_adapter {

inline int fail(std::string_view reason, char* error, std::size_t capacity) {
  copy_text(reason, error, capacity);
  return 1;
}

inline constexpr int kOutOfMemory = 2;

// 0 after `action`, or an error that is told in `error`: kOutOfMemory or 1.
template <typename Action>
int do_or_tell(char* error, std::size_t capacity, Action action) {
  try {
    Plug* const plug = cachalot_plug(kPlugVersion);
    if (plug == nullptr) return fail("libcachalot_torch.so is of another version than its adapter", error, capacity);
    plug->hide_code(reinterpret_cast<const void*>(&fail));
    action(*plug);
    return 0;
  } catch (const c10::OutOfMemoryError& failure) {
    fail(failure.what_without_backtrace(), error, capacity);
    return kOutOfMemory;
  } catch (const c10::Error& failure) {
    return fail(failure.what_without_backtrace(), error, capacity);
  } catch (const std::exception& failure) {
    return fail(failure.what(), error, capacity);
  }
}

// TorchAllocator::make_plain for a c10::StorageImpl; returns as do_or_tell.
inline int make_plain(void* storage, std::size_t* bytes, char* error, std::size_t capacity) {
  return do_or_tell(error, capacity, [&](Plug&) {
    *bytes = TorchAllocator::the_one->make_plain(*static_cast<c10::StorageImpl*>(storage));
  });
}

}  // namespace cachalot::torch_adapter

// cachalot_adapter_torch_version: "2.11.0".
// cachalot_adapter_install: makes cachalot torch's allocator; late: although CUDA is in use.
// cachalot_adapter_set_out_of_memory: lets the function-pointer plug (hooks.h) throw torch.OutOfMemoryError.
// The latter two return 0, or an error that is told in `error`.
// cachalot_adapter_make_plain: moves a storage to plain memory.
// cachalot_adapter_newest_pool: tells the pool that this thread began last.
#define CACHALOT_ADAPTER(Allocator, minor)                                                                           \
  static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == minor, "this file is for torch 2." #minor);       \
  extern "C" [[gnu::visibility("default")]] const char* cachalot_adapter_torch_version() { return TORCH_VERSION; }   \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_install(int late, char* error,                      \
                                                                         std::size_t capacity) {                     \
    return cachalot::torch_adapter::do_or_tell(error, capacity, [&](cachalot::Plug& plug) {                          \
      cachalot::torch_adapter::install_cachalot<Allocator>(plug, late != 0);                                         \
    });                                                                                                              \
  }                                                                                                                  \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_set_out_of_memory(char* error,                      \
                                                                                   std::size_t capacity) {           \
    return cachalot::torch_adapter::do_or_tell(error, capacity, cachalot::torch_adapter::set_out_of_memory_thrower); \
  }                                                                                                                  \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_make_plain(void* storage, std::size_t* bytes,       \
                                                                            char* error, std::size_t capacity) {     \
    return cachalot::torch_adapter::make_plain(storage, bytes, error, capacity);                                     \
  }                                                                                                                  \
  extern "C" [[gnu::visibility("default")]] void cachalot_adapter_newest_pool(unsigned long long* id) {              \
    id[0] = cachalot::torch_adapter::newest_pool.first;                                                              \
    id[1] = cachalot::torch_adapter::newest_pool.second;                                                             \
  }

// cachalot_adapter_install_pinned: makes cachalot torch's host allocator. Returns 0, or an error that is told in `error`.
#define CACHALOT_PINNED_ADAPTER(Allocator)                                                                           \
  extern "C" [[gnu::visibility("default")]] int cachalot_adapter_install_pinned(char* error, std::size_t capacity) { \
    return cachalot::torch_adapter::do_or_tell(error, capacity, [](cachalot::Plug&) {                                \
      cachalot::torch_adapter::install_pinned<cachalot::torch_adapter::Allocator>();                                 \
    });                                                                                                              \
  }
