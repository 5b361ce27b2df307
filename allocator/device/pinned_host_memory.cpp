#include "device/pinned_host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/addresses.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

namespace {

void add_call(CallTimes& calls, std::int64_t us) {
  calls.min_us = calls.min_us == 0 ? us : std::min(calls.min_us, us);
  calls.max_us = std::max(calls.max_us, us);
  calls.total_us += us;
  ++calls.count;
}

}  // namespace

void PinTimer::pinned(std::size_t bytes, std::int64_t us) {
  const auto size = static_cast<std::size_t>(std::bit_width(bytes - 1));
  const Lock lock(mutex_);
  add_call(times_.pin, us);
  ++times_.pins_by_size[std::min(size, PinTimes::kSizes - 1)];
}

void PinTimer::unpinned(std::int64_t us) {
  const Lock lock(mutex_);
  add_call(times_.unpin, us);
}

PinTimes PinTimer::times() const {
  const Lock lock(mutex_);
  return times_;
}

void PinTimer::reset_accumulated() {
  const Lock lock(mutex_);
  times_.pins_by_size.fill(0);
  for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->count = calls->total_us = 0;
}

void PinTimer::reset_peak() {
  const Lock lock(mutex_);
  for (CallTimes* const calls : {&times_.pin, &times_.unpin}) calls->min_us = calls->max_us = 0;
}

namespace {

[[noreturn]] void refuse(const char* call) { fail(call, CudaCode::not_supported, "pinned host memory has none"); }

Stream as_given(Stream stream) { return stream == kLegacyStream ? nullptr : stream; }

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

}  // namespace

std::shared_ptr<Device> pinned_host_memory(std::shared_ptr<Device> gpu, std::shared_ptr<PinTimer> timer) {
  return std::make_shared<PinnedHostMemory>(std::move(gpu), std::move(timer));
}

CACHALOT_END
