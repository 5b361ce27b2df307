// A pool's slabs and the allocator that they come from, which may be destroyed first; and the budget of a set of pools.
// Thread safety: any thread. Calls the allocator, and so the device.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cachalot/caching_allocator.h"
#include "cachalot/tensor_pool.h"
#include "pool_streams.h"
#include "slots.h"

CACHALOT_BEGIN

// The bytes that several pools may hold together.
class PoolBudget {
 public:
  virtual ~PoolBudget() = default;
  // Throws OutOfMemory if there is no room and none can be made.
  virtual void charge(std::size_t bytes, int device) = 0;
  virtual void refund(std::size_t bytes) noexcept = 0;
};

// Throws InvalidArgument for a null pointer.
CachingAllocator& not_null(const std::shared_ptr<CachingAllocator>& allocator);

class PoolMemory {
 public:
  // `owned` is null or owns `allocator`; `budget` may be null.
  PoolMemory(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
             const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget);

  bool has_allocator() const { return !life_.expired(); }
  void require_allocator() const;
  std::size_t tensor_bytes() const { return tensor_bytes_; }
  PoolStreams& streams() { return streams_; }

  // To be called before the host allocates tables for so many. Throws InvalidArgument if they are more than any
  // allocation, and OutOfMemory if they are more than all of the device.
  void require_fits(std::size_t slots) const;
  std::unique_ptr<PoolSlab> allocate(std::size_t slots, StreamKey stream);
  // The slab's memory is null afterwards. After an error it is as before.
  void deallocate(PoolSlab& slab);
  // Queues the writing of what on_reuse says.
  void fill(const PoolSlot& slot, StreamKey stream);

  // Returns "" or what is wrong with a slab and its slots; asks the allocator.
  std::string first_broken_rule(const PoolSlab& slab) const;

 private:
  static constexpr std::size_t kAllocatorAlignment = 512;  // CachingAllocator's

  std::size_t slab_bytes(std::size_t slots) const;
  char* first_slot(const PoolSlab& slab) const;
  void record_users(const PoolSlab& slab);

  const std::shared_ptr<CachingAllocator> owned_;
  CachingAllocator& allocator_;
  const std::weak_ptr<const void> life_;
  const int device_index_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<PoolBudget> budget_;
  const std::size_t alignment_;
  const std::size_t tensor_bytes_;
  const std::size_t stride_;  // from slot to slot
  const OnReuse on_reuse_;
  PoolStreams streams_;
};

CACHALOT_END
