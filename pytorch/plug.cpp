#include "pytorch/plug.h"

#include <utility>

#include "base/own_code.h"
#include "pytorch/lent_tensors.h"
#include "pytorch/process.h"

namespace cachalot {

namespace {

class ProcessPlug final : public Plug {
 public:
  explicit ProcessPlug(Process& process) : process_(process) {}

  void configure(const Options& torch_options) override { process_.set_base(torch_options); }
  void start() override { allocator(); }

  void* allocate(std::size_t bytes, int device, Stream stream) override {
    return process_.allocate(bytes, device, stream);
  }
  void deallocate(void* ptr) override { allocator().deallocate(ptr); }
  void record_stream(void* ptr, Stream stream) override { allocator().record_stream(ptr, stream); }
  void record_pooled(void* ptr, Stream stream) override { LentTensors::instance().record_stream(ptr, stream); }
  // In a forked child torch's MemPool must be able to end: its destructor takes the pool out of use, asks whether it is
  // its last user, and empties it.
  void empty_cache(int device, PoolId pool) override {
    if (pool.is_default() || !allocator().is_inherited()) allocator().empty_cache(device, pool);
  }

  std::size_t memory_allocated(int device) const override { return allocator().memory_allocated(device); }
  std::size_t memory_reserved(int device) const override { return allocator().memory_reserved(device); }
  DeviceStats memory_stats(int device) const override { return allocator().memory_stats(device); }
  Snapshot snapshot(PoolId pool, bool include_traces) override { return allocator().snapshot(pool, include_traces); }
  void reset_peak_stats(int device) override { allocator().reset_peak_stats(device); }
  void reset_accumulated_stats(int device) override { allocator().reset_accumulated_stats(device); }
  std::size_t largest_available(int device, bool starting_from_free_memory) override {
    return allocator().largest_available(device, starting_from_free_memory);
  }

  Allocation allocation(void* ptr) const override {
    const CachingAllocator::Range segment = allocator().base_allocation(ptr);
    return {segment.base, segment.bytes, allocator().allocated_size(ptr)};
  }
  int device_of(const void* ptr) const override { return allocator().device_of(ptr); }
  bool has_virtual_memory() const override { return process_.has_pages(); }

  SharedMemory share(const void* ptr) override { return allocator().share(ptr); }
  void* open_shared(const SharedMemory& memory, int device) override { return allocator().open_shared(memory, device); }
  void close_shared(void* base) override { allocator().close_shared(base); }
  void enable_peer_access(int device, int peer) override { allocator().enable_peer_access(device, peer); }

  void set_memory_fraction(double fraction, int device) override { allocator().set_memory_fraction(fraction, device); }
  double memory_fraction(int device) const override { return allocator().memory_fraction(device); }
  void set_caching_enabled(bool enabled) override { process_.set_caching_enabled(enabled); }
  bool caching_enabled() const override { return allocator().caching_enabled(); }

  void add_out_of_memory_observer(OutOfMemoryObserver observer) override {
    allocator().add_out_of_memory_observer(observer);
  }
  void add_free_memory_callback(FreeMemoryCallback callback) override {
    allocator().add_free_memory_callback(callback);
  }
  void add_change_tracker(ChangeTracker tracker) override { allocator().add_change_tracker(tracker); }
  void record_history(const HistoryOptions& history) override { allocator().record_history(history); }
  bool history_enabled() const override { return allocator().history_enabled(); }

  void create_or_retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) override {
    allocator().create_or_retain_pool(device, pool, std::move(provider));
  }
  void begin_allocate_to_pool(int device, PoolId pool, StreamFilter filter, RedirectFor reason) override {
    allocator().begin_allocate_to_pool(device, pool, std::move(filter), reason);
  }
  void end_allocate_to_pool(int device, PoolId pool) override { allocator().end_allocate_to_pool(device, pool); }
  void release_pool(int device, PoolId pool) override { allocator().release_pool(device, pool); }
  int pool_use_count(int device, PoolId pool) const override {
    return allocator().is_inherited() ? 1 : allocator().pool_use_count(device, pool);
  }
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom) override {
    if (use_on_oom || !allocator().is_inherited()) allocator().set_use_on_oom(device, pool, use_on_oom);
  }
  void set_no_split(int device, PoolId pool) override { allocator().set_no_split(device, pool); }
  bool pool_has_exactly(int device, PoolId pool, const std::vector<void*>& live) const override {
    return allocator().pool_has_exactly(device, pool, live);
  }
  PoolCheckpoint checkpoint_pool(int device, PoolId pool) const override {
    return allocator().checkpoint_pool(device, pool);
  }
  RestoreResult restore_pool(int device, const PoolCheckpoint& checkpoint) override {
    return allocator().restore_pool(device, checkpoint);
  }

  void hide_code(const void* code) override { add_own_code(code); }

  void set_out_of_memory_thrower(Thrower thrower) override { process_.set_out_of_memory_thrower(thrower); }

 private:
  CachingAllocator& allocator() const { return process_.allocator(); }

  Process& process_;
};

}  // namespace
}  // namespace cachalot

cachalot::Plug* cachalot_plug(int version) {
  static cachalot::Plug& plug = *new cachalot::ProcessPlug(cachalot::Process::instance());
  return version == cachalot::kPlugVersion ? &plug : nullptr;
}
