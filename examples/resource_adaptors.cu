// A part of a program with a budget: a limit, statistics, a log, and a callback that gives up a cache when the budget is used up.
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // for CUDA 13.0; newer ones do without
#include <cstdio>
#include <memory>
#include <sstream>
#include <vector>

#include "cachalot/adaptors/failure_callback.h"
#include "cachalot/adaptors/limit.h"
#include "cachalot/adaptors/logging.h"
#include "cachalot/adaptors/statistics.h"
#include "cachalot/mr.h"

int main() {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  const auto allocator = std::make_shared<cachalot::CachingAllocator>(cachalot::cuda_devices());
  if (allocator->device_count() == 0) return std::puts("no GPU here"), 0;

  // From the device up: each is a resource over the one before.
  std::ostringstream log;
  const cachalot::MemoryResource memory(allocator);
  const cachalot::LoggingAdaptor logged(memory, log);
  const cachalot::LimitAdaptor budget(logged, 100 * kMiB);
  const cachalot::StatisticsAdaptor counted(budget);

  const cachalot::ResourceRequest block{10 * kMiB, 256, nullptr, false};
  std::vector<void*> cache;
  for (int i = 0; i < 9; ++i) cache.push_back(cachalot::allocate_from(counted, block));
  const cachalot::FailureCallbackAdaptor resource(counted, [&](std::size_t bytes) {
    if (cache.empty()) return false;  // the error goes to the caller
    std::printf("%zu MiB do not fit: a cached block goes\n", bytes / kMiB);
    cachalot::deallocate_to(counted, cache.back(), block);
    cache.pop_back();
    return true;
  });

  counted.push_counters();  // a scope of its own
  const cachalot::ResourceRequest large{30 * kMiB, 256, nullptr, false};
  void* const ptr = cachalot::allocate_from(resource, large);
  cachalot::deallocate_to(resource, ptr, large);
  const cachalot::ResourceCounters scope = counted.pop_counters();
  for (void* each : cache) cachalot::deallocate_to(counted, each, block);

  std::printf("in the scope: %lld MiB allocated, peak of all %lld MiB, %zu blocks are cached\n",
              static_cast<long long>(scope.bytes.total) >> 20,
              static_cast<long long>(counted.bytes_counter().peak) >> 20, cache.size());
  std::printf("the log begins: %s\n", log.str().substr(0, log.str().find('\n')).c_str());
  return scope.allocations.total == 1 && cache.size() == 7 && budget.allocated_bytes() == 0 ? 0 : 1;
}
