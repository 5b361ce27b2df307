#include "simulator/python_frames.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <string>
#include <string_view>

#include "simulator/redirection.h"

namespace cachalot::simulator {
namespace {

// Python's own, of which the last is not part of its API.
struct Python {
  int (*is_initialized)() = nullptr;
  void* (*own_state)() = nullptr;
  void (*dump_traceback)(int descriptor, void* state) = nullptr;

  bool is_complete() const { return is_initialized && own_state && dump_traceback; }
};

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(real_dlsym(RTLD_DEFAULT, name));
}

// Looked up each time: Python may be loaded later.
Python find_python() {
  Python python;
  look_up(python.is_initialized, "Py_IsInitialized");
  if (!python.is_initialized) return python;
  look_up(python.own_state, "PyGILState_GetThisThreadState");
  look_up(python.dump_traceback, "_Py_DumpTraceback");
  return python;
}

// What Python writes about the thread's frames; "" where it runs none.
std::string dump() {
  const Python python = find_python();
  if (!python.is_complete() || python.is_initialized() == 0) return "";
  void* const state = python.own_state();
  if (!state) return "";
  const int file = memfd_create("cachalot traceback", MFD_CLOEXEC);
  if (file < 0) return "";
  python.dump_traceback(file, state);
  std::string text(static_cast<std::size_t>(lseek(file, 0, SEEK_CUR)), '\0');
  const ssize_t read = pread(file, text.data(), text.size(), 0);
  text.resize(read < 0 ? 0 : static_cast<std::size_t>(read));
  close(file);
  return text;
}

// Of a line `  File "train.py", line 8 in train`; false for any other.
bool parse(std::string_view line, ScriptFrame& frame) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kIn = " in ";
  if (!line.starts_with(kFile)) return false;
  const auto file_end = line.rfind(kLine);
  const auto number_end = line.find(kIn, file_end);
  if (file_end == std::string_view::npos || number_end == std::string_view::npos) return false;
  const char* const number = line.data() + file_end + kLine.size();
  std::from_chars(number, line.data() + number_end, frame.line);
  frame.file = intern_text(line.substr(kFile.size(), file_end - kFile.size()));
  frame.function = intern_text(line.substr(number_end + kIn.size()));
  return true;
}

}  // namespace

std::size_t python_frames(Span<ScriptFrame> out) noexcept {
  try {
    const std::string text = dump();
    std::string_view rest = text;
    std::size_t count = 0;
    while (!rest.empty() && count < out.size()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      if (parse(rest.substr(0, end), out[count])) ++count;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return count;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

}  // namespace cachalot::simulator
