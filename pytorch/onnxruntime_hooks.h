// The functions that ONNX Runtime's CUDA execution provider takes as options, over library_hooks.h. They do not have a device,
// so each device has three of its own. With such functions the provider works on CUDA's default stream, and refuses any other
// (onnxruntime/core/providers/cuda/cuda_execution_provider.cc).
#pragma once

#include <cstddef>

#include "pytorch/export.h"
#include "pytorch/library_memory.h"

extern "C" {

// The provider options of the same names.
struct CachalotOnnxRuntimeFunctions {
  void* (*gpu_external_alloc)(std::size_t bytes);  // null, and a line on stderr that says why, if memory cannot be had
  void (*gpu_external_free)(void* ptr);
  void (*gpu_external_empty_cache)();
};

// Gives the functions for sessions on a device, from 0 to 63: memory of `library` for work on the default stream. They live as
// long as the process. Codes and `error`: hooks.h. Thread-safe, as the functions are; they throw nothing.
CACHALOT_EXPORT int cachalot_plug_onnxruntime(cachalot::LibraryMemory* library, int device,
                                              CachalotOnnxRuntimeFunctions* functions, char* error,
                                              std::size_t capacity);
}
