// Where in a program something happened: the chain of calls, taken in microseconds and named only when somebody reads it.
//
//   const cachalot::CallStack here = cachalot::CallStack::capture();
//   std::puts(to_string(here).c_str());  // "#0 train_step at train.cpp:41\n#1 main at train.cpp:60\n"
//
// A stack is a value: copies share what was taken, and two that were taken at the same place are equal. Names, files and
// lines are found by libbacktrace from debug information; where cachalot was built without that library, and for what has
// no debug information, the dynamic linker's symbols are all there is (CallFrame says what is left empty).
//
// An interpreter's frames come from a provider (set_script_frames); cachalot's PyTorch plug-in is one, for Python. They
// are taken as names at once, so that a stack needs nothing of the interpreter afterwards.
//
// Thread safety: every function may be called from any thread. Nothing here may be called in a signal handler, nor under a
// lock that the provider may want: Python's objects may be freed, and with them tensors, while frames are looked at.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/span.h"

namespace cachalot {

// A frame of an interpreted language. The texts are interned (intern_text) and live until the process ends.
struct ScriptFrame {
  const char* function = "";
  const char* file = "";
  int line = 0;

  friend bool operator==(const ScriptFrame& a, const ScriptFrame& b) {
    return a.function == b.function && a.file == b.file && a.line == b.line;
  }
  friend bool operator!=(const ScriptFrame& a, const ScriptFrame& b) { return !(a == b); }
};

// One call, named.
struct CallFrame {
  std::string function;        // demangled; empty where it has no name
  std::string file;            // of the source; where there is none, of the program or library that the code is in
  int line = 0;                // 0: unknown, and `file` is not a source
  std::uintptr_t address = 0;  // of the return; 0 in an interpreter's frame, and in functions that were inlined
  bool is_script = false;      // of an interpreter
};
std::string to_string(const CallFrame& frame);  // "train_step at train.cpp:41"

class CallStack {
 public:
  // Deeper frames are left out: the innermost ones are kept. Of an interpreter and of native code, each.
  static constexpr std::size_t kMaxFrames = 64;

  enum class Frames {
    native,            // return addresses alone
    script_or_native,  // an interpreter's where the calling thread runs in one, else native ones: the cheapest that tells
    both,
  };

  CallStack() = default;  // empty: nothing is known
  // The caller's frame is the innermost; `skip` more are left out (native ones). Empty where there is no memory for it.
  [[gnu::noinline]] static CallStack capture(Frames frames = Frames::both, std::size_t skip = 0) noexcept;

  bool empty() const { return taken_ == nullptr; }
  // Innermost first.
  Span<const ScriptFrame> script_frames() const;
  Span<const std::uintptr_t> return_addresses() const;

  // All of them named, innermost first: the interpreter's, then native ones, functions that were inlined among them. Slow
  // at first: debug information is read. The library's own frames are left out at the inner end, and where there are
  // script frames, native ones from the interpreter's own functions on outwards.
  std::vector<CallFrame> frames() const;

  std::size_t hash() const;
  bool operator==(const CallStack& other) const;
  bool operator!=(const CallStack& other) const { return !(*this == other); }

 private:
  struct Taken;
  explicit CallStack(std::shared_ptr<const Taken> taken) : taken_(std::move(taken)) {}

  std::shared_ptr<const Taken> taken_;  // null when empty
};

// A line a frame, "#0 train_step at train.cpp:41"; "" of an empty stack.
std::string to_string(const CallStack& stack);

// Writes the calling thread's frames, innermost first, at most `out.size()`; returns how many. 0 where the thread runs no
// code of the interpreter or may not ask it now. May take the interpreter's lock (Python's GIL), leaves no error behind, and
// is not called again by what it sets off.
using ScriptFrameProvider = std::size_t (*)(Span<ScriptFrame> out) noexcept;
// One a process; null takes it away. Returns the one before.
ScriptFrameProvider set_script_frames(ScriptFrameProvider provider) noexcept;

// The same text at the same address, for good. For names, of which there are few.
const char* intern_text(std::string_view text);

// Whether names, files and lines come from debug information: libbacktrace is part of this build.
bool has_debug_information_reader() noexcept;

}  // namespace cachalot

template <>
struct std::hash<cachalot::CallStack> {
  std::size_t operator()(const cachalot::CallStack& stack) const noexcept { return stack.hash(); }
};
