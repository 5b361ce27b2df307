#include "pytorch/plug/hooks.h"

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "cachalot/guard.h"
#include "pytorch/plug/guarded.h"
#include "pytorch/plug/lent_tensors.h"
#include "pytorch/plug/plug.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

using TorchPoolId = std::pair<unsigned long long, unsigned long long>;

PoolId to_pool_id(const TorchPoolId& id) { return {id.first, id.second}; }
const char* required_tag(const char* tag) {
  CACHALOT_REQUIRE(tag != nullptr, "tag is NULL; it must point to a name");
  return tag;
}

// The reports of the thread's last check_memory: json's text may have to be asked for twice.
thread_local std::vector<GuardReport> reports_of_last_check;

std::string json(std::string_view what, int device) {
  if (what == "guard_reports") return to_json(reports_of_last_check);
  if (what == "stats") return to_json(process_allocator().memory_stats(device));
  if (what == "fragmentation") return to_json(process_allocator().fragmentation(device));
  if (what == "regions") return to_json(process_allocator().tags());
  CACHALOT_REQUIRE(what == "snapshot", "'{}' is not one of stats, fragmentation, snapshot, regions and guard_reports",
                   what);
  return to_json(process_allocator().snapshot());
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

int cachalot_plug_configure(const char* options, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(options != nullptr, "options is NULL; it must point to a text, which may be empty");
    Process::instance().amend(options);
    return 0;
  });
}

int cachalot_plug_settings(const char* settings, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(settings != nullptr, "settings is NULL; it must point to a text, which may be empty");
    Process::instance().set_base(std::string_view(settings));
    return 0;
  });
}

int cachalot_plug_set_contiguous(int contiguous, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return Process::instance().set_contiguous(contiguous != 0) ? 1 : 0; });
}

int cachalot_plug_empty_cache(int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().empty_cache(device), 0; });
}

int cachalot_plug_reset_peak(int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().reset_peak_stats(device), 0; });
}

int cachalot_plug_reset_accumulated(int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().reset_accumulated_stats(device), 0; });
}

int cachalot_plug_begin_tagged(const char* tag, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().begin_tagged(required_tag(tag)), 0; });
}

int cachalot_plug_end_tagged(const char* tag, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().end_tagged(required_tag(tag)), 0; });
}

int cachalot_plug_release_physical(const char* tag, unsigned long long first, unsigned long long second, int save,
                                   char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    if (tag != nullptr) return process_allocator().release_physical(tag, save != 0), 0;
    return process_allocator().release_physical(PoolId{first, second}, save != 0), 0;
  });
}

int cachalot_plug_restore_physical(const char* tag, unsigned long long first, unsigned long long second, char* error,
                                   std::size_t capacity) {
  return guarded(error, capacity, [&] {
    if (tag != nullptr) return process_allocator().restore_physical(tag), 0;
    return process_allocator().restore_physical(PoolId{first, second}), 0;
  });
}

int cachalot_plug_record_history(int enabled, long max_entries, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(max_entries >= 1 || enabled == 0, "history of {} entries: it must keep at least 1", max_entries);
    HistoryOptions history;
    history.enabled = enabled != 0;
    history.max_entries = history.enabled ? static_cast<std::size_t>(max_entries) : 1;
    process_allocator().record_history(history);
    return 0;
  });
}

int cachalot_plug_hide_launcher(const char* file, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    CACHALOT_REQUIRE(file != nullptr, "file is NULL; it must point to a name");
    hide_python_launcher(file);
    return 0;
  });
}

int cachalot_plug_check_memory(char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] {
    reports_of_last_check = AllocatorGuard(process_allocator()).check();
    return static_cast<int>(reports_of_last_check.size());
  });
}

double cachalot_plug_memory_fraction(int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().memory_fraction(device); });
}

long cachalot_plug_json(const char* what, int device, char* text, long capacity) {
  return guarded_text(text, capacity, [&] {
    CACHALOT_REQUIRE(what != nullptr, "what is NULL; it must name what to tell");
    return json(what, device);
  });
}
