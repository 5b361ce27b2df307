// A pool's way to its memory: slabs from an allocator that may go first, within a budget.
// Thread safety: any thread. Calls the allocator, and so the device.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "base/mutex.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/tensor_pool.h"
#include "slots.h"
#include "streams/stream_order.h"

namespace cachalot {

// What several pools may hold together.
class PoolBudget {
 public:
  virtual ~PoolBudget() = default;
  // Throws OutOfMemory where there is no room and none can be made.
  virtual void take(std::size_t bytes, int device) = 0;
  virtual void give_back(std::size_t bytes) noexcept = 0;
};

// Throws InvalidArgument for a null pointer.
CachingAllocator& not_null(const std::shared_ptr<CachingAllocator>& allocator);

class PoolMemory {
 public:
  // `owned` may be null; it is `allocator` otherwise. So may `budget` be.
  PoolMemory(std::shared_ptr<CachingAllocator> owned, CachingAllocator& allocator, const TensorSpec& spec,
             const TensorPoolOptions& options, std::shared_ptr<PoolBudget> budget);

  bool has_allocator() const { return !life_.expired(); }
  void require_allocator() const;
  std::size_t tensor_bytes() const { return tensor_bytes_; }

  // Before the host keeps books of so many: throws InvalidArgument where they are more than any allocation, and OutOfMemory
  // where they are more than all of the device.
  void require_fits(std::size_t slots) const;
  std::unique_ptr<PoolSlab> allocate(std::size_t slots, StreamKey stream);
  // Its memory is null then. After an error it is there as before.
  void deallocate(PoolSlab& slab);

  // Lets `stream` come after all work on the slot. False: a stream captures, and may not. Counts the waits, which may
  // have been queued in part where this throws.
  bool order(const PoolSlot& slot, StreamKey stream, std::uint64_t& waits);
  // What a tensor holds when it is handed out, unless that is kept.
  void fill(const PoolSlot& slot, StreamKey stream);
  bool captures(StreamKey stream);
  // Does nothing where the work of `before` is known to be done.
  void put_before(StreamKey before, StreamKey after);

  // Which stream has the handle now. Throws InvalidArgument where none has.
  KnownStream identify(Stream stream) const { return cachalot::identify(*door_, stream, immortal_streams_); }
  // Before its name goes into a slot.
  void remember(const KnownStream& stream);
  // Both.
  StreamKey know(Stream stream);
  // Of a stream that was remembered and has not ended.
  Stream handle_of(StreamKey stream);
  // Whether work can be queued on the stream: it has not ended, aloud or not.
  bool lives(StreamKey stream);
  std::size_t metadata_bytes() const;
  // The stream's last event is recorded now, for who comes after its work.
  void end_stream(Stream stream);

 private:
  static constexpr std::size_t kAllocatorAlignment = 512;  // CachingAllocator's
  class OwnedEvent;
  struct Mortal {
    Stream handle = nullptr;
    std::shared_ptr<const OwnedEvent> end = nullptr;  // recorded when it ended; null: it has not
  };

  std::size_t slab_bytes(std::size_t slots) const;
  void announce(const PoolSlab& slab, StreamKey user);
  // nullopt: it has ended, and its work is done.
  std::optional<Mortal> find(StreamKey stream);
  bool can_be_asked(const Mortal& stream, StreamKey key);
  void forget_streams_that_are_done();

  const std::shared_ptr<CachingAllocator> owned_;
  CachingAllocator& allocator_;
  const std::weak_ptr<const void> life_;
  const int device_;
  const std::shared_ptr<Device> door_;
  const std::shared_ptr<PoolBudget> budget_;
  const std::size_t alignment_;
  const std::size_t tensor_bytes_;
  const std::size_t stride_;  // from slot to slot
  const OnReuse on_reuse_;
  const bool moves_tensors_;
  const bool immortal_streams_;
  StreamOrder order_;
  // Shared around calls with the handle of a stream that may end; who ends one holds it alone.
  std::shared_mutex ends_;
  mutable SpinMutex mutex_;
  // Streams that are not immortal, unless they have ended and their work is done.
  std::unordered_map<StreamKey, Mortal> streams_ CACHALOT_GUARDED_BY(mutex_);
};

}  // namespace cachalot
