#include "pytorch/host_hooks.h"

#include <array>

#include "base/check.h"
#include "pytorch/guarded.h"
#include "pytorch/host_memory.h"
#include "pytorch/library_hooks.h"

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

void* cachalot_pinned_malloc(std::size_t bytes, int device) {
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

void cachalot_pinned_free(void* buffer) { HostMemory::instance().deallocate(buffer); }

int cachalot_plug_pinned_record_stream(void* buffer, void* stream, char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    const bool is_live = HostMemory::instance().record_stream(buffer, static_cast<cachalot::Stream>(stream));
    CACHALOT_REQUIRE(is_live, "{} is not a live buffer of pinned memory", static_cast<const void*>(buffer));
    return 0;
  });
}

int cachalot_plug_pinned_empty_cache(char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    HostMemory::instance().empty_cache();
    return 0;
  });
}

int cachalot_plug_pinned_set_limit(std::size_t bytes, char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    HostMemory::instance().set_limit(bytes == 0 ? Options::kUnlimited : bytes);
    return 0;
  });
}

long cachalot_plug_pinned_json(char* text, long capacity) {
  return cachalot::guarded_text(text, capacity, [] {
    const HostMemory& memory = HostMemory::instance();
    const std::size_t limit = memory.limit();
    return cachalot::formatted("{{\"limit_bytes\": {}, \"stats\": {}}}", limit == Options::kUnlimited ? 0 : limit,
                               cachalot::to_json(memory.stats().memory));
  });
}
