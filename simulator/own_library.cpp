#include "simulator/own_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "simulator/redirection.h"

namespace cachalot::simulator {
namespace {

// As the dynamic linker names it.
const char* loaded_path() {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&own_function), &info);
  return info.dli_fname;
}

}  // namespace

void* own_function(const char* name) {
  static void* const library = real_dlopen(loaded_path(), RTLD_LAZY | RTLD_NOLOAD);
  return real_dlsym(library, name);
}

// Never destroyed: static destructors of the program may still load libraries.
const std::string& own_path() {
  static const auto& path = *[] {
    char* resolved = realpath(loaded_path(), nullptr);
    auto* text = new std::string(resolved ? resolved : loaded_path());
    std::free(resolved);
    return text;
  }();
  return path;
}

}  // namespace cachalot::simulator
