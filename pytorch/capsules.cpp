#include "pytorch/capsules.h"

#include <new>
#include <utility>

#include "cachalot/dlpack.h"
#include "pool/dlpack_abi.h"

namespace cachalot {

namespace {

// Python's C API, as far as it is needed; objects are void*.
struct CapsuleFunctions {
  void* (*capsule_new)(void* pointer, const char* name, void (*destructor)(void* capsule));
  int (*capsule_is_valid)(void* capsule, const char* name);
  void* (*capsule_get_pointer)(void* capsule, const char* name);
  void* (*err_no_memory)();
};
CapsuleFunctions python_functions = {};

// Who takes a capsule's tensor gives the capsule another name.
template <typename Managed>
struct Capsule;
template <>
struct Capsule<DLManagedTensorVersioned> {
  static constexpr const char* kName = "dltensor_versioned";
};
template <>
struct Capsule<DLManagedTensor> {
  static constexpr const char* kName = "dltensor";
};

template <typename Managed>
void drop_unless_taken(void* capsule) {
  constexpr const char* kName = Capsule<Managed>::kName;
  if (python_functions.capsule_is_valid(capsule, kName) == 0) return;
  auto* const managed = static_cast<Managed*>(python_functions.capsule_get_pointer(capsule, kName));
  managed->deleter(managed);
}

template <typename Managed>
void* wrap(Managed* managed) {
  void* const capsule = python_functions.capsule_new(managed, Capsule<Managed>::kName, &drop_unless_taken<Managed>);
  if (capsule == nullptr) managed->deleter(managed);
  return capsule;
}

}  // namespace

void use_python(void* capsule_new, void* capsule_is_valid, void* capsule_get_pointer, void* err_no_memory) {
  python_functions = {reinterpret_cast<decltype(CapsuleFunctions::capsule_new)>(capsule_new),
                      reinterpret_cast<decltype(CapsuleFunctions::capsule_is_valid)>(capsule_is_valid),
                      reinterpret_cast<decltype(CapsuleFunctions::capsule_get_pointer)>(capsule_get_pointer),
                      reinterpret_cast<decltype(CapsuleFunctions::err_no_memory)>(err_no_memory)};
}

void* make_capsule(std::shared_ptr<PooledTensor> tensor, bool versioned) {
  try {
    if (versioned) return wrap(to_dlpack(std::move(tensor)));
    return wrap(to_dlpack_unversioned(std::move(tensor)));
  } catch (const std::bad_alloc&) {
    return python_functions.err_no_memory();
  }
}

}  // namespace cachalot
