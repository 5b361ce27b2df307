#include "device_allocator.h"

#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "observe/allocation_stack.h"

namespace cachalot {

namespace {

const Context kNoContext;

}  // namespace

DeviceAllocator::DeviceAllocator(std::shared_ptr<Device> device, PageMap& page_map, const Options& options)
    : heap_(device->index(), page_map),
      device_(std::move(device)),
      index_(device_->index()),
      immortal_streams_(options.immortal_streams),
      frees_(*device_, mutex_, [this](Block& block) { finish_waiting(block); }),
      exported_(*device_),
      imported_(*device_) {
  choose_heap(options);
  apply(options);
  counters_.max_split_size = options.max_split_size == Options::kUnlimited ? -1 : as_signed(options.max_split_size);
  if (options.per_process_memory_fraction < 1) set_memory_fraction(options.per_process_memory_fraction);
}

DeviceAllocator::~DeviceAllocator() {
  if (caches_ != nullptr) caches_->forget_threads();
  caches_.reset();
  give_back_pages();
  for (const auto& [address, head] : heap_.segments()) {
    if (pages_ != nullptr && pages_->holds(address)) continue;
    std::size_t bytes = 0;
    for (const Block* block = head; !block->is_edge(); block = block->next) bytes += block->size();
    try {
      give_back({address, bytes, head->arena, nullptr});
    } catch (const CudaError&) {  // the device may be gone at exit; there is nobody left to tell
    }
  }
  destroy_events();
}

void DeviceAllocator::destroy_events() noexcept {
  for (const auto& [stream, clock] : clocks_) {
    while (clock->has_events()) spare_events_.push_back(clock->oldest_is_done());
  }
  for (const Event event : spare_events_) {
    try {
      device_->event_destroy(event);
    } catch (const CudaError&) {
    }
  }
}

// --- malloc ---------------------------------------------------------------------------------------------------------

// Frees that are done come first, so that their memory can serve this request. As PyTorch, not while a graph is
// captured (events must not be queried then), nor for a thread that allocates into a pool.
void DeviceAllocator::prepare(Stream stream) {
  if ((rare_ & kWaitingFrees) == 0 || capturing() || redirect_of(stream) != nullptr) return;
  queue_frees_deferred_in_capture();
  frees_.reclaim();
}

CACHALOT_FAST_PATH void* DeviceAllocator::allocate(std::size_t bytes, Stream stream, const Context& context) {
  if (bytes - 1 >= kMaxRequestBytes - 1) [[unlikely]] {  // none, or too many
    if (bytes == 0) return nullptr;
    refuse(bytes);
  }
  const Lock lock(mutex_);
  if (rare_ != 0) [[unlikely]] {
    if ((rare_ & kBypassed) != 0) return allocate_uncached(bytes);
    if ((rare_ & kCaching) != 0) come_to_heap();
    prepare(stream);
  }
  const Request request = make_request(bytes, stream);
  Block* block = find_free(request);
  if (block == nullptr) [[unlikely]]
    block = &obtain(request, context);
  return hand_out(*block, request.rounded, bytes, splits(*block, request), context);
}

void* DeviceAllocator::allocate_from_heap(std::size_t bytes, Stream stream) {
  if (contexts_.load(std::memory_order_relaxed) != HistoryOptions::Contexts::never) [[unlikely]] {
    return allocate_with_context(bytes, stream);
  }
  return allocate(bytes, stream, kNoContext);
}

// The recorder is called before the lock is taken: it may be slow.
void* DeviceAllocator::allocate_with_context(std::size_t bytes, Stream stream) {
  const AllocationStack stack(takes_stacks_.load(std::memory_order_relaxed));
  return allocate(bytes, stream, gather_context(HistoryOptions::Contexts::state));
}

// Off the fast path: allocate, but for where the block is looked for. Memory of the device's malloc is one piece always.
void* DeviceAllocator::allocate_contiguous(std::size_t bytes, Stream stream) {
  if (pages_ == nullptr || bytes == 0 || bytes >= kMaxRequestBytes) return allocate_from_heap(bytes, stream);
  const AllocationStack stack(takes_stacks_.load(std::memory_order_relaxed));
  const Context context = gather_context(HistoryOptions::Contexts::state);
  const Lock lock(mutex_);
  if ((rare_ & kBypassed) != 0) return allocate_uncached(bytes);
  if ((rare_ & kCaching) != 0) come_to_heap();
  prepare(stream);
  Request request = make_request(bytes, stream);
  request.contiguous = is_paged(request.pool());
  Block* block = find_in_arena(request);
  if (block == nullptr) block = &obtain(request, context);
  if (!request.contiguous) return hand_out(*block, request.rounded, bytes, splits(*block, request), context);
  const PageHeap::Stretch wanted = contiguous_part(*block, request);
  Block& part = pages_->set_apart(*block, wanted.begin, wanted.begin + wanted.bytes);
  return hand_out(part, request.rounded, bytes, /*split=*/false, context);
}

void DeviceAllocator::take_exactly(Block& block, std::size_t bytes) {
  hand_out(block, bytes, bytes, block.size() > bytes, kNoContext);
}

void DeviceAllocator::observe_alloc(Block& block, const InactiveSplit& split, const Context& context) {
  if (context) heap_.slab().detail(block).context = context;
  Change change = change_of(Change::Action::alloc, block, context);
  change.inactive_split_blocks = split.blocks;
  change.inactive_split_bytes = split.bytes;
  observe(std::move(change));
}

void DeviceAllocator::refuse(std::size_t bytes) {
  throw OutOfMemory(
      formatted("CUDA out of memory. Tried to allocate more than 1EB memory: {} bytes asked for on GPU {}, "
                "and no request may reach 1 EiB ({} bytes).",
                bytes, index_, kMaxRequestBytes),
      index_, bytes);
}

// --- free -----------------------------------------------------------------------------------------------------------

CACHALOT_FAST_PATH void DeviceAllocator::count_free_requested(Block& block, const Context& context) {
  const std::size_t size = block.size();
  counters_.free_requested(block.arena->pool.kind(), as_signed(size));
  if (is_oversize(size, options_)) [[unlikely]]
    counters_.oversize_allocation(-1);
  if ((rare_ & kObserved) != 0) [[unlikely]]
    observe(change_of(Change::Action::free_requested, block, context));
}

CACHALOT_FAST_PATH void DeviceAllocator::finish_free(Block& block, const Context& context) {
  if ((rare_ & (kObserved | kContexts)) != 0) [[unlikely]] {
    if ((rare_ & kObserved) != 0) return finish_observed_free(block, context);
    forget_context(block);
  }
  const PoolKind kind = block.arena->pool.kind();
  counters_.free_completed(kind, as_signed(block.requested));
  const InactiveSplit change = heap_.put_back(block);
  counters_.inactive_split(kind, change.blocks, change.bytes);
}

CACHALOT_FAST_PATH void DeviceAllocator::free_block(Block& block, const Context& context) {
  if (block.uses.head != nullptr) [[unlikely]] {
    free_later(block, context);
    return;
  }
  count_free_requested(block, context);
  finish_free(block, context);
}

bool DeviceAllocator::deallocate_to_heap(Block& block, const void* ptr) {
  if (contexts_.load(std::memory_order_relaxed) == HistoryOptions::Contexts::all) [[unlikely]] {
    return deallocate_with_context(block, ptr);
  }
  block.prefetch_neighbours();  // the lock is an exchange: no load after it begins before it is done
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) [[unlikely]]
    return false;
  if ((rare_ & kCaching) != 0) [[unlikely]]
    leave_caches(block);
  free_block(block, kNoContext);
  return true;
}

bool DeviceAllocator::deallocate_with_context(Block& block, const void* ptr) {
  const Context context = gather_context(HistoryOptions::Contexts::all);
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) return false;
  if ((rare_ & kCaching) != 0) leave_caches(block);
  free_block(block, context);
  return true;
}

// Without asking the device: the handle is the block's own stream's, unless that is known to be no more, or each thread means
// another one by it.
bool DeviceAllocator::is_known_as_own(const Block& block, Stream stream) {
  const Arena& arena = *block.arena;
  return stream == arena.stream.handle && !is_per_thread(stream) && !arena.has_ended.load(std::memory_order_relaxed);
}

bool DeviceAllocator::deallocate(Block& block, const void* ptr, std::size_t bytes, Stream stream) {
  if (caches_are_open() && deallocate_through_cache(block, ptr, bytes, stream)) return true;
  using Contexts = HistoryOptions::Contexts;
  Context context;
  if (contexts_.load(std::memory_order_relaxed) == Contexts::all) [[unlikely]]
    context = gather_context(Contexts::all);
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) [[unlikely]]
    return false;
  CACHALOT_REQUIRE(bytes == block.requested_bytes(),
                   "size {} does not match the allocation at {}: {} bytes were asked for", bytes, ptr,
                   block.requested_bytes());
  if ((rare_ & kCaching) != 0) leave_caches(block);
  if (!is_known_as_own(block, stream)) [[unlikely]] {
    const KnownStream last_user = identify(stream);
    if (last_user != block.arena->stream) frees_.add_use(block, last_user);
  }
  free_block(block, context);
  return true;
}

void DeviceAllocator::put_back_live(Block& block) { free_block(block, kNoContext); }

// The block's last uses on other streams must finish first. While a graph is captured no event is recorded for them:
// that is made up for when no capture is underway any more.
void DeviceAllocator::free_later(Block& block, const Context& context) {
  if (capturing()) {
    frees_deferred_in_capture_.push_back(&block);
  } else {
    block.size_and_flags |= Block::kFreeing;
    try {
      frees_.wait_for_uses(block);
    } catch (const DeviceReset&) {
      block.size_and_flags &= ~std::uint64_t{Block::kFreeing};
      frees_.forget_uses(block);  // destructors must be able to free it
      count_free_requested(block, context);
      return finish_free(block, context);
    } catch (...) {
      block.size_and_flags &= ~std::uint64_t{Block::kFreeing};
      throw;
    }
  }
  count_free_requested(block, context);
  start_waiting(block);
}

void DeviceAllocator::start_waiting(Block& block) {
  block.size_and_flags = block.size() | Block::kPending;
  counters_.starts_waiting(block.arena->pool.kind(), as_signed(block.size()));
  set_mode(kWaitingFrees, true);
}

void DeviceAllocator::finish_waiting(Block& block) {
  counters_.stops_waiting(block.arena->pool.kind(), as_signed(block.size()));
  set_mode(kWaitingFrees, !frees_.empty() || !frees_deferred_in_capture_.empty());
  finish_free(block, kNoContext);
}

void DeviceAllocator::forget_context(const Block& block) {
  if (BlockDetail* detail = heap_.slab().find_detail(block)) detail->context.reset();
}

void DeviceAllocator::finish_observed_free(Block& block, const Context& context) {
  Change change = change_of(Change::Action::free_completed, block, context);  // before the block may be merged away
  forget_context(block);
  counters_.free_completed(change.pool_kind, as_signed(block.requested));
  const InactiveSplit split = heap_.put_back(block);
  counters_.inactive_split(change.pool_kind, split.blocks, split.bytes);
  change.inactive_split_blocks = split.blocks;
  change.inactive_split_bytes = split.bytes;
  observe(std::move(change));
}

void DeviceAllocator::queue_frees_deferred_in_capture() {
  while (!frees_deferred_in_capture_.empty()) {
    Block* block = frees_deferred_in_capture_.back();
    frees_deferred_in_capture_.pop_back();
    try {
      frees_.wait_for_uses(*block);
    } catch (...) {
      frees_deferred_in_capture_.push_back(block);
      throw;
    }
  }
}

bool DeviceAllocator::record_stream(Block& block, const void* ptr, const KnownStream& stream) {
  const Lock lock(mutex_);
  if (!is_live(block, ptr)) return false;
  if (stream == block.arena->stream) return true;
  if ((rare_ & kCaching) != 0) leave_caches(block);
  frees_.add_use(block, stream);
  return true;
}

// --- caching off ----------------------------------------------------------------------------------------------------

void DeviceAllocator::set_caching_enabled(bool enabled) {
  const Lock lock(mutex_);
  set_mode(kBypassed, !enabled);
}

void* DeviceAllocator::allocate_uncached(std::size_t bytes) {
  const auto ask = [&] {
    const Unlocked unlocked(mutex_);
    return device_->malloc(bytes);
  };
  std::optional<Address> address = ask();
  if (!address && run_last_resort()) address = ask();
  if (!address) {
    throw OutOfMemory(
        formatted("CUDA out of memory. Tried to allocate {} on GPU {} with caching off.", format_bytes(bytes), index_),
        index_, bytes);
  }
  uncached_.insert(*address);
  return as_pointer(*address);
}

bool DeviceAllocator::deallocate_uncached(const void* ptr) {
  const Lock lock(mutex_);
  if (uncached_.erase(as_address(ptr)) == 0) return false;
  try {
    const Unlocked unlocked(mutex_);
    device_->free(as_address(ptr));
  } catch (...) {
    uncached_.insert(as_address(ptr));
    throw;
  }
  return true;
}

bool DeviceAllocator::is_uncached(const void* ptr) const {
  const Lock lock(mutex_);
  return uncached_.contains(as_address(ptr));
}

// --- options --------------------------------------------------------------------------------------------------------

void DeviceAllocator::apply(const Options& options) {
  const Lock lock(mutex_);
  options_ = options;
  if (pages_ != nullptr) options_.max_split_size = Options::kUnlimited;  // no block of the page heap is kept whole
  rounds_by_divisions_ = rounds_by_divisions(options);
  use_thread_caches(options.thread_cache.value_or(pages_ != nullptr));
  update_aging();
}

void DeviceAllocator::require_fraction(double fraction) {
  CACHALOT_REQUIRE(fraction >= 0 && fraction <= 1, "invalid fraction: {}. Please set within [0, 1].", fraction);
}

void DeviceAllocator::set_memory_fraction(double fraction) {
  require_fraction(fraction);
  const std::size_t total = device_->properties().total_bytes;
  const Lock lock(mutex_);
  fraction_ = fraction;
  limit_ = fraction == 1 ? kNoLimit : static_cast<std::size_t>(fraction * static_cast<double>(total));
  update_aging();
}

// Garbage collection acts only where there is a limit to keep away from.
void DeviceAllocator::update_aging() {
  const bool on = limit_ != kNoLimit && options_.garbage_collection_threshold > 0;
  if (on) heap_.start_keeping_ages();
  set_mode(kAging, on);
}

double DeviceAllocator::memory_fraction() const {
  const Lock lock(mutex_);
  return fraction_;
}

}  // namespace cachalot
