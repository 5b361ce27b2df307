// The functions of Python's C API that the plug-in calls. The library does not link Python: the functions are looked up in
// the process when first needed, so that one library serves every version from 3.9 on, and programs without Python.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

namespace cachalot {

// Python's PyObject: only ever pointed at.
struct PythonObject;

// The functions by name; pages of docs.python.org describe each. All are in every Python from 3.9 on, except those with two
// names, which changed it.
class Python {
 public:
  // Null where the process has no Python, or one that lacks a function.
  static const Python* instance() noexcept;

  // Lets the calling thread use Python as long as it lives, if the thread may at all: a thread that has released the GIL, as
  // in PyTorch's functions, takes it again if `may_take_gil`. That waits for the thread which holds it: under no lock of
  // cachalot. A thread that never ran Python code is left alone, as is every thread once Python is shutting down: one that
  // asks for the GIL then does not come back.
  class Permission {
   public:
    Permission(const Python& python, bool may_take_gil);
    ~Permission();
    Permission(const Permission&) = delete;
    Permission& operator=(const Permission&) = delete;
    bool is_given() const { return is_given_; }

   private:
    const Python& python_;
    int state_ = 0;  // PyGILState_STATE
    bool is_given_ = false;
    bool was_taken_ = false;
  };

  // Makes the calling thread, which Python need not know, hold the GIL as long as the object lives. Waits for the thread that
  // holds the GIL. Gives nothing where Python has not begun, or shuts down.
  class Attachment {
   public:
    explicit Attachment(const Python& python);
    ~Attachment();
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
    bool is_given() const { return is_given_; }

   private:
    const Python& python_;
    bool is_given_;
    int state_ = 0;  // PyGILState_STATE
  };

  // Lays aside the exception that the thread raises, and brings it back at its end, whatever was raised meanwhile. Needs a
  // Permission.
  class RaisedException {
   public:
    explicit RaisedException(const Python& python) : python_(python) { python_.fetch(&type_, &value_, &traceback_); }
    RaisedException(const RaisedException&) = delete;
    RaisedException& operator=(const RaisedException&) = delete;
    ~RaisedException() { python_.restore(type_, value_, traceback_); }

   private:
    const Python& python_;
    PythonObject* type_ = nullptr;
    PythonObject* value_ = nullptr;
    PythonObject* traceback_ = nullptr;
  };

  // Releases the GIL, which the calling thread holds, and takes it again at its end. Does nothing where the process has no
  // Python. Where Python is shutting down, the thread does not come back.
  class WithoutLock {
   public:
    WithoutLock() : python_(instance()), state_(python_ == nullptr ? nullptr : python_->save_thread_()) {}
    ~WithoutLock() {
      if (python_ != nullptr) python_->take_lock_again(state_);
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

   private:
    const Python* const python_;
    PythonObject* const state_;
  };

  int (*add_pending_call)(int (*)(void*), void*);
  PythonObject* (*import)(const char*);
  PythonObject* (*call_method)(PythonObject*, const char* name, const char* format, ...);
  PythonObject* (*current_frame)();
  PythonObject* (*get_back)(PythonObject*);
  PythonObject* (*get_code)(PythonObject*);
  int (*get_line)(PythonObject*);
  PythonObject* (*get_attribute)(PythonObject*, const char*);
  const char* (*text)(PythonObject*, std::ptrdiff_t*);
  void (*increment)(PythonObject*);
  void (*decrement)(PythonObject*);
  void (*clear)();
  void (*fetch)(PythonObject**, PythonObject**, PythonObject**);
  void (*restore)(PythonObject*, PythonObject*, PythonObject*);
  void* (*as_pointer)(PythonObject*);  // an int's value
  PythonObject* (*from_pointer)(void*);
  PythonObject* (*from_long)(long);
  PythonObject* (*raised)();
  void (*raise)(PythonObject*, const char*);
  PythonObject** type_error;

 private:
  Python() noexcept;
  void take_lock_again(PythonObject* state) const;
  template <typename Function>
  void look_up(Function& function, const char* name, const char* former_name = nullptr) noexcept;

  bool complete_ = true;
  int (*is_initialized_)();
  int (*check_)();
  PythonObject* (*thread_state_)();
  PythonObject* (*own_state_)();
  int (*ensure_)();
  void (*release_)(int);
  int (*is_finalizing_)();
  PythonObject* (*save_thread_)();  // PyThreadState*, as are the other two
  void (*restore_thread_)(PythonObject*);
};

// Keeps the exception that the thread raises in Python: calls while the object lives may clear it or raise others. Memory is freed
// while Python looks for the handler of an exception, and PyTorch's recorder of call stacks clears it there.
class KeptException {
 public:
  explicit KeptException(bool may_take_gil) : python_(Python::instance()) {
    if (python_ == nullptr) return;
    permission_.emplace(*python_, may_take_gil);
    if (permission_->is_given()) raised_.emplace(*python_);
  }

 private:
  const Python* python_;
  std::optional<Python::Permission> permission_;
  std::optional<Python::RaisedException> raised_;  // ends before the permission does
};

// Functions of torch's that cachalot calls while Python may raise an exception.
//
// The same function, which keeps the exception that its thread raises in Python. An empty one stays empty.
template <typename Result, typename... Args>
std::function<Result(Args...)> keeping_exceptions(std::function<Result(Args...)> function, bool may_take_gil = false) {
  if (!function) return nullptr;
  return [function = std::move(function), may_take_gil](Args... args) {
    const KeptException kept(may_take_gil);
    return function(std::forward<Args>(args)...);
  };
}

// Python's frames for call stacks (call_stack.h).
//
// Makes call stacks have the frames of the Python code that the thread runs from now on. Has no effect without Python. A
// thread that runs Python code and has released the GIL, as in PyTorch's functions, takes it for a moment: under no lock of
// cachalot, as PyTorch's memory history does. Threads that Python does not know are left alone.
void provide_python_frames() noexcept;

// From now on the frames end where code of `file` (co_filename) has begun the program: that frame, those outside of it and
// those of Python's runpy inside are left out. Throws std::bad_alloc.
void hide_python_launcher(const char* file);

}  // namespace cachalot
