// The objects a program holds by handle: streams, events, graphs, … A handle is the object's address, so that the program
// may print it; whatever it hands us is looked up, never followed. The handle of the object destroyed last is that of the
// next new object, as CUDA gives handles again at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/cuda_codes.h"

namespace cachalot::simulator {

template <typename Object, typename Handle>
class Registry {
 public:
  Object& make(Object content = {}) {
    std::unique_ptr<Object> object = take_place();
    *object = std::move(content);
    Object& made = *object;
    objects_.emplace(&made, std::move(object));
    return made;
  }

  static Handle handle(const Object& object) { return reinterpret_cast<Handle>(const_cast<Object*>(&object)); }

  Object* find(Handle handle) {
    const void* key = handle;
    if (key == last_ && key) return static_cast<Object*>(const_cast<void*>(key));
    const auto at = objects_.find(key);
    if (at == objects_.end()) return nullptr;
    last_ = key;
    return at->second.get();
  }

  // Throws cudaErrorInvalidResourceHandle for anything but a live object's handle.
  Object& at(const char* call, Handle handle) {
    Object* object = find(handle);
    if (!object)
      fail(call, CudaCode::invalid_resource_handle, was_destroyed(handle) ? "it was destroyed" : "no such object");
    return *object;
  }

  void destroy(Object& object) {
    if (last_ == &object) last_ = nullptr;
    const auto at = objects_.find(&object);
    keep_place(std::move(at->second));
    objects_.erase(at);
  }

  // Destroys the objects for which goes(object) is true.
  template <typename Goes>
  void destroy_if(Goes&& goes) {
    last_ = nullptr;
    for (auto at = objects_.begin(); at != objects_.end();) {
      if (!goes(*at->second)) {
        ++at;
        continue;
      }
      keep_place(std::move(at->second));
      at = objects_.erase(at);
    }
  }

  // Returns an object for which is_it(object) is true, or null.
  template <typename IsIt>
  Object* find_if(IsIt&& is_it) {
    for (auto& [key, object] : objects_) {
      if (is_it(*object)) return object.get();
    }
    return nullptr;
  }

  template <typename Visit>
  void for_each(Visit&& visit) {
    for (auto& [key, object] : objects_) visit(*object);
  }

 private:
  void keep_place(std::unique_ptr<Object> object) {
    *object = Object{};
    places_.push_back(std::move(object));
  }
  std::unique_ptr<Object> take_place() {
    if (places_.empty()) return std::make_unique<Object>();
    std::unique_ptr<Object> place = std::move(places_.back());
    places_.pop_back();
    return place;
  }
  bool was_destroyed(Handle handle) const {
    return std::any_of(places_.begin(), places_.end(),
                       [&](const auto& place) { return place.get() == static_cast<const void*>(handle); });
  }

  std::unordered_map<const void*, std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Object>> places_;  // of destroyed ones, the last destroyed at the end
  const void* last_ = nullptr;                   // found last; objects tend to be asked for several times in a row
};

// Handles for objects without a state: what they name is never looked into. No two are the same.
inline std::uintptr_t fresh_handle() {
  static std::atomic<std::uintptr_t> next{std::uintptr_t{0x5a} << 40};  // apart from the addresses of devices
  return next.fetch_add(16, std::memory_order_relaxed);
}

}  // namespace cachalot::simulator
