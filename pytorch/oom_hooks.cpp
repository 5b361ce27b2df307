#include "pytorch/oom_hooks.h"

#include <atomic>

#include "pytorch/guarded.h"
#include "pytorch/process.h"
#include "pytorch/python_api.h"

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

int cachalot_plug_on_out_of_memory(CachalotOutOfMemoryCall call, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return call_of_process.store(call), 0; });
}

long cachalot_plug_segments_json(char* text, long capacity) {
  return guarded_text(text, capacity, [] { return to_json(process_allocator().snapshot({}, false)); });
}
