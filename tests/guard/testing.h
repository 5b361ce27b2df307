// The common parts of the guard's tests: a world under guard, and functions that write to forbidden places.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachalot/guard.h"
#include "diagnostics/guard_books.h"
#include "tests/allocator/testing.h"

namespace cachalot {

inline constexpr PoolId kPool{0, 7};  // a private one

// Its handler keeps reports; those that a test does not take are a failed test.
struct GuardedWorld : World {
  explicit GuardedWorld(std::string_view options = "heap:segments", std::size_t device_bytes = 64 * kGiB)
      : World(device_bytes, std::string("guard:True,") + std::string(options)) {
    AllocatorGuard(allocator).set_handler([this](const GuardReport& report) { heard.push_back(report); });
  }
  ~GuardedWorld() { EXPECT_TRUE(heard.empty()) << to_string(heard.front()); }

  std::vector<GuardReport> take() { return std::exchange(heard, {}); }
  // The one report there is.
  GuardReport take_one() {
    EXPECT_EQ(heard.size(), 1u);
    if (heard.size() != 1) return take(), GuardReport{};
    return take().front();
  }

  std::vector<GuardReport> heard;
};

// Changes the byte at `ptr` + offset, whatever it is.
inline void smash(World& world, void* ptr, std::ptrdiff_t offset) {
  const Address at = address(ptr) + static_cast<Address>(offset);
  unsigned char byte = 0;
  world.device->copy_to_host(&byte, at, 1);
  byte ^= 0x55;
  world.device->copy_from_host(at, &byte, 1);
}

}  // namespace cachalot
