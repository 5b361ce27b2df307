// PendingFrees are the frees that wait for work on other streams than the block's own.
//
// Such a block is first allocated and recorded on other streams (add_use). Its free marks it kFreeing and records an
// event on each of those streams; then it waits, marked kPending, until all events are done, and is free. During a
// capture no event may be recorded: the free is queued, and its events are recorded after the capture.
#pragma once

#include <cstddef>
#include <vector>

#include "cachalot/device.h"
#include "heap/heap_state.h"
#include "streams/deferred_frees.h"

CACHALOT_BEGIN

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
  // Waits for the frees of one pool, or of all (null). Returns false if none was waiting. Throws as reclaim.
  bool synchronize(const PrivatePool* only, Held& held) CACHALOT_HELD;
  // Records the events that later frees will wait for, before the stream ends.
  void end_stream(const KnownStream& stream, Held& held) CACHALOT_HELD;
  std::size_t metadata_bytes(const Held& held) const CACHALOT_HELD;

 private:
  void start_waiting(Block& block, const Held& held) CACHALOT_HELD;
  void finish_waiting(Block& block, const Held& held) CACHALOT_HELD;
  void record_events_of_capture(Held& held) CACHALOT_HELD;

  HeapState& state_;
  DeferredFrees frees_ CACHALOT_GUARDED_BY(device_lock);
  std::vector<Block*> deferred_in_capture_ CACHALOT_GUARDED_BY(device_lock);
};

CACHALOT_END
