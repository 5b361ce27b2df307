#include "pytorch/python_api.h"

#include <dlfcn.h>

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

}  // namespace cachalot
