// Makes an allocator torch's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

// torch ignores all spaces in settings.
inline std::string without_spaces(const std::string& settings) {
  std::string text;
  std::copy_if(settings.begin(), settings.end(), std::back_inserter(text),
               [](unsigned char c) { return std::isspace(c) == 0; });
  return text;
}

// torch's answer to code that asks whether segments are expandable, such as ProcessGroupNCCL's registration of segments.
//
// torch has one flag. To cachalot it is the program's wish; readers of the flag want to know the kind of new memory, which
// other options decide as well. So the flag is the answer, and the wish is kept here.
class ExpandableSegments {
 public:
  // Returns the program's wish after torch has read `settings`, with the flag in it that torch keeps from earlier ones.
  bool wish(const std::string& settings) {
    if (named(settings) || !has_answered_) wish_ = Config::use_expandable_segments();
    return wish_;
  }

  // Returns the flag if these settings name it.
  static std::optional<bool> named(const std::string& settings) {
    if (without_spaces(settings).find(kKey) == std::string::npos) return std::nullopt;
    return Config::use_expandable_segments();
  }

  // Makes torch answer `has_pages` from now on. Only reading settings can change its flag, and it reads those in force again:
  // where they name the flag, they say the other value from now on.
  void answer(bool has_pages) {
    has_answered_ = true;
    if (Config::use_expandable_segments() == has_pages) return;
    const std::string settings = c10::CachingAllocator::getAllocatorSettings();
    const std::string right = std::string(kKey) + (has_pages ? "True" : "False");
    const std::string wrong = std::string(kKey) + (has_pages ? "False" : "True");
    std::string text = without_spaces(settings);
    const std::size_t at = text.find(wrong);
    if (at != std::string::npos) return Config::instance().parseArgs(text.replace(at, wrong.size(), right));
    Config::instance().parseArgs(text.empty() ? right : right + "," + text);
    Config::instance().parseArgs(settings);  // this leaves the flag alone
  }

 private:
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  static constexpr const char* kKey = "expandable_segments:";

  bool wish_ = false;
  bool has_answered_ = false;
};

// cachalot as torch's allocator from some moment on: what the allocator before it had handed out by then stays that one's.
//
// Tensors know by their deleter whose they are; bare pointers and pools are looked up, and handed on to the former
// allocator where they are not ours. Its memory comes back with empty_cache, and when ours runs out.
template <typename Base>
class Late final : public Base {
 public:
  Late(Plug& plug, cuda_caching::CUDAAllocator& former) : Base(plug), former_(former) {}

  void raw_delete(void* ptr) override { is_ours(ptr) ? this->free(ptr) : former_.raw_delete(ptr); }

  using Base::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override {
    if (ptr.get_deleter() == former_.raw_deleter()) return former_.recordStream(ptr, stream);
    Base::recordStream(ptr, stream);
  }
  void* getBaseAllocation(void* ptr, std::size_t* size) override {
    return is_ours(ptr) ? Base::getBaseAllocation(ptr, size) : former_.getBaseAllocation(ptr, size);
  }
  cuda_caching::ShareableHandle shareIpcHandle(void* ptr) override {
    return is_ours(ptr) ? Base::shareIpcHandle(ptr) : former_.shareIpcHandle(ptr);
  }

  // Virtual since torch 2.12 and 2.14.
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) {
    const auto ask = [ptr](auto& allocator) { return allocator.getContextForPointer(ptr); };
    if constexpr (requires(Base & base) { base.getContextForPointer(ptr); })
      return is_ours(ptr) ? Base::getContextForPointer(ptr) : ask(former_);
    return nullptr;
  }
  void annotateMemory(const void* ptr, const std::string& metadata) {
    const auto annotate = [&](auto& allocator) { allocator.annotateMemory(ptr, metadata); };
    if constexpr (requires(Base & base) { base.annotateMemory(ptr, metadata); })
      is_ours(ptr) ? Base::annotateMemory(ptr, metadata) : annotate(former_);
  }

  void emptyCache(MempoolId_t pool) override {
    former_.emptyCache(pool);
    Base::emptyCache(pool);
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    if (!is_ours(device, pool)) return former_.endAllocateToPool(device, pool);
    Base::endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    if (!is_ours(device, pool)) return former_.releasePool(device, pool);
    Base::releasePool(device, pool);
  }

 protected:
  void* allocate_memory(DeviceIndex device, std::size_t bytes, cudaStream_t stream) override {
    try {
      return Base::allocate_memory(device, bytes, stream);
    } catch (const OutOfMemory&) {
      former_.emptyCache({0, 0});
      return Base::allocate_memory(device, bytes, stream);
    }
  }

 private:
  bool is_ours(const void* ptr) const { return this->plug_.device_of(ptr) >= 0; }
  bool is_ours(DeviceIndex device, MempoolId_t pool) const {
    return this->plug_.pool_use_count(device, to_pool_id(pool)) > 0;
  }

  cuda_caching::CUDAAllocator& former_;
};

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

// Hands the settings over that torch has just read, and has torch answer with the kind of new memory that follows from them.
inline void take_settings(Plug& plug) {
  static ExpandableSegments segments;  // of torch's one flag
  as_torch([&] {
    Options options = options_of_torch();
    options.expandable_segments = segments.wish(options.text);
    plug.configure(options, ExpandableSegments::named(options.text));
    segments.answer(plug.takes_virtual_memory());
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
  new std::shared_ptr<TorchAllocator>(allocator);  // permanent: tensors die after static objects
  c10::SetAllocator(c10::kCUDA, allocator.get(), 255);
}

// While torch's own allocator may have live memory. Its limits are taken over; history, observers and trackers begin anew.
template <typename Allocator>
void install_late(Plug& plug) {
  cuda_caching::CUDAAllocator& former = *cuda_caching::allocator.load();
  auto* const allocator = new Late<Allocator>(plug, former);  // permanent, as above
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
