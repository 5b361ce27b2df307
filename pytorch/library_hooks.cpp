#include "pytorch/library_hooks.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "pytorch/export.h"
#include "pytorch/guarded.h"
#include "pytorch/library_memory.h"
#include "pytorch/process.h"
#include "pytorch/python_api.h"

namespace cachalot {
namespace {

constexpr std::size_t kMessageBytes = 4096;

// The thread's last failure. No object, since memory may be freed after a thread has destroyed those; and small, since the
// library takes its thread-local memory from what the linker keeps for libraries that are loaded late.
thread_local int last_code = 0;
thread_local char* last_message = nullptr;  // malloc's; null also where that had no memory

void keep(int code, const char* message) noexcept {
  std::free(std::exchange(last_message, strdup(message)));
  last_code = code;
}

// What `action` returns; `failed` after an error, which is kept.
template <typename Result, typename Action>
Result kept_errors(Result failed, Action action) noexcept {
  Result result = failed;
  char message[kMessageBytes];
  const int code = guarded(message, kMessageBytes, [&] { return result = action(), 0; });
  if (code != 0) keep(code, message);
  return result;
}

LibraryMemory& required(LibraryMemory* library) {
  CACHALOT_REQUIRE(library != nullptr, "library is NULL; it must be cachalot_plug_library's");
  return *library;
}

// As cachalot.LibraryUsage has them.
std::string usage_json() {
  JsonWriter json;
  json.list(LibraryMemory::usage(), [](JsonWriter& out, const LibraryUsage& usage) {
    out.begin_object()
        .member("library", usage.library)
        .member("device", usage.device)
        .member("live_bytes", usage.live_bytes)
        .member("peak_bytes", usage.peak_bytes)
        .member("allocations", usage.allocations)
        .member("frees", usage.frees)
        .end_object();
  });
  return json.take();
}

}  // namespace

void keep_library_error(int code, const char* message) noexcept { keep(code, message); }

}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_plug_library(const char* name, LibraryMemory** library, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(name != nullptr && library != nullptr, "name or library is NULL; each must point to something");
    *library = &LibraryMemory::of(name);
    Process::instance().expect_other_libraries();
    return 0;
  });
}

void* cachalot_library_malloc(LibraryMemory* library, std::size_t bytes, int device, Stream stream) {
  return kept_errors<void*>(nullptr, [&] { return required(library).allocate(bytes, device, stream); });
}

int cachalot_library_free(LibraryMemory* library, void* ptr) {
  return kept_errors(-1, [&] { return required(library).deallocate(ptr), 0; });
}

int cachalot_library_free_after(LibraryMemory* library, void* ptr, Stream stream) {
  return kept_errors(-1, [&] { return required(library).deallocate(ptr, stream), 0; });
}

int cachalot_library_last_error(char* text, std::size_t capacity) {
  char* const message = std::exchange(last_message, nullptr);
  copy_text(message == nullptr ? "" : message, text, capacity);
  std::free(message);
  return std::exchange(last_code, 0);
}

long cachalot_plug_library_usage(char* text, long capacity) { return guarded_text(text, capacity, usage_json); }

// ---- CuPy -----------------------------------------------------------------------------------------------------------

// The C functions that cupy.cuda.CFunctionAllocator calls, over library_hooks.h. CuPy passes no stream: they ask CuPy for its
// current one.

namespace cachalot {
namespace {

std::atomic<std::intptr_t (*)()> current_cupy_stream{nullptr};

}  // namespace
}  // namespace cachalot

extern "C" {

// Sets the function that returns CuPy's current stream of the calling thread: get_current_stream_ptr in
// cupy_backends.cuda.stream.__pyx_capi__. It comes before the first allocation.
CACHALOT_EXPORT void cachalot_cupy_use_stream(std::intptr_t (*current_stream)()) {
  current_cupy_stream = current_stream;
}

// As cachalot_library_malloc and cachalot_library_free, with CuPy's signatures. The calling thread holds the GIL, which is
// released while the allocator works.
CACHALOT_EXPORT void* cachalot_cupy_malloc(LibraryMemory* library, std::size_t bytes, int device) {
  const auto current_stream = current_cupy_stream.load(std::memory_order_relaxed);
  const auto stream = reinterpret_cast<Stream>(current_stream == nullptr ? 0 : current_stream());
  const Python::WithoutLock released;
  return cachalot_library_malloc(library, bytes, device, stream);
}

CACHALOT_EXPORT void cachalot_cupy_free(LibraryMemory* library, void* ptr, int) {
  const Python::WithoutLock released;
  cachalot_library_free(library, ptr);
}
}

// ---- Python without ctypes ------------------------------------------------------------------------------------------

// The functions of library_hooks.h as Python calls them without ctypes, which costs more than they do.

// As Python's PyMethodDef.
struct CachalotMethod {
  const char* name;
  cachalot::PythonObject* (*function)(cachalot::PythonObject* self, cachalot::PythonObject* const* arguments,
                                      std::ptrdiff_t count);
  int flags;
  const char* documentation;
};

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

extern "C" {

// Returns the methods malloc(bytes, device, stream), free(address) and free_after(address, stream), for PyCFunction_NewEx with
// `self` an int, the account's address. The first returns an address, 0 on failure; the others a code. They release the GIL
// while the allocator works. Lives as long as the process; null where the process has no Python.
CACHALOT_EXPORT CachalotMethod* cachalot_library_methods() {
  static CachalotMethod methods[] = {{"malloc", allocate, kFastCall, nullptr},
                                     {"free", free_memory, kFastCall, nullptr},
                                     {"free_after", free_after, kFastCall, nullptr}};
  return Python::instance() == nullptr ? nullptr : methods;
}
}

// ---- ONNX Runtime ---------------------------------------------------------------------------------------------------

// The functions that ONNX Runtime's CUDA execution provider takes as options, over library_hooks.h. They do not have a device,
// so each device has three of its own. With such functions the provider works on CUDA's default stream, and refuses any other
// (onnxruntime/core/providers/cuda/cuda_execution_provider.cc).

// The provider options of the same names.
struct CachalotOnnxRuntimeFunctions {
  void* (*gpu_external_alloc)(std::size_t bytes);  // null, and a line on stderr that says why, if memory cannot be had
  void (*gpu_external_free)(void* ptr);
  void (*gpu_external_empty_cache)();
};

namespace cachalot {
namespace {

constexpr int kOnnxRuntimeDevices = 64;
constexpr std::size_t kReasonBytes = 1024;

std::atomic<LibraryMemory*> onnxruntime_memory{nullptr};  // set before any of the functions is given to anybody

// ONNX Runtime's own message has no reason.
template <typename Action>
void tell_errors(Action action) noexcept {
  char reason[kReasonBytes];
  const int code = guarded(reason, kReasonBytes, [&] { return action(), 0; });
  if (code != 0) print_error("cachalot: ONNX Runtime: {}\n", reason);
}

template <int device>
void* onnxruntime_alloc(std::size_t bytes) {
  void* ptr = nullptr;
  tell_errors([&] { ptr = onnxruntime_memory.load()->allocate(bytes, device, /*stream=*/nullptr); });
  return ptr;
}

void onnxruntime_free(void* ptr) {
  tell_errors([&] { onnxruntime_memory.load()->deallocate(ptr); });
}

template <int device>
void onnxruntime_empty_cache() {
  tell_errors([] { process_allocator().empty_cache(device); });
}

template <int... devices>
constexpr std::array<CachalotOnnxRuntimeFunctions, kOnnxRuntimeDevices> functions_of(
    std::integer_sequence<int, devices...>) {
  return {{{onnxruntime_alloc<devices>, onnxruntime_free, onnxruntime_empty_cache<devices>}...}};
}

constexpr auto kOnnxRuntimeFunctions = functions_of(std::make_integer_sequence<int, kOnnxRuntimeDevices>());

}  // namespace
}  // namespace cachalot

extern "C" {

// Gives the functions for sessions on a device, from 0 to 63: memory of `library` for work on the default stream. They live as
// long as the process. Codes and `error`: hooks.h. Thread-safe, as the functions are; they throw nothing.
CACHALOT_EXPORT int cachalot_plug_onnxruntime(LibraryMemory* library, int device,
                                              CachalotOnnxRuntimeFunctions* functions, char* error,
                                              std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(library != nullptr && functions != nullptr,
                     "library or functions is NULL; each must point to something");
    CACHALOT_REQUIRE(device >= 0 && device < kOnnxRuntimeDevices, "device is {}; it must be from 0 to {}", device,
                     kOnnxRuntimeDevices - 1);
    onnxruntime_memory = library;
    *functions = kOnnxRuntimeFunctions[static_cast<std::size_t>(device)];
    return 0;
  });
}
}
