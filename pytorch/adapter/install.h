// Makes an allocator torch's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "adapter/expandable_segments.h"
#include "adapter/late.h"
#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

// torch asserts that a `backend` named in its settings is the current allocator's name, which is ours now.
inline std::string without_native_backend(const std::string& settings) {
  std::string text = without_spaces(settings);
  constexpr std::string_view kSetting = "backend:native";
  const std::size_t at = text.find(kSetting);
  if (at == std::string::npos) return text;
  std::size_t end = at + kSetting.size();
  if (end < text.size() && text[end] == ',') ++end;
  return text.erase(at, end - at);
}

// Hands the settings over that torch has just read, and has torch answer with the heap that follows from them.
inline void take_settings(Plug& plug) {
  static ExpandableSegments segments;  // of torch's one flag
  as_torch([&] {
    Options options = options_of_torch();
    options.expandable_segments = segments.wish(options.text);
    plug.configure(options);
    segments.answer(plug.has_virtual_memory());
  });
}

// Settings that torch's users change at run time reach us as well. torch keeps one hook, which is CUDA's own: ours takes
// its place and does first what that did.
inline void follow_settings(Plug& plug) {
  c10::CachingAllocator::AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [&plug](const std::string& settings) {
        cuda_caching::CUDAAllocatorConfig::instance().parseArgs(without_native_backend(settings));
        take_settings(plug);
      },
      {});
}

[[noreturn]] inline void throw_out_of_memory(const char* message) {
  TORCH_CHECK_WITH(OutOfMemoryError, false, message);
}

// Before torch initializes CUDA, or it throws.
inline void install(const std::shared_ptr<TorchAllocator>& allocator) {
  TorchAllocator::the_one = allocator.get();
  try {
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  } catch (...) {
    TorchAllocator::the_one = nullptr;
    throw;
  }
  new std::shared_ptr<TorchAllocator>(allocator);  // for good: tensors die after static objects
  c10::SetAllocator(c10::kCUDA, allocator.get(), 255);
}

// While torch's own allocator may have live memory. Its limits are taken over; history, observers and trackers begin anew.
template <typename Allocator>
void install_late(Plug& plug) {
  cuda_caching::CUDAAllocator& former = *cuda_caching::allocator.load();
  auto* const allocator = new Late<Allocator>(plug, former);  // for good, as above
  former.emptyCache({0, 0});
  const DeviceIndex devices = c10::cuda::device_count();
  allocator->init(devices);
  for (DeviceIndex device = 0; device < devices; ++device) {
    allocator->setMemoryFraction(former.getMemoryFraction(device), device);
  }
  TorchAllocator::the_one = allocator;
  cuda_caching::allocator.store(allocator);
  c10::SetAllocator(c10::kCUDA, allocator, 255);
}

inline void set_out_of_memory_thrower(Plug& plug) { plug.set_out_of_memory_thrower(&throw_out_of_memory); }

// Makes cachalot torch's allocator, as an object of the class `Allocator`, with torch's options and those that are on top
// of them.
template <typename Allocator>
void install_cachalot(Plug& plug, bool late) {
  TORCH_CHECK(TorchAllocator::the_one == nullptr, "cachalot is torch's allocator already");
  (void)cuda_caching::CUDAAllocatorConfig::instance();  // parsed while the allocator it may name is the current one
  take_settings(plug);
  if (late) {
    install_late<Allocator>(plug);
  } else {
    install(std::make_shared<Allocator>(plug));
  }
  follow_settings(plug);
}

}  // namespace cachalot::torch_adapter
