#include "base/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#if CACHALOT_HAS_LIBBACKTRACE
#include <backtrace.h>
#endif

CACHALOT_BEGIN

namespace {

std::string demangled(const char* name) {
  if (name == nullptr) return "";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text != nullptr ? text.get() : name;
}

// What the dynamic linker knows: exported functions, and the file that the code was loaded from.
CallFrame linked_frame(std::uintptr_t return_address) {
  CallFrame frame;
  frame.address = return_address;
  Dl_info info{};
  // The call lies before the return address, which may be the next function's first byte.
  if (dladdr(reinterpret_cast<const void*>(return_address - 1), &info) == 0) return frame;
  frame.function = demangled(info.dli_sname);
  if (info.dli_fname != nullptr) frame.file = info.dli_fname;
  return frame;
}

#if CACHALOT_HAS_LIBBACKTRACE

void ignore_error(void*, const char*, int) {}  // no debug information: what is found by other means is shown

int add_frame(void* data, std::uintptr_t, const char* file, int line, const char* function) {
  if (file == nullptr && function == nullptr) return 0;
  CallFrame frame;
  frame.function = demangled(function);
  if (file != nullptr) frame.file = file;
  frame.line = file != nullptr ? line : 0;
  static_cast<std::vector<CallFrame>*>(data)->push_back(std::move(frame));
  return 0;
}

void set_name(void* data, std::uintptr_t, const char* name, std::uintptr_t, std::uintptr_t) {
  *static_cast<std::string*>(data) = demangled(name);
}

// A library or program that is loaded: where, and its name.
using LoadedObject = std::pair<std::uintptr_t, std::string>;

std::optional<LoadedObject> object_of(std::uintptr_t code) {
  Dl_info info{};
  link_map* map = nullptr;
  const int found =
      dladdr1(reinterpret_cast<const void*>(code), &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP);
  if (found == 0 || map == nullptr) return std::nullopt;
  return LoadedObject{map->l_addr, map->l_name};
}

std::set<LoadedObject> loaded_objects() {
  std::set<LoadedObject> objects;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        static_cast<std::set<LoadedObject>*>(data)->emplace(info->dlpi_addr, info->dlpi_name);
        return 0;
      },
      &objects);
  return objects;
}

// libbacktrace reads the libraries that are loaded when it is first asked, and keeps what it read, tens of MiB: no call
// gives it back. So a new reader is made, and the old one left, only when code is asked about that was loaded later.
class DebugInformation {
 public:
  static DebugInformation& instance() {
    static DebugInformation& information = *new DebugInformation;  // stacks are printed at exit, too
    return information;
  }

  std::vector<CallFrame> lines(std::uintptr_t call) {
    const std::lock_guard lock(mutex_);
    if (state_ == nullptr || was_loaded_later(call)) {
      objects_ = loaded_objects();
      if (auto object = object_of(call)) objects_.insert(*std::move(object));  // which may be in a namespace of its own
      state_ = backtrace_create_state(nullptr, /*threaded=*/0, ignore_error, nullptr);  // mutex_ lets one thread in
    }
    std::vector<CallFrame> frames;
    if (state_ != nullptr) backtrace_pcinfo(state_, call, add_frame, ignore_error, &frames);
    return frames;
  }

  // Of functions that are not exported, from the symbol table.
  std::string function(std::uintptr_t call) {
    const std::lock_guard lock(mutex_);
    std::string name;
    if (state_ != nullptr) backtrace_syminfo(state_, call, set_name, ignore_error, &name);
    return name;
  }

 private:
  bool was_loaded_later(std::uintptr_t call) const {
    const std::optional<LoadedObject> object = object_of(call);
    return object && !objects_.contains(*object);
  }

  std::mutex mutex_;
  backtrace_state* state_ = nullptr;
  std::set<LoadedObject> objects_;  // that were there when state_ was made
};

std::vector<CallFrame> debug_frames(std::uintptr_t call) { return DebugInformation::instance().lines(call); }
std::string symbol_name(std::uintptr_t call) { return DebugInformation::instance().function(call); }

#else

std::vector<CallFrame> debug_frames(std::uintptr_t) { return {}; }
std::string symbol_name(std::uintptr_t) { return ""; }

#endif

}  // namespace

std::vector<CallFrame> symbolize(std::uintptr_t return_address) {
  const std::uintptr_t call = return_address - 1;
  std::vector<CallFrame> frames = debug_frames(call);
  if (frames.empty()) frames.push_back(linked_frame(return_address));
  // In full: of a function in an unnamed namespace debug information says the last part alone.
  std::string name = symbol_name(call);
  if (!name.empty()) frames.back().function = std::move(name);
  frames.back().address = return_address;
  return frames;
}

bool has_debug_information_reader() noexcept { return CACHALOT_HAS_LIBBACKTRACE; }

CACHALOT_END
