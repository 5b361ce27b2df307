// Handles for objects without a state: what they name is never looked into. No two are the same.
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::simulator {

inline std::uintptr_t fresh_handle() {
  static std::atomic<std::uintptr_t> next{std::uintptr_t{0x5a} << 40};  // apart from the addresses of devices
  return next.fetch_add(16, std::memory_order_relaxed);
}

}  // namespace cachalot::simulator
