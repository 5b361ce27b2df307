// A pool's slabs and the allocator that they come from, which may be destroyed first; and the budget of a set of pools.
// Thread safety: any thread. Calls the allocator, and so the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/locks.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "cachalot/tensor_pool.h"
#include "device/known_stream.h"
#include "pool_slots.h"

CACHALOT_BEGIN

// The streams that a pool's slots name: their handles while they live, their last events once they have ended, and the
// order of work between them. Thread safety: any thread. Calls the device; no spin lock is held across that.
class PoolStreams {
 public:
  PoolStreams(std::shared_ptr<Device> device, bool immortal)
      : device_(std::move(device)), immortal_(immortal), order_(device_) {}

  // Returns which stream has the handle now. Throws InvalidArgument if none has.
  KnownStream identify(Stream handle) const { return cachalot::identify(*device_, handle, immortal_); }
  // Keeps the handle. To be called before a slot names the stream.
  void remember(const KnownStream& stream);
  // Both.
  StreamKey remember(Stream handle);
  // Returns the handle of a stream that was remembered and has not ended.
  Stream handle_of(StreamKey stream);
  bool captures(StreamKey stream);
  // Records the stream's last event, for all work that comes after its own. Throws InvalidArgument while it captures.
  void end(Stream handle);

  // Lets `after` wait for the work of `before`, unless that is known to be done.
  void put_before(StreamKey before, StreamKey after);
  // Lets `stream` wait for all work on the slot. Returns false if one of its users captures; then nothing was done.
  // Counts the waits, of which some may have been queued when this throws.
  bool put_users_before(const PoolSlot& slot, StreamKey stream, std::uint64_t& waits);
  // Calls use(handle) for a stream that lives; waits on the host for the work of one that has ended.
  void use_or_await(StreamKey stream, const std::function<void(Stream handle)>& use);

  std::size_t metadata_bytes() const;  // beside its own size

 private:
  class OwnedEvent;
  // A stream that is not immortal.
  struct Mortal {
    Stream handle = nullptr;
    std::shared_ptr<const OwnedEvent> end = nullptr;  // recorded when it ended; null while it lives
  };

  // Returns nullopt for a stream that has ended and whose work is done.
  std::optional<Mortal> find(StreamKey stream);
  bool can_be_asked(const Mortal& stream, StreamKey key);
  void forget_streams_that_are_done();

  const std::shared_ptr<Device> device_;
  const bool immortal_;  // all streams are
  StreamOrder order_;
  // Held shared around calls with the handle of a stream that may end, and alone by a thread that ends one.
  std::shared_mutex ends_;
  mutable SpinMutex mutex_;
  // Streams that are not immortal, unless they have ended and their work is done.
  std::unordered_map<StreamKey, Mortal> streams_ CACHALOT_GUARDED_BY(mutex_);
};

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

  // Keeps the host from allocating tables for slots that no device has memory for: call it before. Throws
  // InvalidArgument if they are more than any allocation, and OutOfMemory if they are more than all of the device; for
  // managed memory, than all of the device and the host.
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
