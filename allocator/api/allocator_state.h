// AllocatorState is the state that CachingAllocator and the groups of its functions share: the devices with their page map,
// the front, the options, the tags, and the process that made it.
//
// Thread safety: any thread, as for CachingAllocator. Each part has its own lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/device_allocator.h"
#include "api/front.h"
#include "base/host_memory.h"
#include "base/process.h"
#include "blocks/page_map.h"
#include "cachalot/allocator_groups.h"
#include "cachalot/device.h"
#include "cachalot/options.h"

CACHALOT_BEGIN

// LateFrees has live allocations whose free the device has refused so far, to free them later. Thread safety: any thread.
class LateFrees {
 public:
  // Returns true for the first pointer ever added.
  bool add(void* ptr) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(ptr);
    return !std::exchange(has_had_any_, true);
  }

  // Calls free(ptr) for each, without the lock; those for which it returns false stay. Returns whether anything was freed.
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

  // Throws InvalidArgument if the options need a front and `make_front` is empty.
  AllocatorState(std::vector<std::shared_ptr<Device>> devices, const Options& options, const FrontFactory& make_front);

  void require_own_process() const { ForkAware::require_own_process("the allocator"); }

  // Throws in a forked child.
  const DeviceAllocators& devices() const;
  // For functions that give memory back: returns no device in a forked child.
  const DeviceAllocators& devices_if_own() const { return own_.devices; }
  PageMap& page_map() const { return *own_.page_map; }
  Front& front() const { return *own_.front; }

  // Throws InvalidArgument for an index without a device, and in a forked child.
  DeviceAllocator& at(int device) const;
  // For functions that give memory back: returns null in a forked child; else as `at` does.
  DeviceAllocator* at_if_own(int device) const { return is_inherited() ? nullptr : &at(device); }
  // Returns the device, or all of them for kAllDevices.
  std::span<const std::unique_ptr<DeviceAllocator>> selected(int device) const;
  DeviceAllocator& owner_of(const Block& block) const;

  // Both throw in a forked child.
  Options current_options() const;
  std::unique_lock<std::mutex> lock_options() const;

  Options options;  // under lock_options
  std::atomic<bool> caching_enabled{true};
  Tags tags;
  LateFrees late_frees;
  // Calls of `ensure` follow each other, on all devices: a refill on one may ensure other tags on the others.
  std::recursive_mutex ensuring;

 private:
  struct Parts {
    std::unique_ptr<PageMap> page_map;
    DeviceAllocators devices;
    std::unique_ptr<Front> front;
  };

  // Puts everything that belongs to the parent out of reach.
  void on_fork() noexcept override { std::swap(own_, forked_); }
  [[noreturn]] void refuse_device(int device) const;

  mutable std::mutex options_mutex_;
  Parts own_;
  Parts forked_;  // no device and a ForkedFront; on_fork exchanges both
};

CACHALOT_END
