// Makes an allocator torch's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <string>
#include <utility>

#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

// torch asserts that a `backend` named in its settings is the current allocator's name, which is ours now.
inline std::string without_native_backend(std::string settings) {
  constexpr std::string_view kSetting = "backend:native";
  const std::size_t at = settings.find(kSetting);
  if (at == std::string::npos) return settings;
  std::size_t end = at + kSetting.size();
  if (end < settings.size() && settings[end] == ',') ++end;
  return settings.erase(at, end - at);
}

// Settings that torch's users change at run time reach us as well. torch keeps one hook, which is CUDA's own: ours takes
// its place and does first what that did.
inline void follow_settings(Plug& plug) {
  c10::CachingAllocator::AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [&plug](const std::string& settings) {
        cuda_caching::CUDAAllocatorConfig::instance().parseArgs(without_native_backend(settings));
        as_torch([&] { plug.configure(options_of_torch()); });
      },
      {});
}

[[noreturn]] inline void throw_out_of_memory(const char* message) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, message);
}

// As early as possible: before torch initializes CUDA, or it throws.
inline void install(const std::shared_ptr<TorchAllocator>& allocator) {
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  TorchAllocator::the_one = allocator.get();
  new std::shared_ptr<TorchAllocator>(allocator);  // for good: tensors die after static objects
  c10::SetAllocator(c10::kCUDA, allocator.get(), 255);
}

// While torch's own allocator may have live memory: that stays its own; its cache is given back.
inline void install_late(const std::shared_ptr<TorchAllocator>& allocator) {
  cuda_caching::CUDAAllocator* const former = cuda_caching::allocator.load();
  former->emptyCache();
  allocator->set_previous(former);
  allocator->init(c10::cuda::device_count());
  TorchAllocator::the_one = allocator.get();
  new std::shared_ptr<TorchAllocator>(allocator);
  cuda_caching::allocator.store(allocator.get());
  c10::SetAllocator(c10::kCUDA, allocator.get(), 255);
}

// Makes cachalot torch's allocator, as an object of the class `Allocator`, with torch's options and those that are on top of them.
template <typename Allocator>
void install_cachalot(Plug& plug, bool late) {
  TORCH_CHECK(TorchAllocator::the_one == nullptr, "cachalot is torch's allocator already");
  (void)cuda_caching::CUDAAllocatorConfig::instance();  // parsed while the allocator it may name is the current one
  as_torch([&] { plug.configure(options_of_torch()); });
  const auto allocator = std::make_shared<Allocator>(plug);
  late ? install_late(allocator) : install(allocator);
  plug.set_out_of_memory_thrower(&throw_out_of_memory);
  follow_settings(plug);
}

}  // namespace cachalot::torch_adapter
