// TorchAllocator is cachalot as torch's CUDA allocator: it has the virtual functions of CUDAAllocator that are the same in
// torch 2.10 to 2.15. The others are in since.h; torch_<version>.cpp, the file that is compiled, chooses among them.
//
// Contracts that torch's callers rely on, beside c10/cuda/CUDACachingAllocator.h:
//   - The deleter of a tensor is a plain function, always the same one. So the allocator is a global object; it is leaked,
//     because tensors die after static objects.
//   - The context of a DataPtr is its data pointer.
//   - Observers and context recorders may take the GIL, and run without a lock.
//   - Trace trackers run under the device's lock and must not take the GIL.
// Thread-safe, like torch's own.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "adapter/annotations.h"
#include "adapter/conversions.h"
#include "adapter/ipc.h"
#include "plug.h"

namespace cachalot::torch_adapter {

// The pool that this thread began last.
inline thread_local c10::MempoolId_t newest_pool{0, 0};

// Reports to torch's memory profiler.
class Profiler {
 public:
  explicit Profiler(Plug& plug) : plug_(plug) {}

  void report_allocation(void* ptr, c10::DeviceIndex device) const {
    if (plug_.device_of(ptr) < 0) return;  // allocated with caching off: torch's own does not report it, either
    report(ptr, device, static_cast<std::int64_t>(plug_.allocation(ptr).allocated_bytes));
  }
  void report_out_of_memory(std::size_t bytes, c10::DeviceIndex device) const {
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), plug_.memory_allocated(device),
                                     plug_.memory_reserved(device), c10::Device(c10::kCUDA, device));
  }
  // Frees the memory and reports it.
  void free(void* ptr) const {
    const int device = plug_.device_of(ptr);
    const std::size_t bytes = device < 0 ? 0 : plug_.allocation(ptr).allocated_bytes;
    as_torch([&] { plug_.deallocate(ptr); });
    if (device >= 0) report(ptr, static_cast<c10::DeviceIndex>(device), -static_cast<std::int64_t>(bytes));
  }

 private:
  void report(void* ptr, c10::DeviceIndex device, std::int64_t change) const {
    c10::reportMemoryUsageToProfiler(ptr, change, plug_.memory_allocated(device), plug_.memory_reserved(device),
                                     c10::Device(c10::kCUDA, device));
  }

  Plug& plug_;
};

// TorchSegments supplies the segments of a private pool from another torch allocator (MemPool(allocator)).
class TorchSegments final : public SegmentProvider {
 public:
  explicit TorchSegments(std::shared_ptr<cuda_caching::CUDAAllocator> allocator) : allocator_(std::move(allocator)) {}

  // Sets the device, because raw_alloc_with_stream allocates on the current one. A provider that throws
  // torch.OutOfMemoryError has no memory, either.
  std::optional<Address> allocate_segment(std::size_t bytes, int device, Stream stream) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    try {
      void* const segment = allocator_->raw_alloc_with_stream(bytes, stream);
      if (segment == nullptr) return std::nullopt;
      return reinterpret_cast<Address>(segment);
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
  }
  void free_segment(Address address, std::size_t, int device, Stream) override {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    allocator_->raw_delete(reinterpret_cast<void*>(address));
  }

 private:
  std::shared_ptr<cuda_caching::CUDAAllocator> allocator_;
};

// Returns whether a filter of beginAllocateToPool is that of a graph's capture. torch does not give the reason of a
// redirection, but the filter of a capture is a lambda of CUDAGraph::capture_begin.
inline bool is_graph_capture(const std::function<bool(cudaStream_t)>& filter) {
  return std::string_view(filter.target_type().name()).find("CUDAGraph") != std::string_view::npos;
}

// The state of a pool, which torch keeps.
struct Checkpoint final : cuda_caching::AllocatorState {
  explicit Checkpoint(PoolCheckpoint taken) : pool(std::move(taken)) {}
  PoolCheckpoint pool;
};

using c10::DeviceIndex;
using c10::MempoolId_t;

// For torch's emptyCache, which names no device.
inline constexpr int kAllDevices = -1;

class TorchAllocator : public cuda_caching::CUDAAllocator {
 public:
  // The deleters, which are plain functions, find the allocator here.
  static TorchAllocator* the_one;
  // `plug` lives until the process ends.
  explicit TorchAllocator(Plug& plug) : plug_(plug), profiler_(plug), imported_(plug) {}

  // --- Allocator ---

  c10::DataPtr allocate(std::size_t bytes) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* const ptr = allocate_on(device, bytes, c10::cuda::getCurrentCUDAStream(device));
    return {ptr, ptr, raw_deleter(), c10::Device(c10::kCUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return isEnabled() ? &free_tensor : &free_uncached_tensor; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(dest, src, count, cudaMemcpyDeviceToDevice));
  }

  // --- DeviceAllocator ---

  bool initialized() override { return initialized_.load(std::memory_order_acquire); }

  void emptyCache(MempoolId_t pool) override {
    as_torch([&] { plug_.empty_cache(kAllDevices, to_pool_id(pool)); });
  }

  using cuda_caching::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override {
    if (!ptr.get()) return;
    // Memory of another process, or allocated with caching off, is not reused by cachalot; that of a tensor pool is.
    as_torch([&] {
      if (ptr.get_deleter() == &free_tensor) return plug_.record_stream(ptr.get(), stream);
      plug_.record_pooled(ptr.get(), stream);
    });
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats = as_torch([&] { return to_torch(plug_.memory_stats(device)); });
    add_newer(as_torch([&] { return plug_.added_stats(device); }), stats);
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    as_torch([&] { plug_.reset_accumulated_stats(device); });
  }
  void resetPeakStats(DeviceIndex device) override {
    as_torch([&] { plug_.reset_peak_stats(device); });
  }

  // --- CUDAAllocator ---

  std::string name() override { return "cachalot"; }

  // torch calls this when it initializes CUDA, before the first allocation.
  void init(int) override {
    if (initialized()) return;
    as_torch([&] { plug_.start(); });
    plug_.add_free_memory_callback(&run_torch_callbacks);
    initialized_.store(true, std::memory_order_release);
  }

  void* raw_alloc(std::size_t bytes) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return allocate_on(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return allocate_on(device, bytes, stream);
  }
  void raw_delete(void* ptr) override { free(ptr); }

  double getMemoryFraction(DeviceIndex device) override {
    return as_torch([&] { return plug_.memory_fraction(device); });
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    as_torch([&] { plug_.set_memory_fraction(fraction, device); });
  }
  void enable(bool value) override { plug_.set_caching_enabled(value); }
  bool isEnabled() const override { return plug_.caching_enabled(); }

  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    *largest = std::max(*largest, as_torch([&] { return plug_.largest_available(device, *largest == 0); }));
  }

  void* getBaseAllocation(void* ptr, std::size_t* size) override {
    const Plug::Allocation allocation = as_torch([&] { return plug_.allocation(ptr); });
    if (size != nullptr) *size = allocation.segment_bytes;
    return allocation.segment;
  }

  std::vector<cuda_caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return expandable_sizes(as_torch([&] { return plug_.snapshot({}, false); }), device);
  }

  // --- private pools ---

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    newest_pool = pool;
    const RedirectFor reason = is_graph_capture(filter) ? RedirectFor::capture : RedirectFor::thread;
    as_torch([&] { plug_.begin_allocate_to_pool(device, to_pool_id(pool), std::move(filter), reason); });
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    as_torch([&] { plug_.end_allocate_to_pool(device, to_pool_id(pool)); });
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    as_torch([&] { plug_.release_pool(device, to_pool_id(pool)); });
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return as_torch([&] { return plug_.pool_use_count(device, to_pool_id(pool)); });
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    const std::vector<void*> live(expected.begin(), expected.end());
    return as_torch([&] { return plug_.pool_has_exactly(device, to_pool_id(pool), live); });
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    as_torch([&] { plug_.set_no_split(device, to_pool_id(pool)); });
  }

  std::shared_ptr<cuda_caching::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return std::make_shared<Checkpoint>(as_torch([&] { return plug_.checkpoint_pool(device, to_pool_id(pool)); }));
  }
  cuda_caching::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                       std::shared_ptr<cuda_caching::AllocatorState> state) override {
    const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    TORCH_CHECK(checkpoint, "this checkpoint is of another allocator, not of cachalot");
    const RestoreResult result = as_torch([&] { return plug_.restore_pool(device, checkpoint->pool); });
    cuda_caching::CheckpointDelta delta;
    delta.ptrs_freed = result.freed;
    for (void* ptr : result.created) {
      delta.dataptrs_allocd.emplace_back(ptr, ptr, &free_tensor, c10::Device(c10::kCUDA, device));
    }
    return delta;
  }

  // --- sharing and copying ---

  cuda_caching::ShareableHandle shareIpcHandle(void* ptr) override {
    const SharedMemory memory = as_torch([&] { return plug_.share(ptr); });
    const bool has_files =
        !memory.handles.empty() && memory.handles.front().shared.kind == ShareableHandle::Kind::descriptor;
    const std::uint64_t socket = has_files ? plug_.descriptor_socket() : 0;
    return {static_cast<std::ptrdiff_t>(memory.offset),
            as_torch([&] { return to_bytes(memory, socket, kIpcVersion); })};
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return imported_.open(handle, device);
  }

  // Copies the content of a storage to plain memory for the same stream and pool, and swaps its pointer; the memory before is freed.
  // Returns the bytes copied, or 0 if the storage stays: if it is plain, was sent to other processes or came from one, or borrows
  // its memory. No other thread may use the storage meanwhile. Its addresses that were taken before are invalid afterwards.
  // Throws torch's errors if memory runs out, is asleep, or a graph is captured; then the storage is as before.
  // Blocks: until the work of the device is done.
  std::size_t make_plain(c10::StorageImpl& storage) {
    if (storage.device_type() != c10::kCUDA || storage.nbytes() == 0) return 0;
    void* const before = storage.mutable_data();  // has copied a storage that is lazily cloned
    const c10::DataPtr& owner = storage.data_ptr();
    if (before == nullptr || owner.get_deleter() != &free_tensor || owner.get_context() != before) return 0;
    const c10::Device device = storage.device();
    const c10::cuda::CUDAGuard guard(device);
    void* const plain = as_torch([&] { return plug_.allocate_plain_beside(before); });
    if (plain == nullptr) return 0;
    c10::DataPtr moved(plain, plain, raw_deleter(), device);
    tell_of_allocation(plain, device.index());
    move_content(storage, std::move(moved));
    return storage.nbytes();
  }

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    as_torch([&] { plug_.enable_peer_access(device, peer); });
  }

  // cudaMemcpyAsync copies memory of cudaMalloc between devices with or without peer access. For virtual memory that is not
  // mapped on the other device, the call has to name both devices.
  cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, std::size_t count,
                          cudaStream_t stream, bool p2p_enabled) override {
    if (dst_device != src_device && !p2p_enabled && plug_.has_virtual_memory())
      return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, count, stream);
    return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
  }

  // --- history ---

  bool isHistoryEnabled() override { return plug_.history_enabled(); }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override {
    annotations_.record(values);
  }
  void pushCompileContext(std::string& context) override {
    Annotations::of_this_thread().push_compile_context(context);
  }
  void popCompileContext() override { Annotations::of_this_thread().pop_compile_context(); }
  void setUserMetadata(const std::string& metadata) override {
    Annotations::of_this_thread().set_user_metadata(metadata);
  }
  std::string getUserMetadata() override { return Annotations::of_this_thread().user_metadata(); }
  void attachOutOfMemoryObserver(cuda_caching::OutOfMemoryObserver observer) override {
    plug_.add_out_of_memory_observer([observer = std::move(observer)](const OutOfMemoryReport& report) {
      observer(report.device, report.segment_bytes, report.allowed_bytes, report.device_free_bytes);
    });
  }
  void attachAllocatorTraceTracker(cuda_caching::AllocatorTraceTracker tracker) override {
    plug_.add_change_tracker([tracker = std::move(tracker)](const Change& change) {
      if (torch_action(change.action)) tracker(to_torch(change));
    });
  }

 protected:
  // Throws cachalot's errors, not torch's.
  virtual void* allocate_memory(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    return plug_.allocate(bytes, device, stream);
  }

  // Reports an allocation to listeners.
  void tell_of_allocation(void* ptr, DeviceIndex device) {
    if (c10::memoryProfilingEnabled()) [[unlikely]]
      profiler_.report_allocation(ptr, device);
    if (const auto* trace = c10::impl::GPUTrace::get_trace(); trace != nullptr) [[unlikely]] {
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
  }

  void free(void* ptr) {
    if (ptr == nullptr) return;
    if (const auto* trace = c10::impl::GPUTrace::get_trace(); trace != nullptr) [[unlikely]] {
      (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
    if (c10::memoryProfilingEnabled()) [[unlikely]]
      return profiler_.free(ptr);
    as_torch([&] { plug_.deallocate(ptr); });
  }

  // --- common parts of functions whose signature differs between torch's versions ---

  cuda_caching::SnapshotInfo take_snapshot(MempoolId_t pool, bool include_traces) {
    const Snapshot taken = as_torch([&] { return plug_.snapshot(to_pool_id(pool), include_traces); });
    cuda_caching::SnapshotInfo info;
    info.segments.reserve(taken.segments.size());
    for (const SegmentSnapshot& segment : taken.segments) info.segments.push_back(to_torch(segment));
    for (const std::vector<Change>& trace : taken.device_traces) info.device_traces.push_back(to_torch(trace));
    if (include_traces) info.external_annotations = annotations_.entries();
    info.config_metadata = to_torch(taken.options);
    return info;
  }

  // `allocator` supplies the pool's segments, or cachalot if it is null.
  void retain_pool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<cuda_caching::CUDAAllocator> allocator) {
    std::shared_ptr<SegmentProvider> provider;
    if (allocator) provider = std::make_shared<TorchSegments>(std::move(allocator));
    as_torch([&] { plug_.create_or_retain_pool(device, to_pool_id(pool), std::move(provider)); });
  }

  void use_pool_on_oom(DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
    as_torch([&] { plug_.set_use_on_oom(device, to_pool_id(pool), use_on_oom); });
  }

  void record(bool enabled, cuda_caching::CreateContextFn recorder, std::size_t max_entries,
              cuda_caching::RecordContext when, bool clear, const std::vector<std::string>& skip_actions) {
    max_entries = std::max<std::size_t>(max_entries, 1);  // as in torch
    as_torch([&] {
      HistoryOptions history;
      history.enabled = enabled;
      history.max_entries = max_entries;
      history.contexts = to_contexts(when);
      if (recorder != nullptr) history.recorder = [recorder] { return Context(recorder()); };
      history.annotate = [] { return Annotations::of_this_thread().current(); };
      history.clear = clear;
      // torch has no actions for these three, so they must not take up its max_entries.
      history.skip = {Change::Action::synchronize, Change::Action::retry, Change::Action::empty_cache};
      for (const std::string& word : skip_actions) history.skip.push_back(to_action(word));
      plug_.record_history(history);
    });
    annotations_.configure(enabled, max_entries, clear);
  }

  Plug& plug_;

 private:
  // --- malloc and free ---

  void* allocate_on(DeviceIndex device, std::size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return nullptr;
    void* const ptr = as_torch([&] {
      try {
        return allocate_memory(device, bytes, stream);
      } catch (const OutOfMemory&) {
        profiler_.report_out_of_memory(bytes, device);
        throw;
      }
    });
    tell_of_allocation(ptr, device);
    return ptr;
  }

  static void free_tensor(void* ptr) { the_one->free(ptr); }
  // Frees memory allocated while caching was off. It is a function of its own, by which recordStream recognizes the memory.
  static void free_uncached_tensor(void* ptr) { the_one->free(ptr); }

  // Calls the functions that torch has registered to free memory before it runs out (CUDA IPC has one).
  static bool run_torch_callbacks() {
    bool freed = false;
    for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    }
    return freed;
  }

  std::atomic<bool> initialized_{false};
  const Profiler profiler_;
  ExternalAnnotations annotations_;
  ImportedSegments imported_;
};

inline TorchAllocator* TorchAllocator::the_one = nullptr;

}  // namespace cachalot::torch_adapter
