// PendingFrees are the frees that wait for work on other streams than the block's own.
//
// Such a block is first allocated and recorded on other streams (add_use). Its free marks it kFreeing and records an
// event on each of those streams; then it waits, marked kPending, until all events are done, and is free. During a
// capture no event may be recorded: the free is queued, and its events are recorded after the capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "blocks/block.h"
#include "cachalot/device.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

// Frees that wait: a block used on other streams than its own is free only when the work queued there at its free is
// done. An event is recorded on each such stream; reclaim() gives back the blocks whose events are all done.
//
// As PyTorch does, each stream's pending events are looked at in order, up to the first that is not done, at each
// malloc. Unlike PyTorch, a stream's oldest event is asked only when it may have changed: when it has become the
// oldest, or when the device's completion hint for the stream has moved since (a memory read).
//
// Thread safety: guarded by the mutex of its device's allocator. Functions that take a Held& let it go around driver calls.
// The steady state allocates nothing: list nodes, events and queues are kept for reuse.
class DeferredFrees {
 public:
  // `done` is called for each block whose last event was seen done.
  DeferredFrees(Device& device, std::function<void(Block&, Held&)> done);
  // Destroys the events it owns.
  ~DeferredFrees();
  DeferredFrees(const DeferredFrees&) = delete;
  DeferredFrees& operator=(const DeferredFrees&) = delete;

  // `stream` uses the block; once however often it is said.
  void add_use(Block& block, const KnownStream& stream) CACHALOT_HELD;
  // Records now, for the blocks that the stream uses, the events that their frees will wait for: it will be no more then.
  // Throws CudaError; those that are recorded stay so.
  void end_stream(const KnownStream& stream, Held& held) CACHALOT_HELD;
  // Queues an event on each stream that uses the block, which thereby waits for them. The block must be marked so that
  // no other thread takes it up meanwhile. Waits for the device if one of the streams has ended without a notice
  // (end_stream), or is another thread's default stream. Throws CudaError, with the block's uses as they were.
  void wait_for_uses(Block& block, Held& held) CACHALOT_HELD;
  // Drops the block's uses without waiting: the device was reset.
  void forget_uses(Block& block) CACHALOT_HELD;

  bool empty() const CACHALOT_HELD { return pending_ == 0; }
  // Calls done for blocks whose events are done. Throws CudaError; nothing is lost.
  void reclaim(Held& held) CACHALOT_HELD;
  // Waits for the events of all blocks for which `selects` is true, and calls done. Throws CudaError.
  void synchronize(FunctionRef<bool(const Block&)> selects, Held& held) CACHALOT_HELD;
  // Waits for one event, the first to complete of all streams' oldest, and calls done if it was its block's last. Asks only
  // streams that have an event of a block for which `selects` is true. Returns false if none has. Throws CudaError; nothing is lost.
  bool synchronize_next(FunctionRef<bool(const Block&)> selects, Held& held) CACHALOT_HELD;

  std::size_t metadata_bytes() const CACHALOT_HELD;

 private:
  struct Pending {
    Event event;
    Block* block;
  };
  // First in, first out, in a ring that grows by doubling.
  class Queue : public HostObject {
   public:
    KnownStream stream;
    bool oldest_is_new = false;  // its oldest event was not asked yet
    std::optional<std::uint64_t> hint_when_asked;
    std::size_t taken = 0;  // events that threads are asking or waiting for, with the mutex released

    bool empty() const { return count_ == 0; }
    std::size_t size() const { return count_; }
    void push_back(const Pending& pending);
    void push_front(const Pending& pending);
    Pending pop_front();
    bool has(FunctionRef<bool(const Block&)> selects) const;
    std::size_t capacity() const { return ring_.size(); }

   private:
    void grow_if_full();
    Vector<Pending> ring_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  StreamUse& make_use() CACHALOT_HELD;
  Event pop_event() CACHALOT_HELD;
  void retire_uses(StreamUse* uses) CACHALOT_HELD;
  Queue& queue_for(const KnownStream& stream) CACHALOT_HELD;
  void enqueue(const KnownStream& stream, const Pending& pending) CACHALOT_HELD;
  void reclaim(Queue& queue, Held& held) CACHALOT_HELD;
  bool is_due(const Queue& queue);
  bool oldest_is_done(Queue& queue, const Pending& oldest, Held& held) CACHALOT_HELD;
  void finish(const Pending& pending, Held& held) CACHALOT_HELD;

  Device& device_;
  std::function<void(Block&, Held&)> done_;
  Deque<StreamUse> uses_ CACHALOT_GUARDED_BY(device_lock);  // all nodes ever made; unused ones are of no mortal stream
  StreamUse* unused_ CACHALOT_GUARDED_BY(device_lock) = nullptr;
  Vector<Event> events_ CACHALOT_GUARDED_BY(device_lock);  // ready for reuse
  Vector<std::unique_ptr<Queue>> queues_ CACHALOT_GUARDED_BY(device_lock);
  HashMap<StreamKey, Queue*> queue_of_ CACHALOT_GUARDED_BY(device_lock);
  std::size_t recording_ CACHALOT_GUARDED_BY(device_lock) = 0;  // threads that record events, with the mutex released
  std::size_t pending_ CACHALOT_GUARDED_BY(device_lock) = 0;    // events queued, or being asked right now
};

class PendingFrees {
 public:
  explicit PendingFrees(HeapState& state);
  PendingFrees(const PendingFrees&) = delete;
  PendingFrees& operator=(const PendingFrees&) = delete;

  // Notes that work on `stream` uses the live block, too.
  void add_use(Block& block, const KnownStream& stream, const Held& held) CACHALOT_HELD;
  // Frees a live block, at once or after the work that uses it. Throws CudaError; the block is then live as before.
  void free(Block& block, const Context& context, Held& held) CACHALOT_HELD;
  // Frees a block that other streams use.
  void free_later(Block& block, const Context& context, Held& held) CACHALOT_HELD;
  // Frees the blocks whose work is done. Requires that no stream captures, since events may not be queried then. Throws
  // CudaError; nothing is lost.
  void reclaim(Held& held) CACHALOT_HELD;
  // Waits for the frees of one pool, or of all (null). Returns false if none was waiting. Throws as reclaim does.
  bool synchronize(const PrivatePool* only, Held& held) CACHALOT_HELD;
  // Waits for one event, the first to complete, on streams that such a free waits for. Returns false if none was waiting. Throws
  // as reclaim does.
  bool synchronize_next(const PrivatePool* owner, Held& held) CACHALOT_HELD;
  // Records the events that later frees will wait for, before the stream ends.
  void end_stream(const KnownStream& stream, Held& held) CACHALOT_HELD;
  std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;

 private:
  void start_waiting(Block& block, const Held& held) CACHALOT_HELD;
  void finish_waiting(Block& block, const Held& held) CACHALOT_HELD;
  void record_events_of_capture(Held& held) CACHALOT_HELD;

  HeapState& state_;
  DeferredFrees frees_ CACHALOT_GUARDED_BY(device_lock);
  Vector<Block*> deferred_in_capture_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
