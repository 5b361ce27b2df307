#include "pytorch/host_hooks.h"

#include "base/check.h"
#include "pytorch/guarded.h"
#include "pytorch/host_memory.h"

using cachalot::HostMemory;
using cachalot::Options;

int cachalot_plug_pinned_malloc(void** buffer, std::size_t bytes, int device, char* error, std::size_t capacity) {
  return cachalot::guarded(error, capacity, [&] {
    *buffer = HostMemory::instance().allocate(bytes, {}, device);
    return 0;
  });
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
