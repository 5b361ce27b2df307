// The heap of the process for libraries other than torch (CuPy, Numba, …): for their C callbacks, and for Python by ctypes. Memory
// comes from the allocator that serves torch, if that is enabled, and is counted by library and device.
//
// Nothing that is exported here throws, and nothing needs torch or Python. After a failure, cachalot_last_error_code() and
// cachalot_last_error() tell the calling thread what happened. Thread-safe.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "c_api/last_error.h"
#include "cachalot/device.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {

// A LibraryUsage is what one library has of one device's memory.
struct LibraryUsage {
  std::string library;
  int device = 0;
  std::int64_t live_bytes = 0;   // of the blocks of its live allocations: PyTorch's allocated_bytes
  std::int64_t peak_bytes = 0;   // the largest live_bytes
  std::int64_t allocations = 0;  // made since the process began
  std::int64_t frees = 0;        // of these
};

namespace {

constexpr const char* kRemainder = "torch";

// Returns the bytes of the block, as statistics count it; 0 for memory that they do not count: with caching off.
std::int64_t block_bytes(CachingAllocator& allocator, void* ptr) {
  try {
    return static_cast<std::int64_t>(allocator.allocated_size(ptr));
  } catch (const InvalidArgument&) {
    if (allocator.device_of(ptr) < 0) throw;
    return 0;
  }
}

void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t before = peak.load(std::memory_order_relaxed);
  while (before < value && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// Returns the usage by others than the libraries. Counts of both are read while other threads work: a difference is
// never below 0.
LibraryUsage remainder(const CachingAllocator& allocator, int device, const std::vector<LibraryUsage>& libraries) {
  const DeviceStats stats = allocator.memory_stats(device);
  LibraryUsage rest{kRemainder,
                    device,
                    stats.allocated_bytes.all.current,
                    stats.allocated_bytes.all.peak,
                    stats.allocation.all.allocated,
                    stats.allocation.all.freed};
  for (const LibraryUsage& usage : libraries) {
    if (usage.device != device) continue;
    rest.live_bytes -= usage.live_bytes;
    rest.allocations -= usage.allocations;
    rest.frees -= usage.frees;
  }
  for (std::int64_t* figure : {&rest.live_bytes, &rest.allocations, &rest.frees}) *figure = std::max(*figure, {});
  return rest;
}

}  // namespace

// A LibraryMemory is one library's account of the process's allocator. Invariants: (1) allocations - frees is the number of
// live allocations; (2) live_bytes is the sum of their blocks; (3) it is counted after an allocation and before a free, so
// that memory is never counted twice.
//
// Counted with atomics, under no lock. Never destroyed: memory is freed at the very end of the process. In a forked
// child of the process that made the allocator, frees do nothing and are not counted. Thread-safe.
class LibraryMemory {
 public:
  // Returns the account of the library, which is made at the first call with its name. Lives as long as the process.
  // Throws InvalidArgument for an empty name, and for "torch": the name of what no account has.
  static LibraryMemory& of(std::string_view library) {
    CACHALOT_REQUIRE(
        !library.empty() && library != kRemainder,
        "library is '{}': it must be the name of a library other than torch, whose tensors need no account", library);
    LibraryMemory* first = newest_.load(std::memory_order_acquire);
    if (LibraryMemory* const known = find(library, first)) return *known;
    std::unique_ptr<LibraryMemory> made(new LibraryMemory(library));
    do {
      if (LibraryMemory* const known = find(library, first)) return *known;
      made->before_ = first;
    } while (!newest_.compare_exchange_weak(first, made.get(), std::memory_order_acq_rel));
    return *made.release();
  }
  // Returns the usage of each library and device that ever had memory, the libraries by name, then "torch": what remains of
  // the allocator's memory. Its peak is that of all memory together, and torch's reset_peak_memory_stats and
  // reset_accumulated_memory_stats apply to it. Empty while the process has no allocator, and in a forked child of the
  // process that made it.
  static std::vector<LibraryUsage> usage() {
    const CachingAllocator* const allocator = Process::made();
    std::vector<LibraryUsage> usage;
    if (allocator == nullptr) return usage;
    const LibraryMemory* const first = newest_.load(std::memory_order_acquire);
    for (const LibraryMemory* one = first; one != nullptr; one = one->before_) one->add_usage(usage);
    std::sort(usage.begin(), usage.end(), [](const LibraryUsage& a, const LibraryUsage& b) {
      return a.library != b.library ? a.library < b.library : a.device < b.device;
    });
    std::vector<LibraryUsage> rest;
    for (int device = 0; device < allocator->device_count(); ++device) {
      const LibraryUsage of_device = remainder(*allocator, device, usage);
      if (of_device.allocations > 0 || of_device.live_bytes > 0) rest.push_back(of_device);
    }
    usage.insert(usage.end(), rest.begin(), rest.end());
    return usage;
  }

  // Returns memory for work on `stream`; null for 0 bytes. As CachingAllocator::allocate.
  void* allocate(std::size_t bytes, int device, Stream stream) {
    void* const ptr = Process::instance().allocate(bytes, device, stream);
    if (ptr == nullptr) return nullptr;
    try {
      count_allocation(ptr, device);
    } catch (...) {
      process_allocator().deallocate_when_possible(ptr);
      throw;
    }
    return ptr;
  }
  // Frees what allocate returned; null is ignored. As CachingAllocator::deallocate.
  void deallocate(void* ptr) {
    counted_free(ptr, [ptr](CachingAllocator& allocator) { allocator.deallocate(ptr); });
  }
  // Frees the memory after work on `stream`, which may be another than the allocation's.
  void deallocate(void* ptr, Stream stream) {
    counted_free(ptr, [ptr, stream](CachingAllocator& allocator) {
      allocator.record_stream(ptr, stream);
      allocator.deallocate(ptr);
    });
  }

 private:
  struct Counters {
    std::atomic<std::int64_t> live_bytes{0};
    std::atomic<std::int64_t> peak_bytes{0};
    std::atomic<std::int64_t> allocations{0};
    std::atomic<std::int64_t> frees{0};
  };

  explicit LibraryMemory(std::string_view name) : name_(name) {}
  static LibraryMemory* find(std::string_view name, LibraryMemory* first) {
    while (first != nullptr && first->name_ != name) first = first->before_;
    return first;
  }
  Counters& counters(int device) {
    Counters* all = counters_.load(std::memory_order_acquire);
    if (all == nullptr) {
      auto made = std::make_unique<Counters[]>(static_cast<std::size_t>(process_allocator().device_count()));
      if (counters_.compare_exchange_strong(all, made.get(), std::memory_order_acq_rel)) all = made.release();
    }
    return all[device];
  }
  void count_allocation(void* ptr, int device) {
    const std::int64_t bytes = block_bytes(process_allocator(), ptr);
    Counters& mine = counters(device);
    mine.allocations.fetch_add(1, std::memory_order_relaxed);
    raise_to(mine.peak_bytes, mine.live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  }
  template <typename Free>
  void counted_free(void* ptr, Free free) {
    CachingAllocator& allocator = process_allocator();
    if (ptr == nullptr || allocator.is_inherited()) return;
    const std::int64_t bytes = block_bytes(allocator, ptr);
    Counters& mine = counters(allocator.device_of(ptr));
    mine.live_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    mine.frees.fetch_add(1, std::memory_order_relaxed);
    try {
      free(allocator);
    } catch (...) {
      mine.live_bytes.fetch_add(bytes, std::memory_order_relaxed);
      mine.frees.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
  }
  void add_usage(std::vector<LibraryUsage>& usage) const {
    const Counters* const all = counters_.load(std::memory_order_acquire);
    if (all == nullptr) return;
    for (int device = 0; device < process_allocator().device_count(); ++device) {
      const Counters& of_device = all[device];
      const LibraryUsage found{name_,
                               device,
                               of_device.live_bytes.load(std::memory_order_relaxed),
                               of_device.peak_bytes.load(std::memory_order_relaxed),
                               of_device.allocations.load(std::memory_order_relaxed),
                               of_device.frees.load(std::memory_order_relaxed)};
      if (found.allocations > 0) usage.push_back(found);
    }
  }

  static inline std::atomic<LibraryMemory*> newest_{nullptr};

  const std::string name_;
  LibraryMemory* before_ = nullptr;           // made earlier
  std::atomic<Counters*> counters_{nullptr};  // one for each device; made by the first allocation
};

namespace {

LibraryMemory& required(LibraryMemory* library) {
  CACHALOT_REQUIRE(library != nullptr, "library is NULL; it must be cachalot_plug_library's");
  return *library;
}

// Returns the usage with the fields of cachalot.LibraryUsage.
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
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// Sets `library` to the account of the library with this name, which lives as long as the process.
CACHALOT_EXPORT int cachalot_plug_library(const char* name, LibraryMemory** library) {
  return guarded([&] {
    CACHALOT_REQUIRE(name != nullptr && library != nullptr, "name or library is NULL; each must point to something");
    *library = &LibraryMemory::of(name);
    Process::instance().expect_other_libraries();
  });
}

// Returns `bytes` bytes on `device` for work on `stream`; null for 0 bytes, which is not a failure, and on failure.
CACHALOT_EXPORT void* cachalot_library_malloc(LibraryMemory* library, std::size_t bytes, int device, Stream stream) {
  return value_or<void*>(nullptr, [&] { return required(library).allocate(bytes, device, stream); });
}

// Frees what cachalot_library_malloc returned to this library; null is ignored. The next user on the allocation's stream comes
// after all work that is queued there. Returns a code. In a forked child it does nothing.
CACHALOT_EXPORT int cachalot_library_free(LibraryMemory* library, void* ptr) {
  return guarded([&] { required(library).deallocate(ptr); });
}

// Frees memory that work on `stream`, too, may use: the next user comes after that.
CACHALOT_EXPORT int cachalot_library_free_after(LibraryMemory* library, void* ptr, Stream stream) {
  return guarded([&] { required(library).deallocate(ptr, stream); });
}

// JSON of LibraryMemory::usage, a list of objects with LibraryUsage's fields.
CACHALOT_EXPORT char* cachalot_plug_library_usage_json() { return text_or_null(usage_json); }
}

// ---- CuPy -----------------------------------------------------------------------------------------------------------

// The C functions that cupy.cuda.CFunctionAllocator calls, over those above. CuPy passes no stream: they ask CuPy for its
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

// These do as cachalot_library_malloc and cachalot_library_free, with CuPy's signatures. The calling thread holds the GIL,
// which is released while the allocator works.
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

// The functions above as Python calls them without ctypes, which costs more than they do.

// The layout of Python's PyMethodDef.
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

// An int's value as an address; false with an exception raised in Python if it is not an int, or too large.
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

// The functions that ONNX Runtime's CUDA execution provider takes as options, over LibraryMemory. They do not have a device,
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

std::atomic<LibraryMemory*> onnxruntime_memory{nullptr};  // set before any of the functions is handed out

// ONNX Runtime's own message has no reason.
template <typename Action>
void tell_errors(Action action) noexcept {
  if (guarded(action) != CACHALOT_OK) print_error("cachalot: ONNX Runtime: {}\n", last_error);
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
// long as the process. Thread-safe, as the functions are; they throw nothing.
CACHALOT_EXPORT int cachalot_plug_onnxruntime(LibraryMemory* library, int device,
                                              CachalotOnnxRuntimeFunctions* functions) {
  return guarded([&] {
    CACHALOT_REQUIRE(library != nullptr && functions != nullptr,
                     "library or functions is NULL; each must point to something");
    CACHALOT_REQUIRE(device >= 0 && device < kOnnxRuntimeDevices, "device is {}; it must be from 0 to {}", device,
                     kOnnxRuntimeDevices - 1);
    onnxruntime_memory = library;
    *functions = kOnnxRuntimeFunctions[static_cast<std::size_t>(device)];
  });
}
}
