// DeviceAllocator over the page heap, the driver's part: plans carried out, memory given back, and what the driver refuses.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "device/cuda_codes.h"
#include "device_allocator.h"

namespace cachalot {

// --- carrying out a plan ----------------------------------------------------------------------------------------------

// The driver's part of a plan. What fails half-way is undone at once; what cannot even be undone is left in `orphans`.
class DeviceAllocator::BackingCalls {
 public:
  BackingCalls(Device& device, const std::vector<int>& peers, const BackingPlan& plan, const PhysicalPages& pages)
      : device_(device), peers_(peers), plan_(plan), pages_(pages) {}

  // False: no memory, for the pages or for their mappings. Throws CudaError. In both cases nothing new is mapped.
  bool make() {
    bool is_made = false;
    try {
      have_memory([&] {
        drop();
        if (!create()) return;
        map();
        is_made = true;
      });
    } catch (...) {
      undo();
      throw;
    }
    if (!is_made) undo();
    return is_made;
  }

  std::size_t dropped = 0;            // of plan.drops: these are unmapped, whatever came after
  std::vector<MemoryHandle> created;  // for plan.growths
  std::vector<Orphan> orphans;

 private:
  struct Mapped {
    Address at;
    std::size_t bytes;
    MemoryHandle memory;
    bool is_new;
  };

  void drop() {
    for (std::size_t first = 0; first < plan_.drops.size(); first = dropped) {
      std::size_t next = first;
      Address end = plan_.drops[first].at;
      while (next < plan_.drops.size() && plan_.drops[next].at == end) {
        end += pages_.bytes(pages_.handle(plan_.drops[next++].handle));
      }
      device_.unmap(plan_.drops[first].at, end - plan_.drops[first].at);
      dropped = next;
    }
  }

  bool create() {
    created.reserve(plan_.growths.size());
    for (const BackingPlan::Growth& growth : plan_.growths) {
      const std::optional<MemoryHandle> memory = device_.create(growth.pages * pages_.page_bytes());
      if (!memory) return false;
      created.push_back(*memory);
    }
    return true;
  }

  void map() {
    std::vector<Mapped> wanted;
    for (std::size_t i = 0; i < created.size(); ++i) {
      wanted.push_back({plan_.growths[i].at, plan_.growths[i].pages * pages_.page_bytes(), created[i], true});
    }
    for (const BackingPlan::Mapping& view : plan_.views) {
      const PhysicalHandle& handle = pages_.handle(view.handle);
      wanted.push_back({view.at, pages_.bytes(handle), handle.memory, false});
    }
    std::sort(wanted.begin(), wanted.end(), [](const Mapped& a, const Mapped& b) { return a.at < b.at; });
    mapped_.reserve(wanted.size());
    for (const Mapped& mapping : wanted) {
      device_.map(mapping.at, mapping.bytes, mapping.memory);
      mapped_.push_back(mapping);
    }
    for (std::size_t i = 0; i < mapped_.size();) {
      Address end = mapped_[i].at;
      const Address begin = end;
      while (i < mapped_.size() && mapped_[i].at == end) end += mapped_[i++].bytes;
      device_.set_access(begin, end - begin, peers_);
    }
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
  std::vector<Mapped> mapped_;
};

Block* DeviceAllocator::carry_out(const std::optional<BackingPlan>& maybe, Request request, const Context& context) {
  if (!maybe) return nullptr;
  const BackingPlan& plan = *maybe;
  const std::size_t new_bytes = plan.new_pages * pages_->page_bytes();
  if (limit_ != kNoLimit && held_bytes_ + new_bytes > limit_) return nullptr;
  const std::vector<PageHeap::Left> left = pages_->begin(plan);
  held_bytes_ += new_bytes;
  asking_bytes_ += new_bytes;
  std::size_t moving = 0;
  for (const PageHeap::Left& part : left) moving += part.bytes;
  moving_bytes_ += moving;

  BackingCalls calls(*device_, peers_, plan, pages_->pages());
  bool backed = false;
  std::exception_ptr error;
  try {
    const Unlocked unlocked(mutex_);
    backed = calls.make();
  } catch (...) {
    error = std::current_exception();
  }
  moving_bytes_ -= moving;
  asking_bytes_ -= new_bytes;
  for (std::size_t i = 0; i < calls.dropped; ++i) forget_view(plan.drops[i].handle, plan.drops[i].at);
  if (!backed) {
    held_bytes_ -= new_bytes;
    pages_->take_back(plan, left);
    for (const Orphan& orphan : calls.orphans) adopt_orphan(orphan);
    if (error) std::rethrow_exception(error);
    return nullptr;
  }
  return &settle(plan, left, calls.created, request, context);
}

// The books follow the driver.
Block& DeviceAllocator::settle(const BackingPlan& plan, const std::vector<PageHeap::Left>& left,
                               const std::vector<MemoryHandle>& created, Request request, const Context& context) {
  PhysicalPages& pages = pages_->pages();
  for (std::size_t i = 0; i < created.size(); ++i) {
    const HandleId id = pages.add(created[i], plan.growths[i].pages, plan.growths[i].at);
    pages_->show(*plan.range, pages.handle(id), plan.growths[i].at);
  }
  for (const BackingPlan::Mapping& view : plan.views) {
    pages.add_view(view.handle, view.at);
    pages_->show(*plan.range, pages.handle(view.handle), view.at);
  }
  pages_->move_homes(plan, left, [this](const PageHeap::Left& part) {
    return Ticket{&clock_of(part.arena->stream), part.epoch};
  });
  for (const PageHeap::Left& part : left) {
    counters_.pages_moved(pages_->range_of(part.address)->kind, plan.range->kind, as_signed(part.bytes));
  }
  if (plan.new_pages != 0) {
    counters_.pages_mapped(plan.range->kind, as_signed(plan.new_pages * pages.page_bytes()));
    if (request.pool().owner() != nullptr) request.pool().owner()->segments += created.size();
  }
  Block& block = pages_->finish(plan, *request.arena);
  if (context) remember_context(block, context);
  if ((rare_ & kObserved) != 0) observe_plan(plan, left, *request.arena, context);
  return block;
}

void DeviceAllocator::observe_plan(const BackingPlan& plan, const std::vector<PageHeap::Left>& left, const Arena& arena,
                                   const Context& context) {
  const std::size_t page = pages_->page_bytes();
  for (const PageHeap::Left& part : left) {
    observe_memory(Change::Action::segment_unmap, part.address, part.bytes, *part.arena, nullptr);
  }
  for (const BackingPlan::Move& move : plan.moves) {
    observe_memory(Change::Action::segment_map, move.to, move.count * page, arena, context);
  }
  for (const BackingPlan::Growth& growth : plan.growths) {
    observe_memory(Change::Action::segment_map, growth.at, growth.pages * page, arena, context);
  }
}

// A run's first block keeps what its memory was first made for.
void DeviceAllocator::remember_context(Block& block, const Context& context) {
  Block* head = &block;
  while (!head->prev->is_edge()) head = head->prev;
  Context& kept = heap_.slab().detail(*head).segment_context;
  if (!kept) kept = context;
}

void DeviceAllocator::forget_view(HandleId id, Address at) {
  pages_->hide(at, pages_->pages().bytes(pages_->pages().handle(id)));
  pages_->pages().remove_view(id, at);
}

// --- giving memory back -----------------------------------------------------------------------------------------------

// Memory the device did not take back, or addresses it did not unmap: blocked, held, and tried again now and then.
void DeviceAllocator::adopt_orphan(const Orphan& orphan) {
  block_orphan(orphan);
  orphans_.push_back(orphan);
}

void DeviceAllocator::block_orphan(const Orphan& orphan) {
  if (orphan.memory != 0) {
    held_bytes_ += orphan.bytes;
    orphan_bytes_ += orphan.bytes;
  }
  for (const Address view : orphan.views) pages_->block(view, orphan.bytes);
}

bool DeviceAllocator::has_orphans(const PrivatePool& pool) const {
  return std::any_of(orphans_.begin(), orphans_.end(), [&](const Orphan& orphan) {
    return std::any_of(orphan.views.begin(), orphan.views.end(),
                       [&](Address view) { return pages_->range_of(view)->owner == &pool; });
  });
}

// Throws CudaError; what the device does not take back even now stays noted.
void DeviceAllocator::free_orphan(Orphan orphan) {
  try {
    for (; !orphan.views.empty(); orphan.views.pop_back()) {
      {
        const Unlocked unlocked(mutex_);
        device_->unmap(orphan.views.back(), orphan.bytes);
      }
      pages_->hide(orphan.views.back(), orphan.bytes);
    }
    if (orphan.memory == 0) return;
    const Unlocked unlocked(mutex_);
    exported_.forget(orphan.memory);
    device_->release(orphan.memory);
  } catch (...) {
    orphans_.push_back(std::move(orphan));
    throw;
  }
  held_bytes_ -= orphan.bytes;
  orphan_bytes_ -= orphan.bytes;
}

void DeviceAllocator::free_orphans() {
  for (Orphan& orphan : std::exchange(orphans_, {})) {
    try {
      free_orphan(std::move(orphan));
    } catch (const CudaError&) {  // it is noted again
    }
  }
  free_host_memory();
}

// Unmaps and releases the handles of a pool that have no live byte, until `enough` bytes are free; waits for the device
// first. A handle that the device refuses becomes an orphan, and the error is thrown.
void DeviceAllocator::release_pages(PrivatePool* owner, std::size_t enough) {
  free_orphans();
  const std::vector<HandleId> idle = pages_->claim_idle_handles(pools_of(owner));
  if (idle.empty()) return;
  std::exception_ptr error;
  try {
    finish_all_work();
  } catch (...) {
    error = std::current_exception();
  }
  std::size_t released = 0;
  for (const HandleId id : idle) {
    if (error || released >= enough) {
      pages_->put_back_idle(id);
      continue;
    }
    released += pages_->pages().bytes(pages_->pages().handle(id));
    try {
      release_handle(id, owner);
    } catch (...) {
      error = std::current_exception();
    }
  }
  free_host_memory();
  if (error) std::rethrow_exception(error);
}

// One that is asleep has nothing for the device to take back.
void DeviceAllocator::release_handle(HandleId id, PrivatePool* owner) {
  PhysicalPages& pages = pages_->pages();
  const PhysicalHandle handle = pages.handle(id);
  const std::size_t bytes = pages.bytes(handle);
  if (!handle.is_asleep()) count_given_back(id);
  pages_->forget_memory(id);
  for (const View& view : handle.views) forget_view(id, view.address);
  pages.remove(id);
  if (owner != nullptr) {
    --owner->segments;
    forget_saved(*owner, id);
  }
  if (handle.is_asleep()) return;

  Orphan rest{handle.memory, bytes, {}};
  for (const View& view : handle.views) rest.views.push_back(view.address);
  block_orphan(rest);  // until the device has taken it
  free_orphan(std::move(rest));
}

void DeviceAllocator::count_given_back(HandleId id) {
  pages_->for_each_home(id, [&](PageRange& range, Address begin, Address end) {
    counters_.pages_unmapped(range.kind, as_signed(end - begin));
    observe_memory(Change::Action::segment_unmap, begin, end - begin, *pages_->first_block(begin).arena, nullptr);
  });
  ++counters_.num_device_free;
  held_bytes_ -= pages_->pages().bytes(pages_->pages().handle(id));
}

// Garbage collection: held memory is kept under a part of the limit.
void DeviceAllocator::collect_idle_pages() {
  if (held_bytes_ <= garbage_limit()) return;
  release_pages(nullptr, held_bytes_ - garbage_limit());
}

// At the end of the allocator: everything, live or not.
void DeviceAllocator::give_back_pages() noexcept {
  if (pages_ == nullptr) return;
  const auto quietly = [](const auto& call) {
    try {
      call();
    } catch (const CudaError&) {  // the device may be gone at exit; there is nobody left to tell
    }
  };
  if (!pages_->ranges().empty())
    quietly([&] { device_->synchronize(); });  // a GPU that was not used gets no context now
  for (HandleId id = 0; id < pages_->pages().handle_ids(); ++id) {
    const PhysicalHandle& handle = pages_->pages().handle(id);
    if (handle.memory == 0) continue;
    for (const View& view : handle.views) {
      quietly([&] { device_->unmap(view.address, pages_->pages().bytes(handle)); });
    }
    quietly([&] { device_->release(handle.memory); });
  }
  for (const Orphan& orphan : orphans_) {
    for (const Address view : orphan.views) quietly([&] { device_->unmap(view, orphan.bytes); });
    if (orphan.memory != 0) quietly([&] { device_->release(orphan.memory); });
  }
  for (const auto& [id, pool] : pools_) {
    for (const auto& [handle, saved] : pool->saved) spare_host_memory_.push_back(saved.host);
  }
  for (void* memory : spare_host_memory_) quietly([&] { device_->host_free(memory); });
  for (const auto& entry : pages_->ranges()) {
    quietly([&] { device_->unreserve(entry.second.base, entry.second.bytes); });
  }
}

}  // namespace cachalot
