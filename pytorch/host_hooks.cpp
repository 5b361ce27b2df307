// Pinned host memory of the process, for ctypes: what CuPy's pinned allocator and the Python package ask for.
//
// Codes and `error` as in hooks.h; JSON as by cachalot_plug_json. Thread-safe.
#include <array>
#include <cstddef>

#include "base/check.h"
#include "pytorch/export.h"
#include "pytorch/guarded.h"
#include "pytorch/host_memory.h"
#include "pytorch/library_hooks.h"

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// Returns at least `bytes` bytes of pinned memory; null for 0 bytes, which is no failure, and on failure: the calling thread then
// asks cachalot_library_last_error (library_hooks.h). The first call of the process pins through GPU `device`.
CACHALOT_EXPORT void* cachalot_pinned_malloc(std::size_t bytes, int device) {
  if (bytes == 0) return nullptr;
  std::array<char, 1024> error{};
  void* buffer = nullptr;
  const int code = cachalot::guarded(error.data(), error.size(), [&] {
    buffer = HostMemory::instance().allocate(bytes, {}, device);
    return 0;
  });
  if (code < 0) cachalot::keep_library_error(code, error.data());
  return buffer;
}

// What it returned. All work that uses the buffer is done, or on streams that were recorded. Null is ignored.
CACHALOT_EXPORT void cachalot_pinned_free(void* buffer) { HostMemory::instance().deallocate(buffer); }

// Work on `stream` (cudaStream_t) uses the buffer. Anything but a live buffer is the caller's mistake.
CACHALOT_EXPORT int cachalot_plug_pinned_record_stream(void* buffer, void* stream, char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    const bool is_live = HostMemory::instance().record_stream(buffer, static_cast<cachalot::Stream>(stream));
    CACHALOT_REQUIRE(is_live, "{} is not a live buffer of pinned memory", static_cast<const void*>(buffer));
    return 0;
  });
}

CACHALOT_EXPORT int cachalot_plug_pinned_empty_cache(char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    HostMemory::instance().empty_cache();
    return 0;
  });
}

// The most bytes that are pinned from now on; 0: no limit. If more is pinned, buffers that are not in use go back.
CACHALOT_EXPORT int cachalot_plug_pinned_set_limit(std::size_t bytes, char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    HostMemory::instance().set_limit(bytes == 0 ? Options::kUnlimited : bytes);
    return 0;
  });
}

// {"limit_bytes": …, "stats": to_json(DeviceStats)}; limit_bytes is 0 without one.
CACHALOT_EXPORT long cachalot_plug_pinned_json(char* text, long capacity) {
  return cachalot::guarded_text(text, capacity, [] {
    const HostMemory& memory = HostMemory::instance();
    const std::size_t limit = memory.limit();
    return cachalot::formatted("{{\"limit_bytes\": {}, \"stats\": {}}}", limit == Options::kUnlimited ? 0 : limit,
                               cachalot::to_json(memory.stats().memory));
  });
}
}
