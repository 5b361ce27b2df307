#include "pytorch/python_frames.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <string_view>
#include <utility>

#include "cachalot/call_stack.h"

namespace cachalot {

namespace {

// What Python calls PyObject: only ever pointed at.
struct Object;

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

// The functions of Python's C API; pages of docs.python.org name each. All are in every Python from 3.9 on, but for those
// with two names, which changed it. Names of attributes are made once.
class Python {
 public:
  // Null where the process has no Python, or one that lacks something.
  static const Python* instance() noexcept {
    static const Python python;
    return python.complete_ ? &python : nullptr;
  }

  // The calling thread may use Python as long as this lives, if it may at all. PyTorch's functions let go of the GIL on
  // their way to the allocator, so for most it must be taken again, as PyTorch's own memory history does. A thread that
  // never ran Python code has nothing to tell and is left alone, as is everybody once Python is shutting down: who asks
  // for the GIL then does not come back.
  class Permission {
   public:
    explicit Permission(const Python& python) : python_(python) {
      if (python.is_initialized_() == 0 || python.own_state_() == nullptr) return;
      // In a subinterpreter PyGILState_Check always says yes: the other asks the thread.
      is_given_ = python.check_() == 1 && python.thread_state_() != nullptr;
      if (is_given_ || python.is_finalizing()) return;
      state_ = python.ensure_();
      is_given_ = was_taken_ = true;
    }
    ~Permission() {
      if (was_taken_) python_.release_(state_);
    }
    Permission(const Permission&) = delete;
    Permission& operator=(const Permission&) = delete;
    bool is_given() const { return is_given_; }

   private:
    const Python& python_;
    int state_ = 0;  // PyGILState_STATE
    bool is_given_ = false;
    bool was_taken_ = false;
  };

  // Innermost first. Frames, code and texts that are made on the way are given back; an exception that is being raised
  // is laid aside meanwhile.
  std::size_t frames(Span<ScriptFrame> out) const {
    const RaisedException raised(*this);
    Reference frame = current_frame();
    std::size_t count = 0;
    while (frame.get() != nullptr && count < out.size()) {
      out[count++] = describe(frame.get());
      frame = Reference(*this, get_back_(frame.get()));
    }
    return count;
  }

 private:
  // Owns one reference to an object, or none.
  class Reference {
   public:
    Reference(const Python& python, Object* object) : python_(&python), object_(object) {}
    Reference(Reference&& other) noexcept : python_(other.python_), object_(std::exchange(other.object_, nullptr)) {}
    Reference& operator=(Reference&& other) noexcept {
      std::swap(object_, other.object_);
      return *this;
    }
    ~Reference() {
      if (object_ != nullptr) python_->decrement_(object_);
    }
    Object* get() const { return object_; }

   private:
    const Python* python_;
    Object* object_;
  };

  class RaisedException {
   public:
    explicit RaisedException(const Python& python) : python_(python) { python_.fetch_(&type_, &value_, &traceback_); }
    RaisedException(const RaisedException&) = delete;
    RaisedException& operator=(const RaisedException&) = delete;
    ~RaisedException() { python_.restore_(type_, value_, traceback_); }  // forgets ours, too

   private:
    const Python& python_;
    Object* type_ = nullptr;
    Object* value_ = nullptr;
    Object* traceback_ = nullptr;
  };

  Python() noexcept {
    look_up(is_initialized_, "Py_IsInitialized");
    look_up(check_, "PyGILState_Check");
    look_up(thread_state_, "PyThreadState_GetUnchecked", "_PyThreadState_UncheckedGet");  // from 3.13 on; before
    look_up(own_state_, "PyGILState_GetThisThreadState");
    look_up(ensure_, "PyGILState_Ensure");
    look_up(release_, "PyGILState_Release");
    look_up(is_finalizing_, "Py_IsFinalizing", "_Py_IsFinalizing");  // from 3.13 on; before
    look_up(current_frame_, "PyEval_GetFrame");
    look_up(get_back_, "PyFrame_GetBack");
    look_up(get_code_, "PyFrame_GetCode");
    look_up(get_line_, "PyFrame_GetLineNumber");
    look_up(get_attribute_, "PyObject_GetAttrString");
    look_up(text_, "PyUnicode_AsUTF8AndSize");
    look_up(increment_, "Py_IncRef");
    look_up(decrement_, "Py_DecRef");
    look_up(clear_, "PyErr_Clear");
    look_up(fetch_, "PyErr_Fetch");
    look_up(restore_, "PyErr_Restore");
  }

  template <typename Function>
  void look_up(Function& function, const char* name, const char* former_name = nullptr) noexcept {
    void* symbol = dlsym(RTLD_DEFAULT, name);
    if (symbol == nullptr && former_name != nullptr) symbol = dlsym(RTLD_DEFAULT, former_name);
    function = reinterpret_cast<Function>(symbol);
    complete_ = complete_ && symbol != nullptr;
  }

  bool is_finalizing() const { return is_finalizing_() != 0; }

  Reference current_frame() const {
    Object* const frame = current_frame_();  // borrowed
    if (frame != nullptr) increment_(frame);
    return {*this, frame};
  }

  ScriptFrame describe(Object* frame) const {
    const Reference code(*this, get_code_(frame));
    Reference name(*this, get_attribute_(code.get(), "co_qualname"));  // from 3.11 on
    if (name.get() == nullptr) {
      clear_();
      name = Reference(*this, get_attribute_(code.get(), "co_name"));
    }
    const Reference file(*this, get_attribute_(code.get(), "co_filename"));
    return {interned(name.get()), interned(file.get()), get_line_(frame)};
  }

  // A text that is none, or that UTF-8 cannot say, is empty.
  const char* interned(Object* text) const {
    std::ptrdiff_t length = 0;
    const char* const bytes = text != nullptr ? text_(text, &length) : nullptr;
    if (bytes == nullptr) clear_();
    return bytes != nullptr ? intern_text({bytes, static_cast<std::size_t>(length)}) : "";
  }

  bool complete_ = true;
  int (*is_initialized_)();
  int (*check_)();
  Object* (*thread_state_)();
  Object* (*own_state_)();
  int (*ensure_)();
  void (*release_)(int);
  int (*is_finalizing_)();
  Object* (*current_frame_)();
  Object* (*get_back_)(Object*);
  Object* (*get_code_)(Object*);
  int (*get_line_)(Object*);
  Object* (*get_attribute_)(Object*, const char*);
  const char* (*text_)(Object*, std::ptrdiff_t*);
  void (*increment_)(Object*);
  void (*decrement_)(Object*);
  void (*clear_)();
  void (*fetch_)(Object**, Object**, Object**);
  void (*restore_)(Object*, Object*, Object*);
};

std::size_t python_frames(Span<ScriptFrame> out) noexcept {
  const Python* const python = Python::instance();
  if (python == nullptr) return 0;
  const Python::Permission permission(*python);
  if (!permission.is_given()) return 0;
  try {
    return without_launcher(out.subspan(0, python->frames(out)));
  } catch (const std::bad_alloc&) {  // for a name
    return 0;
  }
}

}  // namespace

void provide_python_frames() noexcept { set_script_frames(&python_frames); }

void hide_python_launcher(const char* file) { launcher.store(intern_text(file), std::memory_order_release); }

}  // namespace cachalot
