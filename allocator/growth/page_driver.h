// The PageDriver executes the page heap's plans: it makes the driver's calls with the device's mutex released, and
// books what the driver did. Memory that the driver refuses to take back becomes an orphan, and the call is repeated
// later.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>

#include "base/function_ref.h"
#include "base/host_memory.h"
#include "cachalot/device.h"
#include "growth/growth.h"
#include "growth/saved_memory.h"
#include "growth/sharing.h"
#include "heap/heap_state.h"
#include "heap/stream_clocks.h"
#include "pages/driver_costs.h"
#include "pages/page_heap.h"

CACHALOT_BEGIN

// An Orphan is memory (0: only addresses) that the device did not take back, and where it may still be mapped.
struct Orphan {
  MemoryHandle memory;
  std::size_t bytes;
  Vector<Address> views;
};

// Returns where pages of the range are counted.
Ledger::Home home_of(const PageRange& range);

class PageDriver {
 public:
  static constexpr std::size_t kEverything = HeldLimit::kNone;

  PageDriver(HeapState& state, PageHeap& pages, DriverCosts& costs, StreamClocks& clocks, SharedHandles& handles,
             SavedMemory& saved)
      : state_(state),
        calls_take_time_(state.device->properties().calls_take_time),
        pages_(pages),
        costs_(costs),
        clocks_(clocks),
        handles_(handles),
        saved_(saved) {}
  PageDriver(const PageDriver&) = delete;
  PageDriver& operator=(const PageDriver&) = delete;

  // Returns the free block that holds the plan's window, or null without a plan, or if the device or the limit has no
  // room for its new memory. Throws CudaError; nothing has changed then.
  Block* execute_plan(const std::optional<BackingPlan>& plan, Request request, const Context& context,
                      Growing& growing) CACHALOT_GROWING;

  // Unmaps and releases the handles of a pool that have no live byte, until `enough` bytes are free, but no more than
  // `most`; waits for the device first. A handle that the device refuses becomes an orphan, and the error is thrown.
  void release_pages(PrivatePool* owner, std::size_t enough, std::size_t most, Growing& growing,
                     Reservation reservation = Reservation::goes) CACHALOT_GROWING;
  // Does so for handles of the default pools whose work is known to be done, as the goal says, without a wait. Returns the
  // bytes.
  std::size_t release_done(const TrimGoal& goal, Growing& growing) CACHALOT_GROWING;
  // Releases handles without a live byte, which are claimed, and their addresses. Throws the driver's first refusal, after all were
  // tried; memory that it refuses becomes an orphan.
  void release_handles(const Vector<HandleId>& idle, PrivatePool* owner, Growing& growing) CACHALOT_GROWING;
  // Takes the memory out of an awake handle, whose pages went; to be returned to the device.
  Orphan take_memory(HandleId id, const Held& held) CACHALOT_HELD;
  // Books that nothing is mapped in the view any more.
  void forget_view(HandleId id, Address at, const Held& held) CACHALOT_HELD;

  // Counts memory that the device did not take back, blocks its addresses, and notes it for later.
  void adopt_orphan(Orphan orphan, const Held& held) CACHALOT_HELD;
  // Unmaps the views of orphans, those side by side by one call. Orphans keep the views that the driver does not unmap. Returns its
  // first refusal, or null.
  std::exception_ptr unmap(Vector<Orphan>& orphans, Growing& growing) CACHALOT_GROWING;
  // Returns orphans, which are counted, to the device. Notes those that it refuses. Returns the first refusal, or null.
  std::exception_ptr free_all(Vector<Orphan> orphans, Growing& growing) CACHALOT_GROWING;
  // Does so for those that are noted.
  void free_orphans(Growing& growing) CACHALOT_GROWING;
  bool has_orphans(const PrivatePool& pool, const Held& held) const CACHALOT_HELD;
  void give_back_everything() noexcept;

  // Returns the bytes that plans have moved so far.
  std::size_t moved_bytes(const Held& /*held*/) const CACHALOT_HELD { return moved_bytes_; }

  // Returns what other processes need to open a block.
  SharedMemory share(const Block& block, Growing& growing) CACHALOT_GROWING;

 private:
  Orphan forget_handle(HandleId id, PrivatePool* owner, const Held& held) CACHALOT_HELD;
  void note_orphan(Orphan orphan, const Held& held) CACHALOT_HELD;
  void free_orphan(Orphan orphan, Growing& growing) CACHALOT_GROWING;
  bool all_blocks(HandleId idle, Block*& first, FunctionRef<bool(const Block&)> are_so, const Held& held) CACHALOT_HELD;
  bool is_done(HandleId idle, Block*& first, const Held& held) CACHALOT_HELD;
  Block& book_plan(const BackingPlan& plan, const Vector<PageHeap::VacatedStretch>& vacated,
                   const Vector<MemoryHandle>& created, Request request, const Context& context,
                   Growing& growing) CACHALOT_GROWING;
  void tell_of_plan(const BackingPlan& plan, const Vector<PageHeap::VacatedStretch>& vacated, const Arena& arena,
                    const Context& context, const Held& held) CACHALOT_HELD;
  void remember_context(Block& block, const Context& context, const Held& held) CACHALOT_HELD;

  HeapState& state_;
  const bool calls_take_time_;
  PageHeap& pages_ CACHALOT_GUARDED_BY(device_lock);
  DriverCosts& costs_ CACHALOT_GUARDED_BY(device_lock);
  StreamClocks& clocks_;
  SharedHandles& handles_;
  SavedMemory& saved_;
  Vector<Orphan> orphans_ CACHALOT_GUARDED_BY(device_lock);
  std::size_t moved_bytes_ CACHALOT_GUARDED_BY(device_lock) = 0;
};

CACHALOT_END
