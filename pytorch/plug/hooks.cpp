#include "pytorch/plug/hooks.h"

#include <string_view>

#include "base/check.h"
#include "c_api/last_error.h"
#include "pytorch/plug/garbage.h"
#include "pytorch/plug/lent_tensors.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

using TorchPoolId = std::pair<unsigned long long, unsigned long long>;

PoolId to_pool_id(const TorchPoolId& id) { return {id.first, id.second}; }

const char* required(const char* name, const char* text) {
  CACHALOT_REQUIRE(text != nullptr, "{} is NULL; it must point to a text", name);
  return text;
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

void* cachalot_malloc(std::size_t size, int device, Stream stream) {
  if (size == 0) return nullptr;
  try {
    return Process::instance().allocate(size, device, stream);
  } catch (const OutOfMemory& error) {
    Process::instance().throw_out_of_memory(error.what());
  }
}

void cachalot_free(void* ptr, std::size_t size, int device, Stream stream) {
  if (ptr != nullptr) process_allocator().deallocate(ptr, size, device, stream);
}

// Torch initializes CUDA once; making the allocator here and not at the first allocation shows a bad configuration where
// the user can see what caused it.
void cachalot_init(int) { process_allocator(); }

void cachalot_reset() { process_allocator().empty_cache(); }

void cachalot_set_memory_fraction_hook(double fraction, int device) {
  process_allocator().set_memory_fraction(fraction, device);
}

void* cachalot_base_alloc(void* ptr, std::size_t* size) {
  const CachingAllocator::Range segment = process_allocator().base_allocation(ptr);
  if (size != nullptr) *size = segment.bytes;
  return segment.base;
}

void cachalot_record_stream_hook(void* ptr, Stream stream) {
  if (!LentTensors::instance().record_stream(ptr, stream)) process_allocator().record_stream(ptr, stream);
}

// Called for graph captures only: the class behind the function-pointer plug has no MemPool.
void cachalot_begin_allocate_to_pool(int device, TorchPoolId pool, std::function<bool(Stream)> filter) {
  process_allocator().begin_allocate_to_pool(device, to_pool_id(pool), std::move(filter), RedirectFor::capture);
}

void cachalot_end_allocate_to_pool(int device, TorchPoolId pool) {
  process_allocator().end_allocate_to_pool(device, to_pool_id(pool));
}

void cachalot_release_pool(int device, TorchPoolId pool) { process_allocator().release_pool(device, to_pool_id(pool)); }

int cachalot_plug_give_options(const char* options) {
  return guarded([&] { Process::instance().amend(required("options", options)); });
}

int cachalot_plug_settings(const char* settings) {
  return guarded([&] { Process::instance().set_base(std::string_view(required("settings", settings))); });
}

int cachalot_plug_place(unsigned flags, unsigned* before) {
  return guarded([&] { *before = Process::instance().place(flags); });
}

int cachalot_plug_collect_garbage(int on) {
  return guarded([&] { set_collecting(on != 0); });
}

int cachalot_plug_takes_pages(int* answer) {
  return guarded([&] { *answer = Process::instance().takes_pages() ? 1 : 0; });
}

int cachalot_plug_set_plain(unsigned long long first, unsigned long long second) {
  return guarded([&] {
    const PoolId pool{first, second};
    int devices = 0;
    for (int device = 0; device < process_allocator().device_count(); ++device) {
      if (process_allocator().pool_use_count(device, pool) == 0) continue;
      process_allocator().set_plain(device, pool);
      ++devices;
    }
    CACHALOT_REQUIRE(devices != 0, "pool ({}, {}) is on no device: it must have been made, and not deleted", first,
                     second);
  });
}

int cachalot_plug_release_physical(const char* tag, unsigned long long first, unsigned long long second, int keep,
                                   const char* folder) {
  return guarded([&] {
    const SleepOptions options{static_cast<Keep>(keep), folder != nullptr ? folder : ""};
    if (tag != nullptr) return process_allocator().release_physical(tag, options);
    process_allocator().release_physical(PoolId{first, second}, options);
  });
}

int cachalot_plug_restore_pool_physical(unsigned long long first, unsigned long long second) {
  return guarded([&] { process_allocator().restore_physical(PoolId{first, second}); });
}

int cachalot_plug_record_history(int enabled, long max_entries) {
  return guarded([&] {
    CACHALOT_REQUIRE(max_entries >= 1 || enabled == 0, "history of {} entries: it must keep at least 1", max_entries);
    HistoryOptions history;
    history.enabled = enabled != 0;
    history.max_entries = history.enabled ? static_cast<std::size_t>(max_entries) : 1;
    process_allocator().record_history(history);
  });
}

int cachalot_plug_memory_fraction(int device, double* fraction) {
  return guarded([&] { *fraction = process_allocator().memory_fraction(device); });
}

int cachalot_plug_hide_launcher(const char* file) {
  return guarded([&] { hide_python_launcher(required("file", file)); });
}
