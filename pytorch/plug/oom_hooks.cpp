// Failures for want of memory of the process's allocator, for ctypes: a function that each calls, and the memory that explains
// it. Codes and texts: hooks.h. Thread-safe.
#include <atomic>
#include <cstddef>

#include "c_api/last_error.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

// CachalotOutOfMemory is an OutOfMemoryReport (events.h), or what is known of a refusal by throw_on_cudamalloc_oom.
struct CachalotOutOfMemory {
  int device;
  int is_refusal;
  int has_pages;  // the heap is the page heap
  std::size_t requested_bytes;
  std::size_t segment_bytes;
  std::size_t allowed_bytes;
  std::size_t device_free_bytes;   // 0 of a refusal
  std::size_t device_total_bytes;  // 0 of a refusal
  cachalot::Stream stream;
  unsigned long long pool_first;
  unsigned long long pool_second;
};

// The function is called before the exception of each failure, on the thread that asked for memory, under no lock of the
// allocator, with the GIL: a thread that has released it takes it again. Threads that Python does not know call nothing, and
// none does once Python is shutting down. The exception that the thread raises in Python is kept. NULL: no function.
using CachalotOutOfMemoryCall = void (*)(const CachalotOutOfMemory*);

namespace cachalot {
namespace {

std::atomic<CachalotOutOfMemoryCall> call_of_process{nullptr};

void tell(const CachalotOutOfMemory& failure) {
  const CachalotOutOfMemoryCall call = call_of_process.load();
  const Python* const python = call == nullptr ? nullptr : Python::instance();
  if (python == nullptr) return;
  const Python::Permission permission(*python, /*may_take_gil=*/true);
  if (!permission.is_given()) return;
  const Python::RaisedException raised(*python);
  call(&failure);
}

int has_pages() { return Process::instance().has_pages() ? 1 : 0; }

CachalotOutOfMemory failure_of(const OutOfMemoryReport& report) {
  return {.device = report.device,
          .is_refusal = 0,
          .has_pages = has_pages(),
          .requested_bytes = report.requested_bytes,
          .segment_bytes = report.segment_bytes,
          .allowed_bytes = report.allowed_bytes,
          .device_free_bytes = report.device_free_bytes,
          .device_total_bytes = report.device_total_bytes,
          .stream = report.stream,
          .pool_first = report.pool.first,
          .pool_second = report.pool.second};
}

CachalotOutOfMemory failure_of(const RefusalReport& report) {
  CachalotOutOfMemory failure{};
  failure.device = report.device;
  failure.is_refusal = 1;
  failure.has_pages = has_pages();
  failure.requested_bytes = report.requested_bytes;
  failure.segment_bytes = report.segment_bytes;
  failure.allowed_bytes = report.total_bytes;
  return failure;
}

}  // namespace

void tell_of_out_of_memory(CachingAllocator& allocator) {
  allocator.add_out_of_memory_observer([](const OutOfMemoryReport& report) { tell(failure_of(report)); });
  allocator.add_refusal_observer([](const RefusalReport& report) { tell(failure_of(report)); });
}

}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

CACHALOT_EXPORT void cachalot_plug_on_out_of_memory(CachalotOutOfMemoryCall call) { call_of_process.store(call); }

// Returns cachalot_snapshot_json without traces: its size does not depend on how long history was recorded.
CACHALOT_EXPORT char* cachalot_plug_segments_json() {
  return text_or_null([] { return to_json(process_allocator().snapshot({}, false)); });
}
}
