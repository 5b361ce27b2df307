// The common parts of the tensor pools' tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cachalot/tensor_pool.h"
#include "tests/allocator/testing.h"

namespace cachalot {

inline const TensorSpec kSpec = {{256, 256}, DType::float32};  // 256 KiB
inline constexpr std::size_t kBytes = 256 * kKiB;

// A device whose streams' order is checked, and a pool. The pool's books are checked when it goes.
struct PoolWorld : World {
  explicit PoolWorld(const TensorPoolOptions& options = {}, const TensorSpec& spec = kSpec)
      : World(config()), pool(allocator, spec, options) {}
  ~PoolWorld() { EXPECT_EQ(pool.validate(), ""); }
  PoolWorld(const PoolWorld&) = delete;
  PoolWorld& operator=(const PoolWorld&) = delete;

  static SimulatedDevice::Config config() {
    SimulatedDevice::Config config = World::config_of(4 * kGiB);
    config.check_hazards = true;
    return config;
  }
  // The tensor is used for a millisecond of its stream, or of another.
  void use(const PooledTensor& tensor, std::optional<Stream> on = std::nullopt) {
    device->launch(on.value_or(tensor.stream()), 1'000'000, {{address(tensor.data()), tensor.bytes()}});
  }
  // Throws HazardError where work that is not ordered before the tensor's stream may still use it.
  PooledTensor acquire_checked(Stream stream) {
    PooledTensor tensor = pool.acquire(stream);
    check(tensor);
    return tensor;
  }
  void check(const PooledTensor& tensor) {
    device->handed_out(address(tensor.data()), tensor.bytes(), tensor.stream());
  }
  void release_checked(PooledTensor& tensor) {
    device->given_back(address(tensor.data()));
    tensor.release();
  }

  TensorPool pool;
};

}  // namespace cachalot
