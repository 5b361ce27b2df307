// A device and its kernels under test: the host twin on the simulated device, CUDA's on a GPU.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "cachalot/kernels.h"
#include "cachalot/simulated_device.h"

namespace cachalot {

// Why kernels cannot be tested by what they compute; "" where they can.
inline std::string without_gpu() {
  if (dlsym(RTLD_DEFAULT, "cachalot_sim_clock_ns") != nullptr)
    return "kernels compute nothing on the simulated runtime";
  return cuda_devices().empty() ? "no GPU here: CUDA's kernels are not tested" : "";
}

inline std::shared_ptr<Device> simulated_device() { return std::make_shared<SimulatedDevice>(); }
inline std::shared_ptr<Device> gpu() { return cuda_devices().front(); }

// Memory of a device for a test.
class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<Device> device, std::size_t bytes)
      : device_(std::move(device)), address_(device_->malloc(bytes).value()) {}
  ~DeviceMemory() { device_->free(address_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  Address address() const { return address_; }

 private:
  const std::shared_ptr<Device> device_;
  const Address address_;
};

using Bytes = std::vector<unsigned char>;
using MakeDevice = std::shared_ptr<Device> (*)();

// The contract of Kernels is tested against each implementation: those on simulated_device and on gpu.
class KernelsContract : public testing::TestWithParam<MakeDevice> {
 protected:
  static constexpr std::size_t kBytes = 4 * kMiB;

  void SetUp() override {
    const std::string reason = GetParam() == &gpu ? without_gpu() : "";
    if (!reason.empty()) GTEST_SKIP() << reason;
    device_ = GetParam()();
    kernels_ = kernels_for(device_);
    memory_.emplace(device_, kBytes);
    begin_ = memory_->address();
  }

  Bytes read(Address address, std::size_t bytes) {
    Bytes held(bytes);
    device_->copy_to_host(held.data(), address, bytes);
    return held;
  }
  void write(Address address, const Bytes& bytes) { device_->copy_from_host(address, bytes.data(), bytes.size()); }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::optional<DeviceMemory> memory_;
  Address begin_ = 0;
};

}  // namespace cachalot
