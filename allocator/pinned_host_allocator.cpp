#include "cachalot/pinned_host_allocator.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/pinned_host_memory.h"

CACHALOT_BEGIN

namespace {

constexpr Stream kHost = nullptr;  // what buffers are handed out for

std::vector<std::shared_ptr<Device>> host_of(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer,
                                             const Options& options) {
  CACHALOT_REQUIRE(gpu != nullptr, "the device that pins host memory is null");
  const HeapKind heap = selected_heap(options);
  CACHALOT_REQUIRE(heap == HeapKind::segments, "heap is {}, but pinned host memory has the segment heap only",
                   to_string(heap));
  CACHALOT_REQUIRE(!has_guard(options) && !options.debug,
                   "{} is True, but pinned host memory has no guard: a free would wait for the GPU",
                   options.debug ? "debug" : "guard");
  return {pinned_host_memory(std::move(gpu), std::move(timer))};
}

// The fraction of `total` that the allocator, which rounds down, makes `bytes` of.
double fraction_of(std::size_t bytes, std::size_t total) {
  if (bytes >= total) return 1;
  const double fraction = static_cast<double>(bytes) / static_cast<double>(total);
  const bool is_short = std::floor(fraction * static_cast<double>(total)) < static_cast<double>(bytes);
  return is_short ? std::nextafter(fraction, 1.0) : fraction;
}

}  // namespace

PinnedHostAllocator::PinnedHostAllocator(std::shared_ptr<Device> device, const Options& options)
    : timer_(std::make_shared<PinTimer>()),
      cache_(std::make_unique<CachingAllocator>(host_of(std::move(device), timer_, options), options)) {
  if (options.pinned_limit != 0) set_limit(options.pinned_limit);
}

PinnedHostAllocator::~PinnedHostAllocator() = default;

// The allocator's own message speaks of a GPU.
void* PinnedHostAllocator::allocate(std::size_t bytes) try {
  return cache_->allocate(bytes, 0, kHost);
} catch (const OutOfMemory&) {
  const std::size_t most = limit();
  const std::string within = most == Options::kUnlimited ? "" : formatted(" of a limit of {}", format_bytes(most));
  throw OutOfMemory(
      formatted("out of pinned host memory: tried to allocate {}; {} is allocated, {} is reserved{}",
                format_bytes(bytes), format_bytes(memory_allocated()), format_bytes(memory_reserved()), within),
      0, bytes);
}

void PinnedHostAllocator::set_limit(std::size_t bytes) {
  CACHALOT_REQUIRE(bytes >= kMinLimit, "a limit of {} bytes of pinned memory: it must be at least 2 MiB, one segment",
                   bytes);
  cache_->set_memory_fraction(fraction_of(bytes, cache_->device()->properties().total_bytes));
  limit_.store(bytes);
}

PinTimes PinnedHostAllocator::pin_times() const { return timer_->times(); }

void PinnedHostAllocator::reset_peak_stats() {
  cache_->reset_peak_stats();
  timer_->reset_peak();
}

void PinnedHostAllocator::reset_accumulated_stats() {
  cache_->reset_accumulated_stats();
  timer_->reset_accumulated();
}

void PinnedHostAllocator::record_stream(void* buffer, Stream stream) {
  cache_->record_stream(buffer, stream == nullptr ? kLegacyStream : stream);
}

void PinnedHostAllocator::deallocate(void* buffer) { cache_->deallocate(buffer); }

CACHALOT_END
