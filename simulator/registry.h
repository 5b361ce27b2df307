// The objects a program holds by handle: streams, events, graphs, … A handle is the object's address, so that the program
// may print it; whatever it hands us is looked up, never followed.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include "device/cuda_codes.h"

namespace cachalot::simulator {

template <typename Object, typename Handle>
class Registry {
 public:
  template <typename... Arguments>
  Object& make(Arguments&&... arguments) {
    auto object = std::make_unique<Object>(std::forward<Arguments>(arguments)...);
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
    if (!object) fail(call, CudaCode::invalid_resource_handle);
    return *object;
  }

  void destroy(Object& object) {
    if (last_ == &object) last_ = nullptr;
    objects_.erase(&object);
  }

  // Those for which goes(object).
  template <typename Goes>
  void destroy_if(Goes&& goes) {
    last_ = nullptr;
    std::erase_if(objects_, [&](const auto& entry) { return goes(*entry.second); });
  }

  // One for which is_it(object); null: there is none.
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
  std::unordered_map<const void*, std::unique_ptr<Object>> objects_;
  const void* last_ = nullptr;  // found last; objects tend to be asked for several times in a row
};

}  // namespace cachalot::simulator
