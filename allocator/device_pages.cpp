// DeviceAllocator over the page heap: what happens when no free block serves a request, and how pages come and go.
//
// The order, each step only if those before it failed:
//   for a small request, a small free piece or a page of what is free beside large blocks;
//   free blocks of other streams that it may use already;
//   the best of: idle pages brought together; new memory; either after this stream waits for others (cross_stream:wait);
//   where there is no new memory: idle pages, after such waits, too (cross_stream:scarce and wait);
//   what pools offered (use_on_oom);
//   recovery: wait for the device, after which every idle page will do, give back what pools without users hold, again;
//   and once more when the default pools, too, have given back what they can.
// With remap_slack, new memory comes first while so much more may be held than was ever live.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/mutex.h"
#include "device_allocator.h"
#include "pages/placement.h"

namespace cachalot {

namespace {

// Larger handles take fewer driver calls, smaller ones move more freely. So they are large while memory is plenty, and the
// smaller the less of it is left, down to a page. Measured: docs/page_heap.md.
constexpr std::size_t kLargestHandle = std::size_t{32} << 20;
constexpr std::size_t kHandlesInTheRest = 4096;
// A stream's wait for another costs the device a little of its concurrency: in pages of BackingPlan::cost.
constexpr double kWaitCost = 0.05;
// Of a stream, not yet done: more tell its progress more finely.
constexpr std::size_t kMostEvents = 8;
// Addresses reserved at once for a private pool.
constexpr std::size_t kPrivateRange = std::size_t{8} << 30;

}  // namespace

// --- which heap ---------------------------------------------------------------------------------------------------------

void DeviceAllocator::choose_heap(const Options& options) {
  if (!uses_pages(options)) return;
  const DeviceProperties device = device_->properties();
  if (!device.virtual_memory) {
    print_error("cachalot: GPU {} has no virtual memory management: heap:segments is used instead of heap:pages\n",
                index_);
    return;
  }
  CACHALOT_REQUIRE(std::has_single_bit(device.page_bytes), "GPU {} has pages of {} bytes: not a power of two", index_,
                   device.page_bytes);
  CACHALOT_REQUIRE(options.page_size % device.page_bytes == 0, "page_size_mb:{}: GPU {} has pages of {} bytes",
                   options.page_size >> 20, index_, device.page_bytes);
  pages_ = std::make_unique<PageHeap>(heap_, device.page_bytes);
  placement_ = std::make_unique<Placement>(*pages_);
  heap_.expect_ranges();
  splits_everything_ = true;
}

// --- streams ----------------------------------------------------------------------------------------------------------

StreamClock& DeviceAllocator::clock_of(const KnownStream& stream) {
  std::unique_ptr<StreamClock>& clock = clocks_[stream.key];
  if (!clock) clock = std::make_unique<StreamClock>(stream);
  return *clock;
}

void DeviceAllocator::end_epoch(StreamClock& clock) {
  clock.end_epoch();
  for (const BlockPool& pool : default_pools_) {
    if (Arena* arena = pool.find(clock.stream().key)) arena->epoch = clock.epoch();
  }
}

// The epoch ends first: what becomes free while the event is recorded is not taken to be before it.
// False: the device refused, as for a stream that is no more. Then only a wait for the device says when its work is done.
bool DeviceAllocator::record_epoch(StreamClock& clock) {
  if (captures(clock.stream().handle)) return false;  // whether anybody was told or not
  const std::uint32_t epoch = clock.epoch();
  end_epoch(clock);
  try {
    clock.recorded(record_event(clock.stream()), epoch);
    return true;
  } catch (const CudaError&) {
    return false;
  }
}

bool DeviceAllocator::captures(Stream stream) {
  const Unlocked unlocked(mutex_);
  return device_->capture_status(stream).capturing;
}

Event DeviceAllocator::record_event(const KnownStream& stream) {
  Event event = nullptr;
  if (!spare_events_.empty()) {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  try {
    const Unlocked unlocked(mutex_);
    if (event == nullptr) event = device_->event_create();
    device_->event_record(event, stream.handle);
  } catch (...) {
    if (event != nullptr) spare_events_.push_back(event);
    throw;
  }
  return event;
}

// Asks how far streams have come, and leaves an event for the next time. One stream alone orders all its memory by itself
// and needs none, unless it has left mappings that are to go some day.
void DeviceAllocator::refresh_clocks(Request request) {
  if (capturing() || (clocks_.size() < 2 && !pages_->pages().has_aliases())) return;
  for (const auto& [key, clock] : clocks_) {
    ask_events(*clock);
    if (clock->events() < kMostEvents && may_record(*clock, request)) record_epoch(*clock);
  }
}

void DeviceAllocator::ask_events(StreamClock& clock) {
  clock.request_comes();
  while (clock.has_events() && event_is_done(clock.oldest_event())) {
    spare_events_.push_back(clock.oldest_is_done());
  }
}

// A stream that is not immortal may be destroyed by now, unless it is the one that allocates. An event on the legacy default
// stream waits for all blocking streams, and they wait for it: programs with streams of their own have such streams, PyTorch
// has none, and even there the event is for memory that others want.
bool DeviceAllocator::may_record(const StreamClock& clock, Request request) const {
  const StreamKey stream = clock.stream().key;
  if (clock.has_ended()) return false;
  if (stream == request.stream().key) return true;
  if (!immortal_streams_ || !stream.is_immortal()) return false;
  return !is_legacy(clock.stream().handle) || owns_idle_pages(stream);
}

// Which requests of other streams may use.
bool DeviceAllocator::owns_idle_pages(StreamKey stream) const {
  return std::any_of(std::begin(default_pools_), std::end(default_pools_), [&](const BlockPool& pool) {
    const Arena* const arena = pool.find(stream);
    return arena != nullptr && arena->bins.best_fit(pages_->page_bytes()) != nullptr;
  });
}

bool DeviceAllocator::event_is_done(Event event) {
  const Unlocked unlocked(mutex_);
  return device_->event_query(event);
}

// From here on the stream may use what became free on another up to an epoch, which an event covers.
void DeviceAllocator::wait_for_stream(StreamClock& waiter, const StreamClock& other, std::uint32_t epoch) {
  const StreamClock::Mark mark = other.earliest_covering(epoch);
  {
    const Unlocked unlocked(mutex_);
    device_->stream_wait(waiter.stream().handle, mark.event);
  }
  waiter.waits_for(other, mark.epoch);
}

// Keeps the number of mappings within max_mappings: those that pages have left go, at least a quarter of them at once.
void DeviceAllocator::drop_stale_views() {
  const PhysicalPages& pages = pages_->pages();
  if (pages.live_views() <= options_.max_mappings || capturing() || !pages.has_aliases()) return;
  drop_done_views();
  if (pages.live_views() <= options_.max_mappings) return;
  finish_all_work();
  drop_done_views();
}

void DeviceAllocator::drop_done_views() {
  PhysicalPages& pages = pages_->pages();
  const std::size_t enough = options_.max_mappings - options_.max_mappings / 4;
  for (HandleId id = 0; id < pages.handle_ids() && pages.live_views() > enough; ++id) {
    const std::vector<View> views = pages.handle(id).views;
    for (const View& view : views) {
      if (!PhysicalPages::may_unmap(view) || pages_->range_of(view.address)->owner != nullptr) continue;
      const std::size_t bytes = pages.bytes(pages.handle(id));
      forget_view(id, view.address);
      try {
        const Unlocked unlocked(mutex_);
        device_->unmap(view.address, bytes);
      } catch (const CudaError&) {
        adopt_orphan({0, bytes, {view.address}});
      }
    }
  }
}

// Waits for the device: after that, what is free belongs to nobody and may be unmapped.
// What is freed meanwhile is of later epochs.
void DeviceAllocator::finish_all_work() {
  std::vector<std::pair<StreamClock*, std::uint32_t>> waited_for;  // each with the epoch that ends before the wait
  for (const auto& [stream, clock] : clocks_) {
    if (!clock->has_ended()) end_epoch(*clock);
    waited_for.emplace_back(clock.get(), clock->epoch() - 1);
  }
  {
    const Unlocked unlocked(mutex_);
    device_->synchronize();
  }
  for (const auto& [clock, epoch] : waited_for) {
    while (clock->has_events()) spare_events_.push_back(clock->oldest_is_done());
    clock->everything_is_done(epoch);
  }
}

// Which free blocks of an arena may serve a stream: in private pools, and with cross_stream:off, its own alone.
Reach DeviceAllocator::reach_into(const Arena& arena, const KnownStream& stream, Whose whose) const {
  if (arena.stream == stream) return {Reach::Kind::all};
  const bool off = options_.cross_stream == CrossStream::off && !arena.has_ended.load(std::memory_order_relaxed);
  if (arena.pool.owner() != nullptr || off) return {Reach::Kind::none};
  const auto clock = clocks_.find(stream.key);
  const auto other = clocks_.find(arena.stream.key);
  if (clock == clocks_.end() || other == clocks_.end()) return {Reach::Kind::none};
  return whose == Whose::ordered ? clock->second->reach_into(*other->second)
                                 : clock->second->reach_by_waiting(*other->second);
}

bool DeviceAllocator::may_take(const Block& block, const KnownStream& stream, Whose whose) const {
  return reach_into(*block.arena, stream, whose).covers(block.bin.epoch);
}

// --- a block for a request --------------------------------------------------------------------------------------------

Block* DeviceAllocator::obtain_from_pages(Request request, const Context& context) {
  const SlowSection slow(*this);
  require_awake(request.pool().owner());
  const bool is_small = request.pool().kind() == PoolKind::small;
  const bool must_grow = is_small && !drain_caches_or_grow();
  if (!is_small) drain_caches();                     // a block in a cache keeps its page from moving
  if (Block* block = search(request)) return block;  // that helped, or another thread grew or freed meanwhile
  if (has_many_arenas()) forget_streams_without_memory();
  return_whole_pages();
  if (Block* block = search_fragments(request)) return block;
  StreamClock& clock = clock_of(request.stream());
  catch_up(request);

  Block* block = search(request);  // freed while the lock was let go
  if (block != nullptr) return block;
  if (must_grow || may_create(request)) {
    Request wanted = request;  // in a step that ends the need: not a block, but the page about it
    if (must_grow) wanted.rounded = round_up(wanted.rounded, pages_->page_bytes());
    block = carry_out(best_plan(wanted, Whose::ordered, {.may_move = false}), wanted, context);
  }
  if (block == nullptr) block = take_page(request);
  if (block == nullptr) block = take_over(request);
  if (block == nullptr) block = bring_together_or_create(request, clock, context);
  if (block == nullptr && drain_caches()) {
    block = search(request);
    if (block == nullptr) block = bring_together_or_create(request, clock, context);
  }
  if (block == nullptr) block = borrow_from_pools(request);
  if (block != nullptr || capturing()) return block;

  const bool synchronized = synchronize_frees(nullptr);
  if (synchronized) block = search(request);
  if (block != nullptr) return block;
  wait_and_give_back(request);
  if ((block = search(request)) != nullptr) return block;
  if ((block = take_over(request)) != nullptr) return block;
  if ((block = bring_together_or_create(request, clock, context)) != nullptr) return block;
  release_default_pools();  // what is idle there cannot come to this request
  if ((block = search(request)) != nullptr) return block;
  return bring_together_or_create(request, clock, context);
}

// What is to be known and done before anything is planned. Lets the lock go.
void DeviceAllocator::catch_up(Request request) {
  request.arena->epoch = clock_of(request.stream()).epoch();  // if it has no memory yet, it missed the epochs until now
  if ((rare_ & kAging) != 0 && !capturing()) collect_idle_pages();
  refresh_clocks(request);
  drop_stale_views();
}

// The recovery of a request that cannot be served: afterwards everything idle may serve it.
void DeviceAllocator::wait_and_give_back(Request request) {
  finish_all_work();
  drain_caches();  // threads freed meanwhile
  release_unused_pools({});
  free_orphans();
  count_retry(request.pool().kind());
}

// A small request may lie in what is left of a page beside large blocks.
Block* DeviceAllocator::search_fragments(Request request) {
  if (request.pool().kind() != PoolKind::small) return nullptr;
  Block* block = arena_of(large_pool_beside(request), request.stream()).bins.best_fit(request.rounded);
  return block != nullptr && block->size() < pages_->page_bytes() ? block : nullptr;
}

// Of the smallest free block that holds one, a page for small blocks (or what pages it takes): no driver call.
Block* DeviceAllocator::take_page(Request request) {
  if (request.pool().kind() != PoolKind::small) return nullptr;
  const std::size_t page = pages_->page_bytes();
  const std::size_t bytes = round_up(request.rounded, page);
  Block* found = nullptr;
  arena_of(large_pool_beside(request), request.stream()).bins.for_each_of_at_least(bytes, [&](Block& block) {
    if (found == nullptr && round_up(block.address, page) + bytes <= block.end()) found = &block;
  });
  if (found == nullptr) return nullptr;
  const Address begin = round_up(found->address, page);
  return &pages_->hand_over(*found, begin, begin + bytes, *request.arena);
}

// Pages of large blocks that served small ones, and do no more.
void DeviceAllocator::return_whole_pages() {
  const std::size_t page = pages_->page_bytes();
  for_each_pool([&](const BlockPool& pool) {
    if (pool.kind() != PoolKind::small || !is_paged(pool)) return;
    BlockPool& large_pool = pool.owner() != nullptr ? pool.owner()->large : large();
    for (const auto& arena : pool.arenas()) {
      if (arena->bins.best_fit(page) == nullptr) continue;
      std::vector<Block*> whole;
      arena->bins.for_each_of_at_least(page, [&](Block& block) {
        const bool holds_page = round_up(block.address, page) + page <= block.end();
        if (holds_page && pages_->range_of(block.address)->kind == PoolKind::large) whole.push_back(&block);
      });
      for (Block* block : whole) {
        Arena& to = arena_of(large_pool, arena->stream);
        pages_->hand_over(*block, round_up(block->address, page), round_down(block->end(), page), to);
      }
    }
  });
}

BlockPool& DeviceAllocator::large_pool_beside(Request request) {
  PrivatePool* const owner = request.pool().owner();
  return owner != nullptr ? owner->large : large();
}

// The best fit among other streams' free blocks: what the request needs of it becomes its stream's own.
Block* DeviceAllocator::find_to_take_over(Request request, Whose whose) const {
  if (request.pool().owner() != nullptr) return nullptr;
  Block* best = nullptr;
  for (const auto& arena : request.pool().arenas()) {
    if (arena.get() == request.arena) continue;
    Block* block = arena->bins.best_fit(request.rounded);
    if (block == nullptr || !may_take(*block, request.stream(), whose)) continue;
    if (best == nullptr || block->size() < best->size()) best = block;
  }
  return best;
}

Block* DeviceAllocator::take_over(Request request) {
  Block* best = find_to_take_over(request, Whose::ordered);
  if (best == nullptr) return nullptr;
  return &pages_->hand_over(*best, best->address, best->address + request.rounded, *request.arena);
}

std::size_t DeviceAllocator::usual_handle_bytes() const {
  const std::size_t page = pages_->page_bytes();
  const std::size_t most = std::min(limit_, device_->properties().total_bytes);
  const std::size_t left = most - std::min(most, held_bytes_);
  return std::max(page, round_down(std::min(kLargestHandle, left / kHandlesInTheRest), page));
}

// Within the rules, and those that hold for the request anyway.
std::optional<BackingPlan> DeviceAllocator::best_plan(Request request, Whose whose, PlacementRules rules) {
  const bool is_private = request.pool().owner() != nullptr;
  rules.may_move = rules.may_move && !is_private;  // what a graph uses stays where the graph knows it
  rules.may_drop = !is_private && !capturing();
  rules.handle_bytes = options_.page_size != 0 ? options_.page_size : usual_handle_bytes();
  const PoolPair pools = pools_of(request.pool().owner());
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas()) arena->reach = reach_into(*arena, request.stream(), whose);
  }
  return placement_->best(*request.arena, pools, request.rounded, rules);
}

// By what is best. With cross_stream:wait the stream rather waits for others than asks the driver for anything, if that saves
// more than it costs. Should the device or the limit refuse new memory, what can be had without.
Block* DeviceAllocator::bring_together_or_create(Request request, StreamClock& clock, const Context& context) {
  if (request.rounded > device_->properties().total_bytes) return nullptr;
  std::optional<BackingPlan> plan = best_plan(request, Whose::ordered);
  const bool may_gain = !plan || plan->calls_driver();
  if (may_gain && options_.cross_stream == CrossStream::wait &&
      wait_for_a_better(request, clock, plan, {.goes_on = true})) {
    if (Block* block = take_over(request)) return block;
    plan = best_plan(request, Whose::ordered);
  }
  if (!plan) {
    reserve_range(request);
    plan = best_plan(request, Whose::ordered);
  }
  Block* block = carry_out(plan, request, context);
  if (block != nullptr || !plan || plan->new_pages == 0) return block;
  return bring_together(request, clock, context);
}

// Without new memory, of which there is none.
Block* DeviceAllocator::bring_together(Request request, StreamClock& clock, const Context& context) {
  constexpr PlacementRules kNoGrowth{.may_grow = false};
  if (Block* block = carry_out(best_plan(request, Whose::ordered, kNoGrowth), request, context)) return block;
  if (!wait_for_a_better(request, clock, std::nullopt, kNoGrowth)) return nullptr;
  if (Block* block = take_over(request)) return block;
  return carry_out(best_plan(request, Whose::ordered, kNoGrowth), request, context);
}

bool DeviceAllocator::may_wait_for_others(Request request) const {
  const bool waits = options_.cross_stream == CrossStream::wait || options_.cross_stream == CrossStream::scarce;
  return waits && request.pool().owner() == nullptr && clocks_.size() > 1 && !capturing();
}

// Waits for the streams whose memory would serve better than the plan, within the rules; false: none would, or may be waited
// for. rules.goes_on: the lock was not let go since the plan was made.
bool DeviceAllocator::wait_for_a_better(Request request, StreamClock& clock, const std::optional<BackingPlan>& plan,
                                        PlacementRules rules) {
  if (!may_wait_for_others(request)) return false;
  std::vector<std::pair<const StreamClock*, std::uint32_t>> others;  // each with the last epoch that is wanted of it
  const auto want = [&](const Block& block) {
    const StreamClock* const other = &clock_of(block.arena->stream);
    const auto known =
        std::find_if(others.begin(), others.end(), [&](const auto& each) { return each.first == other; });
    if (known == others.end()) {
      others.emplace_back(other, block.bin.epoch);
    } else if (Reach::has_reached(block.bin.epoch, known->second)) {
      known->second = block.bin.epoch;
    }
  };
  if (const Block* block = find_to_take_over(request, Whose::awaitable)) {
    if (may_take(*block, clock.stream(), Whose::ordered)) return true;  // it has become so while the lock was let go
    want(*block);
  } else {
    if (plan) rules.cost_below = plan->cost - kWaitCost / 2;  // it must save a wait; half of one, lest rounding decides
    const auto better = best_plan(request, Whose::awaitable, rules);
    if (!better) return false;
    for (const Block* taken : pages_->blocks_of(*better)) {
      if (!may_take(*taken, clock.stream(), Whose::ordered)) want(*taken);
    }
    if (plan && better->cost + static_cast<double>(others.size()) * kWaitCost >= plan->cost) return false;
  }
  for (const auto& [other, epoch] : others) wait_for_stream(clock, *other, epoch);
  return !others.empty();
}

// Whether new memory comes before idle pages are brought together: remap_slack.
bool DeviceAllocator::may_create(Request request) {
  if (options_.remap_slack == 0) return false;
  gather_all();
  const auto live = static_cast<std::size_t>(counters_.allocated_bytes()) + request.rounded;
  const std::size_t most = std::max(live, static_cast<std::size_t>(counters_.max_allocated_bytes()));
  const double allowed = static_cast<double>(most) * (1 + options_.remap_slack);
  return static_cast<double>(held_bytes_ + request.rounded) <= allowed;
}

// --- addresses --------------------------------------------------------------------------------------------------------

// Addresses are plentiful: as many as the device has memory (fewer for a private pool, of which there may be hundreds), and
// more when these are used up.
void DeviceAllocator::reserve_range(Request request) {
  const std::size_t usual = request.pool().owner() == nullptr ? device_->properties().total_bytes : kPrivateRange;
  const std::size_t bytes = round_up(std::max(usual, 2 * request.rounded), pages_->page_bytes());
  std::optional<Address> base;
  {
    const Unlocked unlocked(mutex_);
    base = device_->reserve(bytes);
  }
  if (!base) return;
  try {
    pages_->add_range(*base, bytes, request.pool().kind(), request.pool().owner());
  } catch (...) {
    const Unlocked unlocked(mutex_);
    device_->unreserve(*base, bytes);
    throw;
  }
}

// Of a pool that is going; all its memory is gone.
void DeviceAllocator::release_ranges(const PrivatePool& pool) {
  if (pages_ == nullptr) return;
  pages_->remove_ranges(&pool, [this](const PageRange& range) {
    const Unlocked unlocked(mutex_);
    device_->unreserve(range.base, range.bytes);
  });
}

}  // namespace cachalot
