#include "pytorch/python_frames.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

#include "cachalot/call_stack.h"
#include "pytorch/python_api.h"

namespace cachalot {

namespace {

std::atomic<const char*> launcher{nullptr};  // interned

bool is_of_runpy(const ScriptFrame& frame) {
  const std::string_view file = frame.file;
  return file == "<frozen runpy>" || file.ends_with("/runpy.py");
}

// How many of the frames are the program's own, from the innermost on.
std::size_t without_launcher(std::span<const ScriptFrame> frames) {
  const char* const file = launcher.load(std::memory_order_acquire);
  const auto is_launcher = [&](const ScriptFrame& frame) { return frame.file == file; };
  auto end = std::ranges::find_if(frames, is_launcher);
  if (end == frames.end()) return frames.size();
  while (end != frames.begin() && is_of_runpy(*(end - 1))) --end;
  return static_cast<std::size_t>(end - frames.begin());
}

// Owns one reference to an object, or none.
class Reference {
 public:
  Reference(const Python& python, PythonObject* object) : python_(&python), object_(object) {}
  Reference(Reference&& other) noexcept : python_(other.python_), object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() {
    if (object_ != nullptr) python_->decrement(object_);
  }
  PythonObject* get() const { return object_; }

 private:
  const Python* python_;
  PythonObject* object_;
};

Reference current_frame(const Python& python) {
  PythonObject* const frame = python.current_frame();  // borrowed
  if (frame != nullptr) python.increment(frame);
  return {python, frame};
}

// A text that is none, or that UTF-8 cannot say, is empty.
const char* interned(const Python& python, PythonObject* text) {
  std::ptrdiff_t length = 0;
  const char* const bytes = text != nullptr ? python.text(text, &length) : nullptr;
  if (bytes == nullptr) python.clear();
  return bytes != nullptr ? intern_text({bytes, static_cast<std::size_t>(length)}) : "";
}

ScriptFrame describe(const Python& python, PythonObject* frame) {
  const Reference code(python, python.get_code(frame));
  Reference name(python, python.get_attribute(code.get(), "co_qualname"));  // from 3.11 on
  if (name.get() == nullptr) {
    python.clear();
    name = Reference(python, python.get_attribute(code.get(), "co_name"));
  }
  const Reference file(python, python.get_attribute(code.get(), "co_filename"));
  return {interned(python, name.get()), interned(python, file.get()), python.get_line(frame)};
}

// Innermost first. Frames, code and texts that are made on the way are given back; an exception that is being raised is
// laid aside meanwhile.
std::size_t frames(const Python& python, Span<ScriptFrame> out) {
  const Python::RaisedException raised(python);
  Reference frame = current_frame(python);
  std::size_t count = 0;
  while (frame.get() != nullptr && count < out.size()) {
    out[count++] = describe(python, frame.get());
    frame = Reference(python, python.get_back(frame.get()));
  }
  return count;
}

std::size_t python_frames(Span<ScriptFrame> out) noexcept {
  const Python* const python = Python::instance();
  if (python == nullptr) return 0;
  const Python::Permission permission(*python, true);
  if (!permission.is_given()) return 0;
  try {
    return without_launcher(out.subspan(0, frames(*python, out)));
  } catch (const std::bad_alloc&) {  // for a name
    return 0;
  }
}

}  // namespace

void provide_python_frames() noexcept { set_script_frames(&python_frames); }

void hide_python_launcher(const char* file) { launcher.store(intern_text(file), std::memory_order_release); }

}  // namespace cachalot
