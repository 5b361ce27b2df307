// DLPack's Python protocol: a tensor in a capsule, whose name says whether somebody has taken it.
//
// Callers hold Python's lock (GIL), as does who lets a capsule die. Nothing here runs Python code, and neither does the
// deleter of what a consumer took: both may come while the interpreter shuts down.
#pragma once

#include <memory>

#include "cachalot/tensor_pool.h"

namespace cachalot {

// PyCapsule_New, PyCapsule_IsValid, PyCapsule_GetPointer and PyErr_NoMemory, before any capsule is made.
void use_python(void* capsule_new, void* capsule_is_valid, void* capsule_get_pointer, void* err_no_memory);

// A new reference to a capsule "dltensor_versioned", or "dltensor" as consumers from before DLPack 1.0 take it. One that
// nobody has taken gives the tensor up as it dies. NULL, with MemoryError set, where there is no host memory.
void* make_capsule(std::shared_ptr<PooledTensor> tensor, bool versioned);

}  // namespace cachalot
