/// @file
/// Slow paths, segments and allocations for tools that read NVTX. Needs NVTX's headers (3.2 or
/// newer), which the CUDA toolkit has.
#pragma once

#include "cachalot/require_cpp17.h"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// NvtxOptions select what a tool is told.
struct NvtxOptions {
  bool ranges = true;             ///< slow paths as ranges, and out-of-memory errors as marks
  bool memory = true;             ///< segments and allocations (nvtxMem)
  const char* name = "cachalot";  ///< of the domain
};

/// An Nvtx tells a tool of an allocator's work: Nsight Systems shows slow paths as ranges in a
/// domain of their own, and compute-sanitizer and Nsight see allocations instead of segments.
///
///     cachalot::CachingAllocator allocator(cachalot::cuda_devices());
///     cachalot::Nvtx nvtx(allocator);
///     float* weights = static_cast<float*>(allocator.allocate(bytes, 0, stream));
///     nvtx.name(weights, "weights");
///
/// Ranges: "grow" with the bytes of the request as payload, "empty_cache", "release_physical",
/// "restore_physical" and "evict". Marks: "out of memory".
/// Memory: each segment is a heap of a sub-allocator and each allocation a region of it, with the
/// bytes that were requested. On the page heap, an allocation is a region of the process. A region
/// ends when its memory may be handed out again.
///
/// Cost: without a tool, an Nvtx does nothing, and neither do allocations. With one, `memory` sends
/// each allocation past the thread caches until the allocator is destroyed.
///
/// Requires: it is made before the first allocation, and destroyed before the allocator, while no
/// call of the allocator is in progress.
/// Thread safety: every method may be called from any thread at any time.
class Nvtx {
 public:
  /// Makes a domain and begins to tell a tool, if there is one.
  explicit Nvtx(CachingAllocator& allocator, const NvtxOptions& options = {});
  /// Ends what a tool was told of, and destroys the domain.
  ~Nvtx();
  Nvtx(const Nvtx&) = delete;
  Nvtx& operator=(const Nvtx&) = delete;

  /// Gives the live allocation `ptr` a name. Does nothing if no tool knows the allocation.
  void name(const void* ptr, const char* text);
  /// Returns true if there is a tool.
  bool has_tool() const;

 private:
  // A Told is what a tool was told. Trackers, which cannot be removed, keep it alive.
  class Told;

  CachingAllocator& allocator_;
  std::shared_ptr<Told> told_;
};

/// A Told is what an Nvtx told the tool, for the Nvtx alone.
class Nvtx::Told final : public SlowWorkObserver {
 public:
  /// Makes the domain.
  explicit Told(const char* name) : domain_(nvtxDomainCreateA(name)) {}
  ~Told() override { end(); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  /// Returns the domain; null without a tool.
  nvtxDomainHandle_t domain() const { return domain_; }

  /// Begins a range.
  void on_begin(const SlowWork& work) noexcept override {
    const nvtxEventAttributes_t event = event_of(to_string(work.kind), work.bytes);
    nvtxDomainRangePushEx(domain_, &event);
  }
  /// Ends a range.
  void on_end(const SlowWork& /*work*/) noexcept override { nvtxDomainRangePop(domain_); }
  /// Marks an out-of-memory error.
  void mark_out_of_memory(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    const nvtxEventAttributes_t event = event_of("out of memory", bytes);
    nvtxDomainMarkEx(domain_, &event);
  }

  /// Tells of a change of the allocator's memory.
  void tell(const Change& change) {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    switch (change.action) {
      case Change::Action::segment_alloc:
        return begin_heap(change);
      case Change::Action::segment_free:
        return end_heap(change.address);
      case Change::Action::alloc:
        return begin_region(change);
      case Change::Action::free_completed:
        return end_region(change.address);
      default:
        return;
    }
  }
  /// Names a region.
  void name(const void* ptr, const char* text) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(reinterpret_cast<Address>(ptr));
    if (has_ended_ || region == regions_.end()) return;
    nvtxMemRegionNameDesc_t description{};
    description.regionRefType = NVTX_MEM_REGION_REF_TYPE_HANDLE;
    description.nameType = NVTX_MESSAGE_TYPE_ASCII;
    description.region.handle = region->second;
    description.name.ascii = text;
    nvtxMemRegionsNameBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof(batch);
    batch.regionCount = 1;
    batch.regionElementSize = sizeof(description);
    batch.regionElements = &description;
    nvtxMemRegionsName(domain_, &batch);
  }
  /// Ends all regions and heaps, and the domain.
  void end() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_ended_, true)) return;
    while (!regions_.empty()) end_region(regions_.begin()->first);
    while (!heaps_.empty()) end_heap(heaps_.begin()->first);
    nvtxDomainDestroy(domain_);
  }

 private:
  struct Heap {
    nvtxMemHeapHandle_t handle;
    std::size_t bytes;
  };

  static nvtxEventAttributes_t event_of(const char* message, std::size_t bytes) {
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = message;
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event.payload.ullValue = bytes;
    return event;
  }

  static nvtxMemVirtualRangeDesc_t range_of(const Change& change) {
    nvtxMemVirtualRangeDesc_t range{};
    range.size = change.bytes;
    range.ptr = reinterpret_cast<const void*>(change.address);
    return range;
  }

  void begin_heap(const Change& change) {
    const nvtxMemVirtualRangeDesc_t range = range_of(change);
    const std::string text = "segment of device " + std::to_string(change.device);
    nvtxMemHeapDesc_t description{};
    description.extCompatID = NVTX_EXT_COMPATID_MEM;
    description.structSize = sizeof(description);
    description.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
    description.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    description.typeSpecificDescSize = sizeof(range);
    description.typeSpecificDesc = &range;
    description.messageType = NVTX_MESSAGE_TYPE_ASCII;
    description.message.ascii = text.c_str();
    heaps_[change.address] = {nvtxMemHeapRegister(domain_, &description), change.bytes};
  }

  void end_heap(Address address) {
    const auto heap = heaps_.find(address);
    if (heap == heaps_.end()) return;
    nvtxMemHeapUnregister(domain_, heap->second.handle);
    heaps_.erase(heap);
  }

  nvtxMemHeapHandle_t heap_of(Address address) const {
    auto heap = heaps_.upper_bound(address);
    if (heap == heaps_.begin()) return NVTX_MEM_HEAP_HANDLE_PROCESS_WIDE;
    --heap;
    const bool holds = address - heap->first < heap->second.bytes;
    return holds ? heap->second.handle : NVTX_MEM_HEAP_HANDLE_PROCESS_WIDE;
  }

  void begin_region(const Change& change) {
    const nvtxMemVirtualRangeDesc_t range = range_of(change);
    nvtxMemRegionHandle_t& handle = regions_[change.address];
    nvtxMemRegionsRegisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof(batch);
    batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
    batch.heap = heap_of(change.address);
    batch.regionCount = 1;
    batch.regionDescElementSize = sizeof(range);
    batch.regionDescElements = &range;
    batch.regionHandleElementsOut = &handle;
    nvtxMemRegionsRegister(domain_, &batch);
  }

  void end_region(Address address) {
    const auto region = regions_.find(address);
    if (region == regions_.end()) return;
    nvtxMemRegionRef_t reference{};
    reference.handle = region->second;
    nvtxMemRegionsUnregisterBatch_t batch{};
    batch.extCompatID = NVTX_EXT_COMPATID_MEM;
    batch.structSize = sizeof(batch);
    batch.refType = NVTX_MEM_REGION_REF_TYPE_HANDLE;
    batch.refCount = 1;
    batch.refElementSize = sizeof(reference);
    batch.refElements = &reference;
    nvtxMemRegionsUnregister(domain_, &batch);
    regions_.erase(region);
  }

  const nvtxDomainHandle_t domain_;
  std::mutex mutex_;  // of what follows
  bool has_ended_ = false;
  std::map<Address, Heap> heaps_;
  std::map<Address, nvtxMemRegionHandle_t> regions_;
};

inline Nvtx::Nvtx(CachingAllocator& allocator, const NvtxOptions& options)
    : allocator_(allocator), told_(std::make_shared<Told>(options.name)) {
  if (!has_tool()) return;
  if (options.memory) {
    allocator.add_change_tracker([told = told_](const Change& change) { told->tell(change); });
  }
  if (options.ranges) {
    allocator.set_slow_work_observer(told_);
    allocator.add_out_of_memory_observer([told = told_](const OutOfMemoryReport& report) {
      told->mark_out_of_memory(report.segment_bytes);
    });
  }
}

inline bool Nvtx::has_tool() const { return told_->domain() != nullptr; }

inline void Nvtx::name(const void* ptr, const char* text) { told_->name(ptr, text); }

inline Nvtx::~Nvtx() {
  if (has_tool()) allocator_.set_slow_work_observer(nullptr);
  told_->end();
}

CACHALOT_END_API
