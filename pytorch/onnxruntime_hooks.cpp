#include "pytorch/onnxruntime_hooks.h"

#include <array>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "pytorch/guarded.h"
#include "pytorch/process.h"

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

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_plug_onnxruntime(LibraryMemory* library, int device, CachalotOnnxRuntimeFunctions* functions, char* error,
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
