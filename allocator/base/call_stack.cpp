#include "cachalot/call_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/format.h"
#include "base/own_code.h"

#if CACHALOT_HAS_LIBBACKTRACE
#include <backtrace.h>
#endif

CACHALOT_BEGIN

namespace {

// Names for code: libbacktrace over the debug information, and the dynamic linker's symbols where that says nothing.

std::string demangled(const char* name) {
  if (name == nullptr) return "";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text != nullptr ? text.get() : name;
}

// Returns the dynamic linker's knowledge of an address: exported functions, and the file that the code was loaded from.
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

void ignore_error(void*, const char*, int) {}  // no debug information: names found by other means are shown

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
      if (auto object = object_of(call)) objects_.insert(*std::move(object));  // it may have a namespace of its own
      state_ = backtrace_create_state(nullptr, /*threaded=*/0, ignore_error, nullptr);  // mutex_ lets one thread in
    }
    std::vector<CallFrame> frames;
    if (state_ != nullptr) backtrace_pcinfo(state_, call, add_frame, ignore_error, &frames);
    return frames;
  }

  // Returns the name of a function that is not exported, from the symbol table.
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

// The calls that are underway at a return address: one, and before it those that the compiler inlined there, innermost
// first. Never empty. Thread-safe; slow, above all the first time.
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

}  // namespace

bool has_debug_information_reader() noexcept { return CACHALOT_HAS_LIBBACKTRACE; }

struct CallStack::Taken {
  std::vector<ScriptFrame> script;
  std::vector<std::uintptr_t> native;
  std::size_t hash = 0;
};

namespace {

std::atomic<ScriptFrameProvider> script_frame_provider{nullptr};

// True while a provider runs. A garbage collection in Python that it starts may free tensors: no frames are taken
// within.
thread_local bool is_asking_provider = false;

std::size_t script_frames_here(Span<ScriptFrame> out) noexcept {
  const ScriptFrameProvider provider = script_frame_provider.load(std::memory_order_acquire);
  if (provider == nullptr || is_asking_provider) return 0;
  is_asking_provider = true;
  const std::size_t count = provider(out);
  is_asking_provider = false;
  return std::min(count, out.size());
}

// libgcc's unwinder, which exceptions use, needs no frame pointers and knows of libraries loaded later.
struct Unwinding {
  std::span<std::uintptr_t> out;
  std::size_t skip;
  std::size_t count = 0;
};

_Unwind_Reason_Code take_frame(_Unwind_Context* context, void* data) {
  auto& unwinding = *static_cast<Unwinding*>(data);
  if (unwinding.skip > 0) {
    --unwinding.skip;
    return _URC_NO_REASON;
  }
  const std::uintptr_t address = _Unwind_GetIP(context);
  if (address == 0 || unwinding.count == unwinding.out.size()) return _URC_END_OF_STACK;
  unwinding.out[unwinding.count++] = address;
  return _URC_NO_REASON;
}

void mix(std::size_t& hash, std::size_t value) {  // as boost::hash_combine does for 64 bits
  hash ^= value + 0x9e3779b97f4a7c15 + (hash << 12) + (hash >> 4);
}

std::size_t hash_of(Span<const ScriptFrame> script, Span<const std::uintptr_t> native) {
  std::size_t hash = script.size();
  for (const ScriptFrame& frame : script) {
    mix(hash, reinterpret_cast<std::size_t>(frame.function));  // interned: an address is a text
    mix(hash, reinterpret_cast<std::size_t>(frame.file));
    mix(hash, static_cast<std::size_t>(frame.line));
  }
  for (const std::uintptr_t address : native) mix(hash, address);
  return hash;
}

// Returns whether the function is in cachalot's sources. Debug information on lambdas and templates may have only
// "operator()" and their place.
bool is_in_our_sources(const CallFrame& frame) {
  constexpr std::string_view kThisFile = "allocator/base/call_stack.cpp";
  constexpr std::string_view kHere = __FILE__;
  static_assert(kHere.ends_with(kThisFile));
  constexpr std::string_view kRoot = kHere.substr(0, kHere.size() - kThisFile.size());
  constexpr std::string_view kFolders[] = {"allocator/", "pool/", "kernels/", "pytorch/"};
  if (!frame.file.starts_with(kRoot)) return false;
  const std::string_view path = std::string_view{frame.file}.substr(kRoot.size());
  return std::ranges::any_of(kFolders, [&](std::string_view folder) { return path.starts_with(folder); });
}

// Returns the function's own name, without the type of its result, which templates have.
std::string_view without_result(std::string_view function) {
  std::size_t begin = 0;
  std::size_t word = 0;
  int depth = 0;
  for (std::size_t i = 0; i < function.size(); ++i) {
    const char c = function[i];
    if (c == '(' && depth == 0) begin = word;
    if (c == '(' || c == '<' || c == '{') ++depth;
    if ((c == ')' || c == '>' || c == '}') && depth > 0) --depth;
    if (c == ' ' && depth == 0) word = i + 1;
  }
  return function.substr(begin);
}

bool begins_with_any(std::string_view text, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view beginning) { return text.starts_with(beginning); });
}

// Our own functions, C++'s and C's, and what of the standard library calls one for another.
bool is_of_library(const CallFrame& frame) {
  constexpr std::string_view kOwn[] = {"cachalot::", "cachalot_", "std::", "_Unwind_"};
  return begins_with_any(without_result(frame.function), kOwn) || is_in_our_sources(frame);
}

// Python's own functions; from there on outwards its frames say it better.
bool is_of_interpreter(const CallFrame& frame) {
  constexpr std::string_view kPython[] = {"Py", "_Py", "cfunction_", "method_vectorcall", "slot_tp_"};
  return begins_with_any(frame.function, kPython);
}

// Returns the frames of all addresses, innermost first. The innermost are the library's and left out, as long as something
// remains. An inlined function goes with the function that it was inlined in: debug information has its name without its
// namespace.
std::vector<CallFrame> native_frames(Span<const std::uintptr_t> return_addresses) {
  std::vector<CallFrame> all;
  std::vector<CallFrame> users;
  for (const std::uintptr_t address : return_addresses) {
    const std::vector<CallFrame> frames = symbolize(address);
    all.insert(all.end(), frames.begin(), frames.end());
    if (users.empty() && (is_own_code(address - 1) || is_of_library(frames.back()))) continue;
    const auto first = users.empty() ? std::ranges::find_if_not(frames, is_of_library) : frames.begin();
    users.insert(users.end(), first, frames.end());
  }
  return users.empty() ? all : users;
}

}  // namespace

CallStack CallStack::capture(Frames frames, std::size_t skip) noexcept {
  try {
    std::array<ScriptFrame, kMaxFrames> script;
    std::size_t script_count = 0;
    if (frames != Frames::native) script_count = script_frames_here(script);

    std::array<std::uintptr_t, kMaxFrames> native;
    Unwinding unwinding{native, skip + 1};  // and this function
    if (frames != Frames::script_or_native || script_count == 0) _Unwind_Backtrace(take_frame, &unwinding);

    if (script_count == 0 && unwinding.count == 0) return {};
    auto taken = std::make_shared<Taken>();
    taken->script.assign(script.begin(), script.begin() + static_cast<std::ptrdiff_t>(script_count));
    taken->native.assign(native.begin(), native.begin() + static_cast<std::ptrdiff_t>(unwinding.count));
    taken->hash = hash_of(taken->script, taken->native);
    return CallStack(std::move(taken));
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Span<const ScriptFrame> CallStack::script_frames() const {
  return taken_ != nullptr ? Span<const ScriptFrame>(taken_->script) : Span<const ScriptFrame>();
}

Span<const std::uintptr_t> CallStack::return_addresses() const {
  return taken_ != nullptr ? Span<const std::uintptr_t>(taken_->native) : Span<const std::uintptr_t>();
}

std::vector<CallFrame> CallStack::frames() const {
  std::vector<CallFrame> frames;
  for (const ScriptFrame& frame : script_frames()) {
    frames.push_back({frame.function, frame.file, frame.line, 0, /*is_script=*/true});
  }
  std::vector<CallFrame> native = native_frames(return_addresses());
  if (!frames.empty()) native.erase(std::ranges::find_if(native, is_of_interpreter), native.end());
  std::ranges::move(native, std::back_inserter(frames));
  return frames;
}

std::size_t CallStack::hash() const { return taken_ != nullptr ? taken_->hash : 0; }

bool CallStack::operator==(const CallStack& other) const {
  if (taken_ == other.taken_) return true;
  if (empty() || other.empty() || taken_->hash != other.taken_->hash) return false;
  return taken_->script == other.taken_->script && taken_->native == other.taken_->native;
}

std::string to_string(const CallFrame& frame) {
  std::string text = frame.function.empty() ? formatted("{:#x}", frame.address) : frame.function;
  if (frame.line > 0) return formatted("{} at {}:{}", text, frame.file, frame.line);
  if (!frame.file.empty()) return formatted("{} in {}", text, frame.file);
  return text;
}

std::string to_string(const CallStack& stack) {
  std::string text;
  int number = 0;
  for (const CallFrame& frame : stack.frames()) text += formatted("#{} {}\n", number++, to_string(frame));
  return text;
}

ScriptFrameProvider set_script_frames(ScriptFrameProvider provider) noexcept {
  return script_frame_provider.exchange(provider, std::memory_order_acq_rel);
}

const char* intern_text(std::string_view text) {
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  static std::mutex& mutex = *new std::mutex;  // stacks are taken and printed at exit, too
  static auto& texts = *new std::unordered_set<std::string, Hash, std::equal_to<>>;
  const std::lock_guard lock(mutex);
  const auto found = texts.find(text);
  return (found != texts.end() ? found : texts.emplace(text).first)->c_str();
}

CACHALOT_END
