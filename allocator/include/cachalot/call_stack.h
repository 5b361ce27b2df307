/// @file
/// The call stacks that say where in a program something happened.
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

CACHALOT_BEGIN_API

/// A ScriptFrame is a frame of an interpreted language. Its texts are interned (intern_text) and
/// live until the process ends.
struct ScriptFrame {
  const char* function = "";  ///< name of the function; interned
  const char* file = "";      ///< path of the source; interned
  int line = 0;               ///< line in the source; 0: unknown

  /// Compares the addresses of the texts, which are interned, and the line.
  friend bool operator==(const ScriptFrame& a, const ScriptFrame& b) {
    return a.function == b.function && a.file == b.file && a.line == b.line;
  }
  /// Returns !(a == b).
  friend bool operator!=(const ScriptFrame& a, const ScriptFrame& b) { return !(a == b); }
};

/// A CallFrame is one call of a stack, with its names.
struct CallFrame {
  std::string function;  ///< demangled name; empty: it has none
  /// Path of the source; if unknown, of the program or library with the code.
  std::string file;
  int line = 0;  ///< line in the source; 0: unknown, and `file` is not a source
  /// Return address; 0 in an interpreter's frame and in an inlined function.
  std::uintptr_t address = 0;
  bool is_script = false;  ///< true for a frame of an interpreter
};
/// Returns the frame as text: "train_step at train.cpp:41".
std::string to_string(const CallFrame& frame);

/// A CallStack is a chain of calls. It is taken in microseconds; names are looked up only when it
/// is read.
///
///     const cachalot::CallStack here = cachalot::CallStack::capture();
///     std::puts(to_string(here).c_str());  // "#0 train_step at train.cpp:41\n#1 main at ..."
///
/// A stack is a value: copies share the captured frames, and two stacks that were taken at the same
/// place are equal. Names, files and lines come from debug information, which libbacktrace reads.
/// Code without debug information, and a build without libbacktrace, have the dynamic linker's
/// symbols only; CallFrame lists the members that are then empty.
///
/// The frames of an interpreter come from a provider (set_script_frames), such as cachalot's
/// PyTorch plug-in for Python. They are taken with their names, so that a stack needs no
/// interpreter later.
///
/// Thread safety: every function may be called from any thread.
/// Requires: no function is called in a signal handler, or with a lock held that the provider may
/// need. Looking at Python's frames may free Python objects, and tensors with them.
class CallStack {
 public:
  /// The most frames that are kept: the innermost, this many of the interpreter and this many
  /// native.
  static constexpr std::size_t kMaxFrames = 64;

  /// The frames that a stack is made of.
  enum class Frames {
    native,  ///< return addresses only
    /// The interpreter's if the thread runs in one, else native ones: the cheapest.
    script_or_native,
    both,  ///< the interpreter's and native ones
  };

  /// Makes an empty stack: nothing is known.
  CallStack() = default;
  /// Returns the calling thread's stack. The caller's frame is the innermost; `skip` more native
  /// frames are left out. Returns an empty stack if the host has no memory for it.
  [[gnu::noinline]] static CallStack capture(Frames frames = Frames::both,
                                             std::size_t skip = 0) noexcept;

  /// Returns true if nothing is known.
  bool empty() const { return taken_ == nullptr; }
  /// Returns the interpreter's frames, innermost first; valid as long as a copy of the stack
  /// exists.
  Span<const ScriptFrame> script_frames() const;
  /// Returns the native frames' return addresses, innermost first; valid as long as a copy of the
  /// stack exists.
  Span<const std::uintptr_t> return_addresses() const;

  /// Returns all frames with their names, innermost first: the interpreter's, then native ones,
  /// inlined functions included. The library's own frames are left out at the inner end. If there
  /// are interpreter's frames, native frames are left out from the interpreter's own functions
  /// outwards.
  /// Cost: the first call reads debug information, which is slow.
  std::vector<CallFrame> frames() const;

  /// Returns a hash; equal stacks have equal hashes.
  std::size_t hash() const;
  /// Compares the frames that were taken.
  bool operator==(const CallStack& other) const;
  /// Returns !(*this == other).
  bool operator!=(const CallStack& other) const { return !(*this == other); }

 private:
  struct Taken;
  explicit CallStack(std::shared_ptr<const Taken> taken) : taken_(std::move(taken)) {}

  std::shared_ptr<const Taken> taken_;  // null when empty
};

/// Returns a line for each frame, "#0 train_step at train.cpp:41\n"; "" for an empty stack.
std::string to_string(const CallStack& stack);

/// A ScriptFrameProvider writes the calling thread's interpreter frames to `out`, innermost first,
/// and returns how many it wrote, at most out.size(). It returns 0 if the thread runs no code of
/// the interpreter or may not ask it now. The provider may take the interpreter's lock (Python's
/// GIL) and leaves no error pending. It is not called again by what it sets off itself.
using ScriptFrameProvider = std::size_t (*)(Span<ScriptFrame> out) noexcept;
/// Sets the provider of the process; null removes it. Returns the previous provider.
ScriptFrameProvider set_script_frames(ScriptFrameProvider provider) noexcept;

/// Returns a copy of `text` that lives until the process ends; equal texts have one address.
/// Meant for names, which are few: a copy is never freed.
const char* intern_text(std::string_view text);

/// Returns true if names, files and lines come from debug information: the build has libbacktrace.
bool has_debug_information_reader() noexcept;

CACHALOT_END_API

namespace std {

/// Hashes a CallStack by CallStack::hash.
template <>
struct hash<cachalot::CallStack> {
  /// Returns stack.hash().
  std::size_t operator()(const cachalot::CallStack& stack) const noexcept { return stack.hash(); }
};

}  // namespace std
