// The common parts of the page heap's tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tests/allocator/testing.h"

namespace cachalot {

inline constexpr PoolId kPool{1, 0};  // a private one

inline SimulatedDevice::Config checked(std::size_t device_bytes = 64 * kGiB) {
  SimulatedDevice::Config config = World::config_of(device_bytes);
  config.check_hazards = true;
  return config;
}

// A program's work with a block: it is handed out, used, and given back.
struct Program {
  explicit Program(World& in_world) : world(in_world) {}

  void* allocate(std::size_t bytes, Stream stream = nullptr, std::int64_t work_us = 0) {
    void* ptr = world.allocate(bytes, stream);
    world.device->handed_out(address(ptr), bytes, stream);
    world.device->launch(stream, work_us * 1000, {{address(ptr), bytes}});
    return ptr;
  }
  void free(void* ptr) {
    world.device->given_back(address(ptr));
    world.allocator.deallocate(ptr);
  }

  World& world;
};

// The calling thread's allocations belong to the tag while the object lives.
class Region {
 public:
  Region(World& world, std::string_view tag) : world_(world), tag_(tag) { world_.allocator.begin_tagged(tag_); }
  ~Region() { world_.allocator.end_tagged(tag_); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  World& world_;
  std::string tag_;
};

// Returns whether an action fails with an error that the device may cause.
inline bool fails(const std::function<void()>& action) {
  try {
    action();
  } catch (const OutOfMemory&) {
    return true;
  } catch (const CudaError&) {
    return true;
  }
  return false;
}

// A call of the driver that is to fail.
struct FailingCall {
  DeviceCall call;
  bool out_of_memory;
};
inline std::string name_of(const testing::TestParamInfo<FailingCall>& test) {
  return std::string(to_string(test.param.call)) + (test.param.out_of_memory ? "_oom" : "");
}

}  // namespace cachalot
