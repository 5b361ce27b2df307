#include "pytorch/cupy_hooks.h"

#include <atomic>

#include "pytorch/library_hooks.h"
#include "pytorch/python_api.h"

namespace cachalot {
namespace {

std::atomic<std::intptr_t (*)()> current_cupy_stream{nullptr};

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

void cachalot_cupy_use_stream(std::intptr_t (*current_stream)()) { current_cupy_stream = current_stream; }

void* cachalot_cupy_malloc(LibraryMemory* library, std::size_t bytes, int device) {
  const auto current_stream = current_cupy_stream.load(std::memory_order_relaxed);
  const auto stream = reinterpret_cast<Stream>(current_stream == nullptr ? 0 : current_stream());
  const Python::WithoutLock released;
  return cachalot_library_malloc(library, bytes, device, stream);
}

void cachalot_cupy_free(LibraryMemory* library, void* ptr, int) {
  const Python::WithoutLock released;
  cachalot_library_free(library, ptr);
}
