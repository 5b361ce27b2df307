#include "pytorch/plug/python_api.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

#include "cachalot/call_stack.h"

namespace cachalot {

const Python* Python::instance() noexcept {
  static const Python python;
  return python.complete_ ? &python : nullptr;
}

Python::Permission::Permission(const Python& python, bool may_take_gil) : python_(python) {
  if (python.is_initialized_() == 0 || python.own_state_() == nullptr) return;
  // In a subinterpreter PyGILState_Check always says yes: the other asks the thread.
  is_given_ = python.check_() == 1 && python.thread_state_() != nullptr;
  if (is_given_ || !may_take_gil || python.is_finalizing_() != 0) return;
  state_ = python.ensure_();
  is_given_ = was_taken_ = true;
}

Python::Permission::~Permission() {
  if (was_taken_) python_.release_(state_);
}

Python::Attachment::Attachment(const Python& python)
    : python_(python), is_given_(python.is_initialized_() != 0 && python.is_finalizing_() == 0) {
  if (is_given_) state_ = python.ensure_();
}

Python::Attachment::~Attachment() {
  if (is_given_) python_.release_(state_);
}

// Until 3.13 Python ends a thread that asks for the GIL while it shuts down, which unwinds the thread's stack like an exception
// that must not be caught; CuPy's code around a call of an allocator would catch it. From 3.14 on such a thread waits for the end
// of the process.
void Python::take_lock_again(PythonObject* state) const {
  try {
    restore_thread_(state);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

Python::Python() noexcept {
  look_up(is_initialized_, "Py_IsInitialized");
  look_up(check_, "PyGILState_Check");
  look_up(thread_state_, "PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet");  // from 3.13 on; before
  look_up(own_state_, "PyGILState_GetThisThreadState");
  look_up(ensure_, "PyGILState_Ensure");
  look_up(release_, "PyGILState_Release");
  look_up(is_finalizing_, "Py_IsFinalizing", "_Py_IsFinalizing");  // from 3.13 on; before
  look_up(save_thread_, "PyEval_SaveThread");
  look_up(restore_thread_, "PyEval_RestoreThread");
  look_up(add_pending_call, "Py_AddPendingCall");
  look_up(import, "PyImport_ImportModule");
  look_up(call_method, "PyObject_CallMethod");
  look_up(current_frame, "PyEval_GetFrame");
  look_up(get_back, "PyFrame_GetBack");
  look_up(get_code, "PyFrame_GetCode");
  look_up(get_line, "PyFrame_GetLineNumber");
  look_up(get_attribute, "PyObject_GetAttrString");
  look_up(text, "PyUnicode_AsUTF8AndSize");
  look_up(increment, "Py_IncRef");
  look_up(decrement, "Py_DecRef");
  look_up(clear, "PyErr_Clear");
  look_up(fetch, "PyErr_Fetch");
  look_up(restore, "PyErr_Restore");
  look_up(as_pointer, "PyLong_AsVoidPtr");
  look_up(from_pointer, "PyLong_FromVoidPtr");
  look_up(from_long, "PyLong_FromLong");
  look_up(raised, "PyErr_Occurred");
  look_up(raise, "PyErr_SetString");
  look_up(type_error, "PyExc_TypeError");
}

template <typename Function>
void Python::look_up(Function& function, const char* name, const char* former_name) noexcept {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol == nullptr && former_name != nullptr) symbol = dlsym(RTLD_DEFAULT, former_name);
  function = reinterpret_cast<Function>(symbol);
  complete_ = complete_ && symbol != nullptr;
}

namespace {

std::atomic<const char*> launcher{nullptr};  // interned

bool is_of_runpy(const ScriptFrame& frame) {
  const std::string_view file = frame.file;
  return file == "<frozen runpy>" || file.ends_with("/runpy.py");
}

// Returns the number of frames that are the program's own, from the innermost on.
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

// Returns the text; empty for an object that is not a text, or that UTF-8 cannot encode.
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
