#include "pytorch/plug/plug.h"

#include <functional>
#include <utility>

#include "base/own_code.h"
#include "pytorch/plug/descriptor_exchange.h"
#include "pytorch/plug/lent_tensors.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {

template <auto function, typename Group, typename Result, typename... Args>
Result ForwardedCall<function, Group, Result, Args...>::call(Args... args) {
  Group& group = process_allocator();
  return (group.*function)(std::forward<Args>(args)...);
}

Plug::Plug() = default;

namespace {

class ProcessPlug final : public Plug {
 public:
  explicit ProcessPlug(Process& process) : process_(process) {}

  void configure(const Options& torch_options, std::optional<bool> expandable) override {
    process_.set_base(torch_options, expandable);
  }
  void start() override { process_allocator(); }

  void* allocate(std::size_t bytes, int device, Stream stream) override {
    return process_.allocate(bytes, device, stream);
  }
  void deallocate(void* ptr) override { process_allocator().deallocate(ptr); }
  void record_pooled(void* ptr, Stream stream) override { LentTensors::instance().record_stream(ptr, stream); }

  Allocation allocation(void* ptr) const override {
    const CachingAllocator::Range segment = process_allocator().base_allocation(ptr);
    return {segment.base, segment.bytes, process_allocator().allocated_size(ptr)};
  }
  bool has_virtual_memory() const override { return process_.has_pages(); }
  bool takes_virtual_memory() const override { return process_.takes_pages(); }

  void set_caching_enabled(bool enabled) override { process_.set_caching_enabled(enabled); }

  std::uint64_t descriptor_socket() override { return DescriptorServer::instance().number(); }
  void* open_sent(SharedMemory memory, const Sender& sender, int device) override {
    TakenDescriptors taken;
    taken.take(memory, sender);
    return process_allocator().open_shared(memory, device);
  }

  // In a forked child torch's MemPool must be able to end: its destructor takes the pool out of use, asks whether it is
  // its last user, and empties it.
  void set_use_on_oom(int device, PoolId pool, bool use_on_oom) override {
    if (use_on_oom || !process_allocator().is_inherited()) process_allocator().set_use_on_oom(device, pool, use_on_oom);
  }
  int pool_use_count(int device, PoolId pool) const override {
    return process_allocator().is_inherited() ? 1 : process_allocator().pool_use_count(device, pool);
  }
  void empty_cache(int device, PoolId pool) override {
    if (pool.is_default() || !process_allocator().is_inherited()) process_allocator().empty_cache(device, pool);
  }

  void add_out_of_memory_observer(OutOfMemoryObserver observer) override {
    process_allocator().add_out_of_memory_observer(keeping_exceptions(std::move(observer)));
  }
  void add_refusal_observer(RefusalObserver observer) override {
    process_allocator().add_refusal_observer(keeping_exceptions(std::move(observer)));
  }
  void add_free_memory_callback(FreeMemoryCallback callback) override {
    process_allocator().add_free_memory_callback(keeping_exceptions(std::move(callback)));
  }
  void add_change_tracker(ChangeTracker tracker) override {
    process_allocator().add_change_tracker(keeping_exceptions(std::move(tracker)));
  }
  void record_history(HistoryOptions history) override {
    history.recorder = keeping_exceptions(std::move(history.recorder), true);
    process_allocator().record_history(history);
  }

  void hide_code(const void* code) override { add_own_code(code); }

  void set_out_of_memory_thrower(Thrower thrower) override { process_.set_out_of_memory_thrower(thrower); }

 private:
  Process& process_;
};

}  // namespace
}  // namespace cachalot

cachalot::Plug* cachalot_plug(int version) {
  static cachalot::Plug& plug = *new cachalot::ProcessPlug(cachalot::Process::instance());
  return version == cachalot::kPlugVersion ? &plug : nullptr;
}
