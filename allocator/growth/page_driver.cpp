#include "growth/page_driver.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

namespace {

// BackingCalls make the driver's calls of a BackingPlan, without the device's mutex and under the growth mutex. A
// failure undoes the calls before it; memory that cannot even be returned is left in `orphans`.
class BackingCalls {
 public:
  BackingCalls(Device& device, const std::vector<int>& peers, const BackingPlan& plan, const PhysicalPages& pages)
      : device_(device), peers_(peers), plan_(plan), pages_(pages) {}

  // Returns false if there is no memory for the pages or for their mappings. Throws CudaError. In both cases nothing
  // new is mapped.
  bool make() {
    bool is_made = false;
    try {
      have_memory([&] {
        took.unmaps = timed(&BackingCalls::drop);
        took.creates = timed(&BackingCalls::create);
        if (created.size() != plan_.growths.size()) return;
        took.maps = timed(&BackingCalls::map);
        took.accesses = timed(&BackingCalls::open);
        is_made = true;
      });
    } catch (...) {
      undo();
      throw;
    }
    if (!is_made) undo();
    return is_made;
  }

  std::size_t dropped = 0;       // of plan.drops: these are unmapped, whatever came after
  Vector<MemoryHandle> created;  // for plan.growths
  Vector<Orphan> orphans;
  DriverCosts::Measured took;

 private:
  struct Mapped {
    Address at;
    std::size_t bytes;
    MemoryHandle memory;
    bool is_new;
  };

  // Makes the calls of one kind; the function returns their number.
  DriverCosts::Calls timed(std::size_t (BackingCalls::*calls)()) {
    const std::int64_t began = device_.clock_us();
    const std::size_t count = (this->*calls)();
    return {count, device_.clock_us() - began};
  }
  std::size_t drop() {
    std::size_t runs = 0;
    for (std::size_t first = 0; first < plan_.drops.size(); first = dropped, ++runs) {
      std::size_t next = first;
      Address end = plan_.drops[first].at;
      while (next < plan_.drops.size() && plan_.drops[next].at == end) {
        end += pages_.bytes(pages_.handle(plan_.drops[next++].handle));
      }
      device_.unmap(plan_.drops[first].at, end - plan_.drops[first].at);
      dropped = next;
    }
    return runs;
  }
  // Ends at the first handle for which the device has no memory.
  std::size_t create() {
    created.reserve(plan_.growths.size());
    for (const BackingPlan::Growth& growth : plan_.growths) {
      const std::optional<MemoryHandle> memory = device_.create(growth.pages * pages_.page_bytes());
      if (!memory) break;
      created.push_back(*memory);
    }
    return created.size();
  }
  std::size_t map() {
    Vector<Mapped> grown;  // these and those that have moved come in the order of their addresses
    for (std::size_t i = 0; i < created.size(); ++i) {
      grown.push_back({plan_.growths[i].at, plan_.growths[i].pages * pages_.page_bytes(), created[i], true});
    }
    Vector<Mapped> moved;
    for (const BackingPlan::Move& move : plan_.moves) {
      const PhysicalHandle& handle = pages_.handle(move.handle);
      if (!move.is_mapped) moved.push_back({move.to, pages_.bytes(handle), handle.memory, false});
    }
    Vector<Mapped> wanted(grown.size() + moved.size());
    std::ranges::merge(grown, moved, wanted.begin(), {}, &Mapped::at, &Mapped::at);
    mapped_.reserve(wanted.size());
    for (const Mapped& mapping : wanted) {
      device_.map(mapping.at, mapping.bytes, mapping.memory);
      mapped_.push_back(mapping);
    }
    return mapped_.size();
  }
  std::size_t open() {
    std::size_t ranges = 0;
    for (std::size_t i = 0; i < mapped_.size(); ++ranges) {
      Address end = mapped_[i].at;
      const Address begin = end;
      while (i < mapped_.size() && mapped_[i].at == end) end += mapped_[i++].bytes;
      device_.set_access(begin, end - begin, peers_);
    }
    return ranges;
  }
  // Never throws: what the device does not take back is noted.
  void undo() {
    for (const Mapped& mapping : mapped_) {
      try {
        device_.unmap(mapping.at, mapping.bytes);
      } catch (const CudaError&) {
        orphans.push_back({mapping.is_new ? mapping.memory : 0, mapping.bytes, {mapping.at}});
      }
    }
    for (std::size_t i = 0; i < created.size(); ++i) {
      const auto is_it = [&](const Orphan& orphan) { return orphan.memory == created[i]; };
      if (std::any_of(orphans.begin(), orphans.end(), is_it)) continue;
      try {
        device_.release(created[i]);
      } catch (const CudaError&) {
        orphans.push_back({created[i], plan_.growths[i].pages * pages_.page_bytes(), {}});
      }
    }
    created.clear();
  }

  Device& device_;
  const std::vector<int>& peers_;
  const BackingPlan& plan_;
  const PhysicalPages& pages_;
  Vector<Mapped> mapped_;
};

// Returns the addresses that get memory by a plan, in stretches as long as can be.
Vector<AddressRange> filled_by(const BackingPlan& plan, const PhysicalPages& pages) {
  Vector<AddressRange> parts;
  for (const BackingPlan::Move& move : plan.moves) parts.push_back({move.to, pages.bytes(pages.handle(move.handle))});
  for (const BackingPlan::Growth& growth : plan.growths)
    parts.push_back({growth.at, growth.pages * pages.page_bytes()});
  std::ranges::sort(parts, {}, &AddressRange::address);
  Vector<AddressRange> stretches;
  for (const AddressRange& part : parts) {
    const bool joins = !stretches.empty() && stretches.back().address + stretches.back().bytes == part.address;
    if (!joins) stretches.push_back({part.address, 0});
    stretches.back().bytes += part.bytes;
  }
  return stretches;
}

}  // namespace

Ledger::Home home_of(const PageRange& range) {
  return {range.kind, range.owner == nullptr ? PoolId{} : range.owner->id};
}

// --- carrying out a plan ----------------------------------------------------------------------------------------------

Block* PageDriver::execute_plan(const std::optional<BackingPlan>& maybe, Request request, const Context& context,
                                Growing& growing) {
  if (!maybe) return nullptr;
  const BackingPlan& plan = *maybe;
  const std::size_t new_bytes = plan.new_pages * pages_.page_bytes();
  std::optional<Ledger::Ask> ask = state_.ledger.ask(new_bytes, growing);
  if (!ask) return nullptr;
  const Vector<PageHeap::VacatedStretch> vacated = pages_.begin(plan);
  std::size_t moving_bytes = 0;
  for (const PageHeap::VacatedStretch& part : vacated) moving_bytes += part.bytes;
  const Ledger::Move move(state_.ledger, moving_bytes, growing);

  BackingCalls calls(*state_.device, handles_.peers, plan, pages_.pages());
  bool backed = false;
  std::exception_ptr error;
  try {
    const Unlocked<Held> unlocked(growing);
    backed = calls.make();
  } catch (...) {
    error = std::current_exception();
  }
  for (std::size_t i = 0; i < calls.dropped; ++i) forget_view(plan.drops[i].handle, plan.drops[i].at, growing);
  if (!backed) {
    pages_.undo(plan, vacated);
    for (const Orphan& orphan : calls.orphans) adopt_orphan(orphan, growing);
    if (error) std::rethrow_exception(error);
    return nullptr;
  }
  calls.took.remaps = plan.new_views != 0 || !plan.drops.empty();
  if (state_.options.calibrate && calls_take_time_) costs_.record(calls.took);
  ask->granted(new_bytes, growing);
  return &book_plan(plan, vacated, calls.created, request, context, growing);
}

// The books follow the driver.
Block& PageDriver::book_plan(const BackingPlan& plan, const Vector<PageHeap::VacatedStretch>& vacated,
                             const Vector<MemoryHandle>& created, Request request, const Context& context,
                             Growing& growing) {
  PhysicalPages& pages = pages_.pages();
  for (std::size_t i = 0; i < created.size(); ++i) {
    const auto& [at, count] = plan.growths[i];
    pages_.show(*plan.range, pages.handle(pages.add(created[i], count, at)), at);
  }
  for (const BackingPlan::Move& move : plan.moves) {
    if (move.is_mapped) continue;
    pages.add_view(move.handle, move.to);
    pages_.show(*plan.range, pages.handle(move.handle), move.to);
  }
  pages_.move_homes(plan, vacated, [&](const PageHeap::VacatedStretch& part) {
    holds(growing);
    return Ticket{&clocks_.of(part.arena->stream, growing), part.epoch};
  });
  for (const PageHeap::VacatedStretch& part : vacated) {
    moved_bytes_ += part.bytes;
    state_.ledger.pages_moved(home_of(*pages_.range_of(part.address)), home_of(*plan.range), part.bytes, growing);
  }
  if (plan.new_pages != 0) {
    state_.ledger.pages_came(home_of(*plan.range), plan.new_pages * pages.page_bytes(), growing);
    if (request.pool().owner() != nullptr) request.pool().owner()->holds += created.size();
  }
  Block& block = pages_.finish(plan, *request.arena);
  if (context) remember_context(block, context, growing);
  if (state_.observers.observes(Change::Action::segment_map, growing))
    tell_of_plan(plan, vacated, *request.arena, context, growing);
  return block;
}

void PageDriver::tell_of_plan(const BackingPlan& plan, const Vector<PageHeap::VacatedStretch>& vacated,
                              const Arena& arena, const Context& context, const Held& held) {
  using Action = Change::Action;
  const PoolKind kind = plan.range->kind;
  for (const PageHeap::VacatedStretch& part : vacated) {
    const PoolKind from = pages_.range_of(part.address)->kind;
    state_.ledger.tell_of_pages(Action::segment_unmap, from, part.address, part.bytes, *part.arena, nullptr, held);
  }
  for (const AddressRange& part : filled_by(plan, pages_.pages()))
    state_.ledger.tell_of_pages(Action::segment_map, kind, part.address, part.bytes, arena, context, held);
}

// A run's first block keeps what its memory was first made for.
void PageDriver::remember_context(Block& block, const Context& context, const Held& /*held*/) {
  Block* head = &block;
  while (!head->prev->is_edge()) head = head->prev;
  Context& kept = state_.blocks.slab().detail(*head).segment_context;
  if (!kept) kept = context;
}

void PageDriver::forget_view(HandleId id, Address at, const Held& /*held*/) {
  pages_.hide(at, pages_.pages().bytes(pages_.pages().handle(id)));
  pages_.pages().remove_view(id, at);
}

// --- giving memory back -----------------------------------------------------------------------------------------------

// Memory the device did not take back, or addresses it did not unmap: blocked, held, and tried again now and then.
void PageDriver::adopt_orphan(Orphan orphan, const Held& held) {
  if (orphan.memory != 0) state_.ledger.orphaned(orphan.bytes, held);
  note_orphan(std::move(orphan), held);
}

void PageDriver::note_orphan(Orphan orphan, const Held& /*held*/) {
  for (const Address view : orphan.views) pages_.block(view, orphan.bytes);
  orphans_.push_back(std::move(orphan));
}

bool PageDriver::has_orphans(const PrivatePool& pool, const Held& held) const {
  return std::any_of(orphans_.begin(), orphans_.end(), [&](const Orphan& orphan) {
    return std::any_of(orphan.views.begin(), orphan.views.end(), [&](Address view) {
      holds(held);
      return pages_.range_of(view)->owner == &pool;
    });
  });
}

std::exception_ptr PageDriver::unmap(Vector<Orphan>& orphans, Growing& growing) {
  struct Mapped {
    Address at;
    Orphan* orphan;
  };
  Vector<Mapped> mapped;
  for (Orphan& orphan : orphans) {
    for (const Address view : orphan.views) mapped.push_back({view, &orphan});
    orphan.views.clear();
  }
  std::ranges::sort(mapped, {}, &Mapped::at);
  std::exception_ptr refusal;
  for (auto first = mapped.begin(); first != mapped.end();) {
    auto last = first;
    Address end = first->at;
    const PageRange* const range = pages_.range_of(first->at);
    for (; last != mapped.end() && last->at == end && end < range->end(); ++last) end += last->orphan->bytes;
    try {
      const Unlocked<Held> unlocked(growing);
      state_.device->unmap(first->at, end - first->at);
      first = last;
    } catch (const CudaError&) {
      if (!refusal) refusal = std::current_exception();
      for (; first != last; ++first) first->orphan->views.push_back(first->at);
    }
  }
  return refusal;
}

std::exception_ptr PageDriver::free_all(Vector<Orphan> orphans, Growing& growing) {
  unmap(orphans, growing);
  std::exception_ptr refusal;
  for (Orphan& orphan : orphans) {
    try {
      free_orphan(std::move(orphan), growing);
    } catch (const CudaError&) {
      if (!refusal) refusal = std::current_exception();
    }
  }
  return refusal;
}

// Unmaps what is still mapped, view by view. Throws CudaError.
void PageDriver::free_orphan(Orphan orphan, Growing& growing) {
  try {
    const Unlocked<Held> unlocked(growing);
    for (; !orphan.views.empty(); orphan.views.pop_back()) state_.device->unmap(orphan.views.back(), orphan.bytes);
    if (orphan.memory != 0) {
      handles_.exported.forget(orphan.memory);
      state_.device->release(orphan.memory);
    }
  } catch (...) {
    note_orphan(std::move(orphan), growing);
    throw;
  }
  if (orphan.memory != 0) state_.ledger.orphan_went(orphan.bytes, growing);
}

void PageDriver::free_orphans(Growing& growing) {
  Vector<Orphan> orphans = std::exchange(orphans_, {});
  for (const Orphan& orphan : orphans) {
    for (const Address view : orphan.views) pages_.hide(view, orphan.bytes);
  }
  free_all(std::move(orphans), growing);
  saved_.free(growing);
}

void PageDriver::release_pages(PrivatePool* owner, std::size_t enough, std::size_t most, Growing& growing,
                               Reservation reservation) {
  free_orphans(growing);
  Vector<HandleId> idle = pages_.idle_handles(state_.pools_of(owner, growing));
  if (reservation == Reservation::stays) {
    Block* first = nullptr;
    const auto is_nobodys = [](const Block& block) { return block.arena->stream.key == StreamKey::nobody(); };
    std::erase_if(idle, [&](HandleId id) {
      holds(growing);
      return all_blocks(id, first, is_nobodys, growing);
    });
  }
  std::size_t chosen_bytes = 0;
  std::erase_if(idle, [&](HandleId id) {
    holds(growing);
    const std::size_t bytes = pages_.pages().bytes(pages_.pages().handle(id));
    if (chosen_bytes >= enough || bytes > most - chosen_bytes) return true;
    chosen_bytes += bytes;
    return false;
  });
  if (idle.empty()) return;
  pages_.claim_handles(idle);
  try {
    clocks_.finish_all_work(growing);
  } catch (...) {
    pages_.put_back_idle(idle);
    throw;
  }
  release_handles(idle, owner, growing);
  saved_.free(growing);
}

std::size_t PageDriver::release_done(const TrimGoal& goal, Growing& growing) {
  free_orphans(growing);
  Vector<HandleId> idle = pages_.idle_handles(state_.pools_of(nullptr, growing));
  Block* first = nullptr;
  std::erase_if(idle, [&](HandleId id) {
    holds(growing);
    return !is_done(id, first, growing);
  });
  const auto bytes_of = [&](HandleId id) {
    holds(growing);
    return pages_.pages().bytes(pages_.pages().handle(id));
  };
  auto [chosen, bytes] = goal.choose(idle, bytes_of);
  std::ranges::sort(chosen, {}, [&](HandleId id) {
    holds(growing);
    return pages_.pages().handle(id).home;
  });
  pages_.claim_handles(chosen);
  release_handles(chosen, nullptr, growing);
  return bytes;
}

// `first` becomes the first block of the handle; it is null, or that of one with a lower home, from which it is near.
bool PageDriver::all_blocks(HandleId idle, Block*& first, FunctionRef<bool(const Block&)> are_so,
                            const Held& /*held*/) {
  const PhysicalHandle& handle = pages_.pages().handle(idle);
  first = &pages_.first_block(handle.home, first);
  const Block* block = first;
  while (!block->is_edge() && block->address < pages_.end_of(handle) && are_so(*block)) block = block->next;
  return block->is_edge() || block->address >= pages_.end_of(handle);
}

// Returns whether no work uses a handle of the default pools that has no live byte.
bool PageDriver::is_done(HandleId idle, Block*& first, const Held& held) {
  const Vector<View>& views = pages_.pages().handle(idle).views;
  if (!std::all_of(views.begin(), views.end(), PhysicalPages::is_unused)) return false;
  const auto is_block_done = [&](const Block& block) {
    holds(held);
    const StreamClock* const clock = clocks_.find(block.arena->stream.key, held);
    return clock != nullptr && clock->is_done(block.bin.epoch);
  };
  return all_blocks(idle, first, is_block_done, held);
}

// All leave the books before the lock is released for the first of them.
void PageDriver::release_handles(const Vector<HandleId>& idle, PrivatePool* owner, Growing& growing) {
  pages_.forget_memory(idle, [&](const PageHeap::IdleMemory& memory) {
    holds(growing);
    const Block& block = memory.block;
    if (memory.is_asleep) return;  // it went when it fell asleep
    state_.ledger.pages_went(memory.range.kind, block.address, block.size(), *block.arena, growing);
  });
  Vector<Orphan> leaving;
  for (const HandleId id : idle) leaving.push_back(forget_handle(id, owner, growing));
  if (const std::exception_ptr refusal = free_all(std::move(leaving), growing)) std::rethrow_exception(refusal);
}

// Returns what the device is to take back: nothing of a handle that is asleep.
Orphan PageDriver::forget_handle(HandleId id, PrivatePool* owner, const Held& held) {
  PhysicalPages& pages = pages_.pages();
  const PhysicalHandle handle = pages.handle(id);
  Orphan memory = handle.is_asleep() ? Orphan{} : take_memory(id, held);
  for (const View& view : handle.views) {
    forget_view(id, view.address, held);
    if (memory.memory != 0) memory.views.push_back(view.address);
  }
  pages.remove(id);
  if (owner != nullptr) {
    --owner->holds;
    saved_.forget(*owner, id, held);
  }
  return memory;
}

Orphan PageDriver::take_memory(HandleId id, const Held& held) {
  const std::size_t bytes = pages_.pages().bytes(pages_.pages().handle(id));
  state_.ledger.handle_departs(bytes, held);
  return {pages_.pages().take_memory(id), bytes, {}};
}

// At the end of the allocator: everything, live or not.
void PageDriver::give_back_everything() noexcept CACHALOT_NO_THREAD_SAFETY_ANALYSIS {
  const auto quietly = [](const auto& call) {
    try {
      call();
    } catch (const CudaError&) {  // the device may be gone at exit; the error cannot be reported
    }
  };
  if (!pages_.ranges().empty())
    quietly([&] { state_.device->synchronize(); });  // a GPU that was not used gets no context now
  for (HandleId id = 0; id < pages_.pages().handle_ids(); ++id) {
    const PhysicalHandle& handle = pages_.pages().handle(id);
    if (handle.memory == 0) continue;
    const std::size_t bytes = pages_.pages().bytes(handle);
    for (const View& view : handle.views) quietly([&] { state_.device->unmap(view.address, bytes); });
    quietly([&] { state_.device->release(handle.memory); });
  }
  for (const Orphan& orphan : orphans_) {
    for (const Address view : orphan.views) quietly([&] { state_.device->unmap(view, orphan.bytes); });
    if (orphan.memory != 0) quietly([&] { state_.device->release(orphan.memory); });
  }
  for (const auto& entry : pages_.ranges()) {
    quietly([&] { state_.device->unreserve(entry.second.base, entry.second.bytes); });
  }
}

// --- sharing ------------------------------------------------------------------------------------------------------------

SharedMemory PageDriver::share(const Block& block, Growing& growing) {
  SharedMemory memory;
  memory.bytes = block.size();
  const Vector<PageHeap::ShownHandle> views = pages_.views_of(block.address, block.end());
  memory.offset = block.address - views.front().at;
  for (const PageHeap::ShownHandle& view : views) {
    const PhysicalHandle& handle = pages_.pages().handle(view.handle);
    const MemoryHandle physical = handle.memory;
    const std::size_t bytes = pages_.pages().bytes(handle);
    const Unlocked<Held> unlocked(growing);
    const ExportedHandles::Export& exported = handles_.exported.of(physical);
    memory.handles.push_back({exported.handle, bytes, exported.key});
  }
  return memory;
}

CACHALOT_END
