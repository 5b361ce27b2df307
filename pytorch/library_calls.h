// The functions of library_hooks.h as Python calls them without ctypes, which costs more than they do.
#pragma once

#include <cstddef>

#include "pytorch/export.h"
#include "pytorch/python_api.h"

extern "C" {

// As Python's PyMethodDef.
struct CachalotMethod {
  const char* name;
  cachalot::PythonObject* (*function)(cachalot::PythonObject* self, cachalot::PythonObject* const* arguments,
                                      std::ptrdiff_t count);
  int flags;
  const char* documentation;
};

// Returns the methods malloc(bytes, device, stream), free(address) and free_after(address, stream), for PyCFunction_NewEx with
// `self` an int, the account's address. The first returns an address, 0 on failure; the others a code. They release the GIL
// while the allocator works. Lives as long as the process; null where the process has no Python.
CACHALOT_EXPORT CachalotMethod* cachalot_library_methods();
}
