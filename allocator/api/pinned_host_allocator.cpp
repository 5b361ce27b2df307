#include "cachalot/pinned_host_allocator.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/locks.h"
#include "cachalot/device.h"
#include "device/addresses.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

// The legacy default stream, where nullptr stands for the host: cudaStreamLegacy.
inline const Stream kLegacyStream = reinterpret_cast<Stream>(1);

namespace {

void add_call(CallTimes& calls, std::int64_t us) {
  calls.min_us = calls.min_us == 0 ? us : std::min(calls.min_us, us);
  calls.max_us = std::max(calls.max_us, us);
  calls.total_us += us;
  ++calls.count;
}

}  // namespace

// A PinTimer adds up PinTimes of calls that pin host memory. Thread-safe; its lock is the innermost one.
class PinTimer {
 public:
  // Counts a call that pinned `bytes` > 0 bytes and took `us` microseconds.
  void pinned(std::size_t bytes, std::int64_t us) {
    const auto size = static_cast<std::size_t>(std::bit_width(bytes - 1));
    const Lock lock(mutex_);
    add_call(times_.pin, us);
    ++times_.pins_by_size[std::min(size, PinTimes::kSizes - 1)];
  }
  // Counts a call that gave pinned memory back.
  void unpinned(std::int64_t us) {
    const Lock lock(mutex_);
    add_call(times_.unpin, us);
  }

  PinTimes times() const {
    const Lock lock(mutex_);
    return times_;
  }
  // Counts and sums start again from 0.
  void reset_accumulated() {
    const Lock lock(mutex_);
    times_.pins_by_size.fill(0);
    for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->count = calls->total_us = 0;
  }
  // Minima and maxima start again.
  void reset_peak() {
    const Lock lock(mutex_);
    for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->min_us = calls->max_us = 0;
  }

 private:
  mutable SleepingMutex mutex_;
  PinTimes times_ CACHALOT_GUARDED_BY(mutex_);
};

namespace {

[[noreturn]] void refuse(const char* call) { fail(call, CudaCode::not_supported, "pinned host memory has none"); }

Stream as_given(Stream stream) { return stream == kLegacyStream ? nullptr : stream; }

// Pinned host memory as a Device: malloc pins, free unpins, and events are those of a GPU.
// Device 0 of an allocator. Its memory_info is the machine's. It has no virtual memory and shares nothing between processes:
// such calls throw CudaError (not supported). event_record throws InvalidArgument for a stream that captures. `timer` counts
// the calls of malloc and free.
class PinnedHostMemory final : public Device {
 public:
  PinnedHostMemory(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer)
      : gpu_(std::move(gpu)), timer_(std::move(timer)) {}

  int index() const override { return 0; }
  DeviceProperties properties() const override {
    DeviceProperties properties;
    properties.name = "pinned host memory";
    properties.total_bytes = pages_of(_SC_PHYS_PAGES);
    return properties;
  }
  MemoryInfo memory_info() override { return {pages_of(_SC_AVPHYS_PAGES), pages_of(_SC_PHYS_PAGES)}; }

  std::optional<Address> malloc(std::size_t bytes) override {
    const std::int64_t began = gpu_->clock_us();
    void* const memory = gpu_->host_malloc(bytes);
    if (memory == nullptr) return std::nullopt;
    timer_->pinned(bytes, gpu_->clock_us() - began);
    return as_address(memory);
  }
  void free(Address address) override {
    const std::int64_t began = gpu_->clock_us();
    gpu_->host_free(as_pointer(address));
    timer_->unpinned(gpu_->clock_us() - began);
  }
  void* host_malloc(std::size_t bytes) override { return gpu_->host_malloc(bytes); }
  void host_free(void* memory) override { gpu_->host_free(memory); }
  void copy_to_host(void* to, Address from, std::size_t bytes) override {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  }
  void copy_from_host(Address to, const void* from, std::size_t bytes) override {
    std::memcpy(as_pointer(to), from, bytes);
  }
  // In stream order, as the GPU writes it.
  void fill(Address address, unsigned char value, std::size_t bytes, Stream stream) override {
    gpu_->fill(address, value, bytes, as_given(stream));
  }

  // All memory is the host's, which a GPU copies as it copies its own.
  void copy(CopyKind, Address, Address, std::size_t, Stream) override { refuse("cuMemcpyAsync"); }
  bool has_stream(Stream) override { return true; }  // streams of all devices may use it
  std::uint64_t stream_id(Stream stream) override { return gpu_->stream_id(as_given(stream)); }
  Stream new_stream() override { return gpu_->new_stream(); }
  void stream_destroy(Stream stream) override { gpu_->stream_destroy(stream); }
  Event event_create() override { return gpu_->event_create(); }
  void event_destroy(Event event) override { gpu_->event_destroy(event); }
  void event_record(Event event, Stream stream) override {
    CACHALOT_REQUIRE(!gpu_->capture_status(as_given(stream)).capturing,
                     "a buffer cannot be freed while stream {}, which uses it, captures a graph",
                     static_cast<const void*>(as_given(stream)));
    gpu_->event_record(event, as_given(stream));
  }
  bool event_query(Event event) override { return gpu_->event_query(event); }
  void event_synchronize(Event event) override { gpu_->event_synchronize(event); }
  std::optional<std::uint64_t> completion_hint(Stream stream) override {
    return gpu_->completion_hint(as_given(stream));
  }
  void stream_wait(Stream stream, Event event) override { gpu_->stream_wait(as_given(stream), event); }
  CaptureStatus capture_status(Stream stream) override { return gpu_->capture_status(as_given(stream)); }
  void synchronize() override { gpu_->synchronize(); }
  std::int64_t clock_us() override { return gpu_->clock_us(); }

  std::optional<Address> reserve(std::size_t) override { refuse("cuMemAddressReserve"); }
  void unreserve(Address, std::size_t) override { refuse("cuMemAddressFree"); }
  std::optional<MemoryHandle> create(std::size_t) override { refuse("cuMemCreate"); }
  void release(MemoryHandle) override { refuse("cuMemRelease"); }
  void map(Address, std::size_t, MemoryHandle) override { refuse("cuMemMap"); }
  void unmap(Address, std::size_t) override { refuse("cuMemUnmap"); }
  void set_access(Address, std::size_t, const std::vector<int>&) override { refuse("cuMemSetAccess"); }
  ShareableHandle export_handle(MemoryHandle) override { refuse("cuMemExportToShareableHandle"); }
  MemoryHandle import_handle(const ShareableHandle&) override { refuse("cuMemImportFromShareableHandle"); }
  void enable_peer_access(int) override {}  // every device of the process may use it
  IpcHandle ipc_export(Address) override { refuse("cuIpcGetMemHandle"); }
  Address ipc_import(const IpcHandle&) override { refuse("cuIpcOpenMemHandle"); }
  void ipc_close(Address) override { refuse("cuIpcCloseMemHandle"); }

 private:
  static std::size_t pages_of(int count) {
    return static_cast<std::size_t>(sysconf(count)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }

  const std::shared_ptr<Device> gpu_;
  const std::shared_ptr<PinTimer> timer_;
};

constexpr Stream kHost = nullptr;  // the stream that buffers are handed out for

std::vector<std::shared_ptr<Device>> host_of(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer,
                                             const Options& options) {
  CACHALOT_REQUIRE(gpu != nullptr, "the device that pins host memory is null");
  const HeapKind heap = selected_heap(options);
  CACHALOT_REQUIRE(heap == HeapKind::segments, "heap is {}, but pinned host memory has the segment heap only",
                   to_string(heap));
  CACHALOT_REQUIRE(!has_guard(options) && !options.debug,
                   "{} is True, but pinned host memory has no guard: a free would wait for the GPU",
                   options.debug ? "debug" : "guard");
  return {std::make_shared<PinnedHostMemory>(std::move(gpu), std::move(timer))};
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

// std::pmr asks for a pointer that is not null for 0 bytes, too.
void* PinnedMemoryResource::do_allocate(std::size_t bytes, std::size_t alignment) {
  CACHALOT_REQUIRE(std::has_single_bit(alignment) && alignment <= kUsualAlignment,
                   "an alignment of {}: pinned memory is aligned to powers of two up to {}", alignment,
                   kUsualAlignment);
  CACHALOT_REQUIRE(!life_.expired(), "an allocation of {} bytes: the resource's PinnedHostAllocator was destroyed",
                   bytes);
  return host_->allocate(std::max<std::size_t>(bytes, 1));
}

void PinnedMemoryResource::do_deallocate(void* memory, std::size_t, std::size_t) {
  if (!life_.expired()) host_->cache().deallocate_when_possible(memory);
}

bool PinnedMemoryResource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  const auto* const resource = dynamic_cast<const PinnedMemoryResource*>(&other);
  return resource != nullptr && resource->host_ == host_;
}

CACHALOT_END
