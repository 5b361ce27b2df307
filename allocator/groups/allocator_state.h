// AllocatorState is all that CachingAllocator and the groups of its functions share: the devices with their page map, the
// guards, the options, the tags, and whose process it is.
//
// Thread safety: any thread, as CachingAllocator's. Each part has its own lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/host_memory.h"
#include "base/process.h"
#include "blocks/page_map.h"
#include "cachalot/kernels.h"
#include "cachalot/options.h"
#include "cachalot/pool_id.h"
#include "device_allocator.h"
#include "guard/guard.h"
#include "guard/guard_reports.h"

CACHALOT_BEGIN

// Live allocations whose free the device has refused so far: they are freed later. Thread safety: any thread.
class LateFrees {
 public:
  // Returns true for the first that there ever was.
  bool add(void* ptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(ptr);
    return !std::exchange(has_had_any_, true);
  }

  // Calls free(ptr), which returns false to be asked again, for each without the lock. Returns whether anything was freed.
  template <typename Free>
  bool retry(Free free) {
    Vector<void*> late;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      late.swap(waiting_);
    }
    const std::size_t freed = std::erase_if(late, free);
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.insert(waiting_.end(), late.begin(), late.end());
    return freed != 0;
  }

 private:
  std::mutex mutex_;
  Vector<void*> waiting_;
  bool has_had_any_ = false;
};

// The tags of memory that can sleep, each the name of a private pool. Thread safety: any thread.
class Tags {
 public:
  // Makes the tag, if it does not exist.
  PoolId make(std::string_view tag);
  // Throws InvalidArgument for a tag that was never made.
  PoolId pool_of(std::string_view tag) const;
  std::map<std::string, PoolId> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> numbers_;  // from 1 on
};

class AllocatorState final : public ForkAware {
 public:
  using DeviceAllocators = std::vector<std::unique_ptr<DeviceAllocator>>;
  using Guards = std::vector<std::unique_ptr<Guard>>;

  AllocatorState(std::vector<std::shared_ptr<Device>> devices, const Options& options, const KernelsFactory& kernels);

  void require_own_process() const { ForkAware::require_own_process("the allocator"); }

  // Throws in a forked child.
  const DeviceAllocators& devices() const;
  // None in a forked child, for what gives back.
  const DeviceAllocators& devices_if_own() const { return own_.devices; }
  PageMap& page_map() const { return *own_.page_map; }

  // Throws InvalidArgument for an index without a device, and in a forked child.
  DeviceAllocator& at(int device) const;
  // The device, or with kAllDevices all of them.
  std::span<const std::unique_ptr<DeviceAllocator>> selected(int device) const;
  DeviceAllocator& owner_of(const Block& block) const;

  // The heap's block behind the user's pointer, still to be checked by its device.
  struct Found {
    Block* block;       // null: there is none
    const void* start;  // the pointer's address in the heap
  };
  Found find(const void* ptr) const;
  enum class PointerUse : std::uint8_t { free, other };
  [[noreturn]] void throw_not_live(const void* ptr, PointerUse use) const;

  bool is_guarded() const { return !own_.guards.empty(); }
  // One for each device; none without a guard, and in a forked child.
  const Guards& guards() const { return own_.guards; }
  // Of selected(device); none without a guard.
  std::span<const std::unique_ptr<Guard>> guards(int device) const;
  GuardLog& guard_log() const { return *own_.guard_log; }
  // Runs `action`, and throws what guard handlers throw for its reports when it is done.
  template <typename Action>
  void tell_after(Action action) const;

  // With the guard on.
  void* allocate_guarded(std::size_t bytes, int device, Stream stream, bool contiguous, std::size_t alignment);
  void deallocate_guarded(void* ptr);
  void deallocate_guarded(void* ptr, int device, std::size_t bytes, Stream stream);
  // Memory that was allocated while caching was off. A forked child's frees do nothing: they are those of objects that it
  // has inherited.
  void deallocate_uncached(void* ptr);

  // Throws in a forked child.
  Options current_options() const;

  mutable std::mutex options_mutex;
  Options options;  // under its mutex
  std::atomic<bool> caching_enabled{true};
  Tags tags;
  LateFrees late_frees;

 private:
  struct Parts {
    std::unique_ptr<PageMap> page_map;
    DeviceAllocators devices;
    std::unique_ptr<GuardLog> guard_log;
    Guards guards;  // one for each device with the guard on, else empty
  };

  // Takes everything that belongs to the parent out of reach.
  void on_fork() noexcept override { std::swap(own_, parents_); }
  [[noreturn]] void refuse_device(int device) const;
  void set_up_guard(const KernelsFactory& kernels);

  Parts own_;      // empty in a forked child
  Parts parents_;  // in a forked child
};

template <typename Action>
void AllocatorState::tell_after(Action action) const {
  if (!is_guarded()) return action();
  guard_log().tell_after(action);
}

CACHALOT_END
