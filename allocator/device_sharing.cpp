// DeviceAllocator and the world around its device: allocations that lie in one handle, memory shared with other processes,
// and memory that other GPUs may use.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/mutex.h"
#include "device/cuda_codes.h"
#include "device_allocator.h"

namespace cachalot {

// --- allocations in one handle ----------------------------------------------------------------------------------------

// As find_free, for either kind of request.
Block* DeviceAllocator::find_in_arena(Request request) {
  return request.contiguous ? find_contiguous(request, *request.arena, Whose::ordered) : find_free(request);
}

// The smallest free block of which a part that suffices lies in one handle.
Block* DeviceAllocator::find_contiguous(Request request, const Arena& arena, Whose whose) const {
  Block* found = nullptr;
  if (!is_paged(arena.pool)) return nullptr;  // a pool that lends, with memory from a provider
  arena.bins.for_each_of_at_least(request.rounded, [&](Block& block) {
    if (found != nullptr || !may_take(block, request.stream(), whose)) return;
    if (pages_->room_in_one_handle(block, may_split(arena.pool) ? request.rounded : block.size())) found = &block;
  });
  return found;
}

// What a request takes of a block that was found or made for it; all of it in a pool that does not split.
PageHeap::Stretch DeviceAllocator::contiguous_part(const Block& block, Request request) const {
  const bool whole = !may_split(block.arena->pool);
  if (whole && pages_->room_in_one_handle(block, block.size())) return {block.address, block.size()};
  return {*pages_->room_in_one_handle(block, request.rounded), request.rounded};
}

Block* DeviceAllocator::find_contiguous(Request request, Whose whose) const {
  Block* found = find_contiguous(request, *request.arena, whose);
  for (const auto& arena : request.pool().arenas()) {
    if (found == nullptr) found = find_contiguous(request, *arena, whose);
  }
  return found;
}

// Of another stream, if it must be: after a wait for it, which costs less than new memory.
Block* DeviceAllocator::search_contiguous(Request request) {
  Block* block = find_contiguous(request, Whose::ordered);
  if (block == nullptr && options_.cross_stream == CrossStream::wait && may_wait_for_others(request)) {
    const Block* other = find_contiguous(request, Whose::awaitable);
    if (other != nullptr) {
      wait_for_stream(clock_of(request.stream()), clock_of(other->arena->stream), other->bin.epoch);
    }
    block = find_contiguous(request, Whose::ordered);
  }
  if (block == nullptr || block->arena == request.arena) return block;
  const PageHeap::Stretch part = contiguous_part(*block, request);
  return &pages_->hand_over(*block, part.begin, part.begin + part.bytes, *request.arena);
}

Block* DeviceAllocator::search_or_create_contiguous(Request request, const Context& context) {
  if (Block* block = search_contiguous(request)) return block;
  if (Block* block = take_page(request)) return block;
  if (request.rounded > device_->properties().total_bytes) return nullptr;
  std::optional<BackingPlan> plan = pages_->plan_handle(*request.arena, request.rounded);
  if (!plan) {
    reserve_range(request);
    plan = pages_->plan_handle(*request.arena, request.rounded);
  }
  return carry_out(plan, request, context);
}

// As obtain_from_pages; but no pages can be brought together, only one handle be found or made.
Block* DeviceAllocator::obtain_contiguous(Request request, const Context& context) {
  const SlowSection slow(*this);
  require_awake(request.pool().owner());
  drain_caches();
  return_whole_pages();
  catch_up(request);
  Block* block = search_or_create_contiguous(request, context);
  if (block == nullptr) block = borrow_from_pools(request);
  if (block != nullptr || capturing()) return block;
  if (synchronize_frees(nullptr)) block = search_contiguous(request);
  if (block != nullptr) return block;
  wait_and_give_back(request);
  if ((block = search_or_create_contiguous(request, context)) != nullptr) return block;
  release_default_pools();
  return search_or_create_contiguous(request, context);
}

// --- sharing with other processes -------------------------------------------------------------------------------------

std::optional<std::size_t> DeviceAllocator::handle_count(const Block& block, const void* ptr) const {
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) return std::nullopt;
  if (pages_ == nullptr || !pages_->holds(block.address)) return 1;
  return pages_->views_of(block.address, block.end()).size();
}

std::optional<SharedMemory> DeviceAllocator::share(const Block& block, const void* ptr) {
  const std::optional<Segment> segment = base_allocation(block, ptr);
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  if (!segment || !is_live(block, ptr)) return std::nullopt;
  require_awake(block.arena->pool.owner(), "shared");
  SharedMemory memory;
  memory.bytes = block.size();
  if (pages_ == nullptr || !pages_->holds(block.address)) {
    memory.offset = block.address - segment->base;
    const Unlocked unlocked(mutex_);
    memory.segment = device_->ipc_export(segment->base);
    return memory;
  }
  const std::vector<PageHeap::ShownHandle> views = pages_->views_of(block.address, block.end());
  memory.offset = block.address - views.front().at;
  for (const PageHeap::ShownHandle& view : views) {
    const PhysicalHandle& handle = pages_->pages().handle(view.handle);
    const MemoryHandle physical = handle.memory;
    const std::size_t bytes = pages_->pages().bytes(handle);
    const Unlocked unlocked(mutex_);
    const ExportedHandles::Export& exported = exported_.of(physical);
    memory.handles.push_back({exported.handle, bytes, exported.number});
  }
  return memory;
}

Address DeviceAllocator::open_shared(const SharedMemory& memory) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  Address base = 0;
  call_or_recover([&] { base = imported_.open(memory, peers_); }, "open shared memory", memory.bytes);
  return base;
}

// Calls the driver, which may need memory for its tables: should it have none, once more after what can be given back was.
void DeviceAllocator::call_or_recover(const std::function<void()>& call, const char* purpose, std::size_t bytes) {
  const auto try_once = [&] {
    const Unlocked unlocked(mutex_);
    return have_memory(call);
  };
  if (try_once()) return;
  if (!capturing()) {
    recover_without_request();
    if (try_once()) return;
  }
  throw OutOfMemory(formatted("GPU {} has no memory left to {} ({})", index_, purpose, format_bytes(bytes)), index_,
                    bytes);
}

// During a capture nothing may be waited for nor unmapped: what was closed then goes with the next that is closed.
bool DeviceAllocator::close_shared(Address base) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  if (!imported_.mark_unused(base)) return false;
  if (capturing()) return true;
  const Unlocked unlocked(mutex_);
  device_->synchronize();
  imported_.close_unused();
  return true;
}

// --- other GPUs -------------------------------------------------------------------------------------------------------

void DeviceAllocator::enable_access_to(int peer) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  call_or_recover([&] { device_->enable_peer_access(peer); }, "use another GPU's memory", 0);
}

void DeviceAllocator::open_to(int peer) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) return;
  std::vector<int> peers = peers_;
  peers.push_back(peer);
  const auto open = [&] {  // what recovery gives back is mapped no more
    for (const AddressRange& range : pages_ ? pages_->mapped_addresses() : std::vector<AddressRange>()) {
      device_->set_access(range.address, range.bytes, peers);
    }
    imported_.open_to(peers);
  };
  call_or_recover(open, "give another GPU access to its memory", held_bytes_);
  peers_ = std::move(peers);
}

}  // namespace cachalot
