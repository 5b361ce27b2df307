#include "pytorch/library_calls.h"

#include "pytorch/library_hooks.h"

namespace cachalot {
namespace {

constexpr int kFastCall = 0x0080;  // METH_FASTCALL of Python's methodobject.h

// An int's value as an address; false with an exception raised in Python if it is no int, or too large.
bool read(const Python& python, PythonObject* number, void*& value) {
  value = python.as_pointer(number);
  return value != nullptr || python.raised() == nullptr;
}

// The arguments as addresses; false with an exception raised in Python.
template <typename... Values>
bool read_all(PythonObject* self, PythonObject* const* arguments, std::ptrdiff_t count, void*& library,
              Values&... values) {
  const Python& python = *Python::instance();
  if (count != sizeof...(values)) {
    python.raise(*python.type_error, "this function of cachalot takes another number of arguments");
    return false;
  }
  return read(python, self, library) && (read(python, *arguments++, values) && ...);
}

PythonObject* allocate(PythonObject* self, PythonObject* const* arguments, std::ptrdiff_t count) {
  void *library, *bytes, *device, *stream;
  if (!read_all(self, arguments, count, library, bytes, device, stream)) return nullptr;
  void* ptr = nullptr;
  {
    const Python::WithoutLock released;
    ptr =
        cachalot_library_malloc(static_cast<LibraryMemory*>(library), reinterpret_cast<std::size_t>(bytes),
                                static_cast<int>(reinterpret_cast<std::intptr_t>(device)), static_cast<Stream>(stream));
  }
  return Python::instance()->from_pointer(ptr);
}

// The code of a free, as an int.
template <typename Free>
PythonObject* freed(Free free) {
  int code = 0;
  {
    const Python::WithoutLock released;
    code = free();
  }
  return Python::instance()->from_long(code);
}

PythonObject* free_memory(PythonObject* self, PythonObject* const* arguments, std::ptrdiff_t count) {
  void *library, *ptr;
  if (!read_all(self, arguments, count, library, ptr)) return nullptr;
  return freed([&] { return cachalot_library_free(static_cast<LibraryMemory*>(library), ptr); });
}

PythonObject* free_after(PythonObject* self, PythonObject* const* arguments, std::ptrdiff_t count) {
  void *library, *ptr, *stream;
  if (!read_all(self, arguments, count, library, ptr, stream)) return nullptr;
  return freed([&] {
    return cachalot_library_free_after(static_cast<LibraryMemory*>(library), ptr, static_cast<Stream>(stream));
  });
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

CachalotMethod* cachalot_library_methods() {
  static CachalotMethod methods[] = {{"malloc", allocate, kFastCall, nullptr},
                                     {"free", free_memory, kFastCall, nullptr},
                                     {"free_after", free_after, kFastCall, nullptr}};
  return Python::instance() == nullptr ? nullptr : methods;
}
