// The page heap's search of memory for one request that no free block serves.
//
// Its rungs, each tried if those before it failed:
//   memory that is reserved for all streams;
//   for a small request, a small free piece or a page of free memory beside large blocks;
//   free blocks of other streams that it may use already;
//   plain memory of the stream, which is there already;
//   the cheapest of: idle pages brought together; new memory; either of them after this stream waits for others
//     (cross_stream:wait);
//   if there is no new memory: idle pages, also after such waits (cross_stream:scarce and wait);
//   memory that pools offered (use_on_oom);
//   recovery, which waits for the end of work: the work before single frees, and that of streams with idle memory, until what
//     became usable serves; then all work of the device, after which every idle page serves; memory that pools without users
//     gave back;
//   and at last memory that the default pools gave back.
// With remap_slack, which several streams have by default, new memory comes before idle pages while held memory is within that
// share above the peak of live memory.

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "growth/page_growth.h"

CACHALOT_BEGIN

namespace {

// The cost of a wait of one stream for another, which reduces the concurrency on the device a little. In pages, as
// BackingPlan::cost.
constexpr double kWaitCost = 0.05;
// remap_slack with several streams: its limit (decision 0140).
constexpr double kMostSlackOfStreams = 0.1;

}  // namespace

class PageGrowth::Search {
 public:
  Search(PageGrowth& heap, Request request, const Context& context)
      : heap_(heap),
        request_(request),
        context_(context),
        state_(heap.state_),
        clocks_(heap.clocks_),
        caches_(heap.caches_),
        recovery_(heap.recovery_),
        pages_(heap.pages_),
        spare_(heap.spare_),
        driver_(heap.driver_) {}

  Block* anywhere(Growing& growing) CACHALOT_GROWING;
  Block* in_one_handle(Growing& growing) CACHALOT_GROWING;

 private:
  // Rungs of anywhere().
  Block* find_after_draining(Growing& growing) CACHALOT_GROWING;
  Block* take_unused(Growing& growing) CACHALOT_GROWING;
  Block* find_beside(Growing& growing) CACHALOT_GROWING;
  Block* find_after_refresh(Growing& growing) CACHALOT_GROWING;
  Block* grow_first(Growing& growing) CACHALOT_GROWING;
  Block* take_page(Growing& growing) CACHALOT_GROWING;
  Block* take_from_other_streams(Growing& growing) CACHALOT_GROWING;
  Block* take_plain(Growing& growing) CACHALOT_GROWING;
  Block* remap_or_create(Growing& growing) CACHALOT_GROWING;
  Block* remap_after_draining(Growing& growing) CACHALOT_GROWING;
  Block* borrow(Growing& growing) CACHALOT_GROWING;
  Block* find_as_frees_complete(Growing& growing) CACHALOT_GROWING;
  Block* find_as_streams_finish(Growing& growing) CACHALOT_GROWING;
  Block* find_after_all_work(Growing& growing) CACHALOT_GROWING;
  Block* find_after_release(Growing& growing) CACHALOT_GROWING;
  // Rungs of in_one_handle().
  Block* find_or_create_handle(Growing& growing) CACHALOT_GROWING;
  Block* create_handle_after_draining(Growing& growing) CACHALOT_GROWING;
  Block* find_handle_as_frees_complete(Growing& growing) CACHALOT_GROWING;
  Block* create_handle_after_all_work(Growing& growing) CACHALOT_GROWING;
  Block* create_handle_after_release(Growing& growing) CACHALOT_GROWING;

  void refresh_before_planning(Growing& growing) CACHALOT_GROWING;
  void wait_and_release_unused(Growing& growing) CACHALOT_GROWING;
  Block* find_in_other_streams(Ordering ordering, const Held& held) const CACHALOT_HELD;
  Block* remap(Growing& growing) CACHALOT_GROWING;
  bool may_wait_for_others(const Held& held) const CACHALOT_HELD;
  bool wait_for_better_memory(const std::optional<BackingPlan>& plan, PlacementRules rules,
                              Growing& growing) CACHALOT_GROWING;
  bool may_grow_first(const Held& held) CACHALOT_HELD;
  std::optional<BackingPlan> best_plan(const Request& request, Ordering ordering, PlacementRules rules,
                                       const Held& held) CACHALOT_HELD;
  Block* find_contiguous_anywhere(Ordering ordering, const Held& held) const CACHALOT_HELD;
  Block* search_contiguous(Growing& growing) CACHALOT_GROWING;

  PageGrowth& heap_;
  const Request request_;
  const Context& context_;
  HeapState& state_;
  StreamClocks& clocks_;
  CacheBridge& caches_;
  Recovery& recovery_;
  PageHeap& pages_ CACHALOT_GUARDED_BY(device_lock);
  SparePages& spare_;
  PageDriver& driver_;
  StreamClock* clock_ = nullptr;  // of the request's stream; set by find_after_refresh
  bool needs_page_ = false;       // of a small request: the heap should grow by a page
};

Block* PageGrowth::obtain(Request request, const Context& context, Growing& growing) {
  require_awake(request.pool().owner(), state_.index);
  Search search(*this, request, context);
  return request.contiguous ? search.in_one_handle(growing) : search.anywhere(growing);
}

// --- a block of any pages -----------------------------------------------------------------------------------------------

Block* PageGrowth::Search::anywhere(Growing& growing) {
  static constexpr Rung<Search> kRungs[] = {
      {&Search::find_after_draining},
      {&Search::take_unused},
      {&Search::find_beside},
      {&Search::find_after_refresh},
      {&Search::grow_first},
      {&Search::take_page},
      {&Search::take_from_other_streams},
      {&Search::take_plain},
      {&Search::remap_or_create},
      {&Search::remap_after_draining},
      {&Search::borrow},
      {&Search::find_as_frees_complete, OomWait::events},
      {&Search::find_as_streams_finish, OomWait::events},
      {&Search::find_after_all_work, OomWait::device},
      {&Search::take_from_other_streams},
      {&Search::remap_or_create},
      {&Search::find_after_release, OomWait::device},
      {&Search::remap_or_create},
  };
  return climb(kRungs, *this, state_, growing);
}

// A block in a thread's cache keeps its page from moving. Another thread may have grown the heap or freed meanwhile.
Block* PageGrowth::Search::find_after_draining(Growing& growing) {
  if (request_.pool().kind() == PoolKind::small) {
    needs_page_ = !caches_.drain_or_grow(growing);
  } else {
    state_.drain_caches(growing);
  }
  return state_.find_free(request_, growing);
}

Block* PageGrowth::Search::take_unused(Growing& growing) { return spare_.take_unused(request_, growing); }

Block* PageGrowth::Search::find_beside(Growing& growing) {
  heap_.streams_.forget_if_many(growing);
  spare_.return_whole_pages(heap_, growing);
  return heap_.find_beside(request_, growing);
}

// Releases the lock meanwhile.
Block* PageGrowth::Search::find_after_refresh(Growing& growing) {
  clock_ = &clocks_.of(request_.stream(), growing);
  refresh_before_planning(growing);
  return state_.find_free(request_, growing);
}

Block* PageGrowth::Search::grow_first(Growing& growing) {
  if (!needs_page_ && !may_grow_first(growing)) return nullptr;
  Request wanted = request_;
  if (needs_page_) wanted.rounded = round_up(wanted.rounded, pages_.page_bytes());
  const PlacementRules rules{.may_move = false, .handle_bytes = needs_page_ ? 0 : heap_.large_handle_bytes(growing)};
  return driver_.execute_plan(best_plan(wanted, Ordering::now, rules, growing), wanted, context_, growing);
}

Block* PageGrowth::Search::take_page(Growing& growing) { return spare_.take_page(request_, growing); }

// Free plain memory of the stream. A segment that is free as a whole serves requests for most of it alone where it can go back
// when memory runs short, as long as no piece of it is live: not that of a private pool, nor during a capture. The memory of a
// tag is to sleep, which plain memory cannot.
Block* PageGrowth::Search::take_plain(Growing& growing) {
  const PrivatePool* const owner = request_.pool().owner();
  if (owner != nullptr && !owner->tag.empty()) return nullptr;
  Request plain = request_;
  plain.arena = state_.plain_beside(request_.pool(), growing).find(request_.stream().key);
  Block* const block = plain.arena != nullptr ? state_.find_free(plain, growing) : nullptr;
  if (block == nullptr) return nullptr;
  const bool may_go_back = owner == nullptr && !state_.capturing(growing) && !block->is_split();
  return may_go_back && block->size() - request_.rounded > block->size() / 8 ? nullptr : block;
}

Block* PageGrowth::Search::remap_after_draining(Growing& growing) {
  if (!state_.drain_caches(growing)) return nullptr;
  Block* const block = state_.find_free(request_, growing);
  return block != nullptr ? block : remap_or_create(growing);
}

Block* PageGrowth::Search::borrow(Growing& growing) { return recovery_.borrow(request_, growing); }

// Memory of the request's owner that other streams use still. Each free that completes may serve, alone or with idle pages.
Block* PageGrowth::Search::find_as_frees_complete(Growing& growing) {
  while (recovery_.synchronize_next_free(request_, growing)) {
    if (Block* block = state_.find_free(request_, growing)) return block;
    if (Block* block = take_from_other_streams(growing)) return block;
    if (Block* block = remap(growing)) return block;
  }
  return nullptr;
}

// Idle memory of streams whose work has not been seen to end. A wait of the host is allowed where one of the stream is not: it
// takes nothing from the concurrency of the streams, and the device is waited for otherwise.
Block* PageGrowth::Search::find_as_streams_finish(Growing& growing) {
  const bool may_use_others = request_.pool().owner() == nullptr && state_.options.cross_stream != CrossStream::off;
  while (may_use_others && clocks_.finish_next(pages_.page_bytes(), growing)) {
    if (Block* block = take_from_other_streams(growing)) return block;
    if (Block* block = remap(growing)) return block;
  }
  return nullptr;
}

Block* PageGrowth::Search::find_after_all_work(Growing& growing) {
  wait_and_release_unused(growing);
  return state_.find_free(request_, growing);
}

// A request of a private pool gets idle memory of the default pools only after they have given it back.
Block* PageGrowth::Search::find_after_release(Growing& growing) {
  recovery_.release_default_pools(growing);
  return state_.find_free(request_, growing);
}

// Refreshes the clocks and views that planning reads, and collects garbage. Releases the lock meanwhile.
void PageGrowth::Search::refresh_before_planning(Growing& growing) {
  request_.arena->epoch =
      clocks_.of(request_.stream(), growing).epoch();  // if it has no memory yet, it missed the epochs until now
  if (!state_.options.calibrate) heap_.costs_ = {};
  if (state_.is(HeapState::kAging, growing) && !state_.capturing(growing)) heap_.collect_garbage(growing);
  // A single stream orders all work on its memory, and needs no events unless stale mappings have to be removed.
  const bool needs_events = clocks_.count(growing) >= 2 || pages_.pages().has_aliases();
  if (needs_events && !state_.capturing(growing)) clocks_.refresh(request_, pages_.page_bytes(), growing);
  heap_.drop_stale_views(growing);
}

// Waits for all work and releases unused memory, for a request that cannot be served otherwise: then all idle memory may
// serve it.
void PageGrowth::Search::wait_and_release_unused(Growing& growing) {
  recovery_.synchronize_frees(growing);
  clocks_.finish_all_work(growing);
  state_.drain_caches(growing);  // threads freed meanwhile
  recovery_.release_unused_pools({}, growing);
  driver_.free_orphans(growing);
  state_.ledger.retried(request_.pool().kind(), growing);
}

// Returns the best fit among other streams' free blocks, or null.
Block* PageGrowth::Search::find_in_other_streams(Ordering ordering, const Held& held) const {
  if (request_.pool().owner() != nullptr) return nullptr;
  Block* best = nullptr;
  for (const auto& arena : request_.pool().arenas()) {
    if (arena.get() == request_.arena) continue;
    Block* block = arena->bins.best_fit(request_.rounded);
    if (block == nullptr || !clocks_.may_take(*block, request_.stream(), ordering, held)) continue;
    if (best == nullptr || block->size() < best->size()) best = block;
  }
  return best;
}

// Serves the request with a free block of another stream: hands the part that it needs over to its stream.
Block* PageGrowth::Search::take_from_other_streams(Growing& growing) {
  Block* best = find_in_other_streams(Ordering::now, growing);
  if (best == nullptr) return nullptr;
  return &pages_.hand_over(*best, best->address, best->address + request_.rounded, *request_.arena);
}

// Returns the best plan within the rules, to which it adds the rules that hold for every plan of the request.
std::optional<BackingPlan> PageGrowth::Search::best_plan(const Request& request, Ordering ordering,
                                                         PlacementRules rules, const Held& held) {
  const bool is_private = request.pool().owner() != nullptr;
  rules.may_move = rules.may_move && !is_private;  // a graph's memory keeps its address
  rules.may_drop = !is_private && !state_.capturing(held);
  if (rules.handle_bytes == 0)
    rules.handle_bytes = is_private ? heap_.large_handle_bytes(held) : heap_.movable_handle_bytes(held);
  const PoolPair pools = state_.pools_of(request.pool().owner(), held);
  for (const BlockPool* pool : pools) {
    for (const auto& arena : pool->arenas())
      arena->reach = clocks_.reach_into(*arena, request.stream(), ordering, held);
  }
  return heap_.placement_.best(*request.arena, pools, request.rounded, rules);
}

// Serves the request by the best plan. With cross_stream:wait, the stream waits for others instead of calling the driver, if
// that saves more than it costs. If the device or the limit refuses new memory, serves the request by a plan without any.
Block* PageGrowth::Search::remap_or_create(Growing& growing) {
  if (request_.rounded > state_.device->properties().total_bytes) return nullptr;
  std::optional<BackingPlan> plan = best_plan(request_, Ordering::now, {}, growing);
  const bool may_gain = !plan || plan->calls_driver();
  if (may_gain && state_.options.cross_stream == CrossStream::wait && wait_for_better_memory(plan, {}, growing)) {
    if (Block* block = take_from_other_streams(growing)) return block;
    plan = best_plan(request_, Ordering::now, {}, growing);
  }
  if (!plan) {
    heap_.reserve_range(request_, growing);
    plan = best_plan(request_, Ordering::now, {}, growing);
  }
  Block* block = driver_.execute_plan(plan, request_, context_, growing);
  if (block != nullptr || !plan || plan->new_pages == 0) return block;
  return remap(growing);
}

// Serves the request without new memory, which is not available.
Block* PageGrowth::Search::remap(Growing& growing) {
  constexpr PlacementRules kNoGrowth{.may_grow = false};
  if (Block* block =
          driver_.execute_plan(best_plan(request_, Ordering::now, kNoGrowth, growing), request_, context_, growing))
    return block;
  if (!wait_for_better_memory(std::nullopt, kNoGrowth, growing)) return nullptr;
  if (Block* block = take_from_other_streams(growing)) return block;
  return driver_.execute_plan(best_plan(request_, Ordering::now, kNoGrowth, growing), request_, context_, growing);
}

bool PageGrowth::Search::may_wait_for_others(const Held& held) const {
  const bool waits =
      state_.options.cross_stream == CrossStream::wait || state_.options.cross_stream == CrossStream::scarce;
  return waits && request_.pool().owner() == nullptr && clocks_.count(held) > 1 && !state_.capturing(held);
}

// Waits for the streams whose memory would serve better than the plan, within the rules; returns false if no such stream
// exists, or it must not be waited for.
bool PageGrowth::Search::wait_for_better_memory(const std::optional<BackingPlan>& plan, PlacementRules rules,
                                                Growing& growing) {
  if (!may_wait_for_others(growing)) return false;
  Vector<std::pair<const StreamClock*, std::uint32_t>> others;  // each with the last epoch to wait for
  const auto want = [&](const Block& block) {
    holds(growing);
    const StreamClock* const other = &clocks_.of(block.arena->stream, growing);
    const auto known =
        std::find_if(others.begin(), others.end(), [&](const auto& each) { return each.first == other; });
    if (known == others.end()) {
      others.emplace_back(other, block.bin.epoch);
    } else if (Reach::has_reached(block.bin.epoch, known->second)) {
      known->second = block.bin.epoch;
    }
  };
  if (const Block* block = find_in_other_streams(Ordering::after_wait, growing)) {
    if (clocks_.may_take(*block, clock_->stream(), Ordering::now, growing))
      return true;  // it has become so while the lock was released
    want(*block);
  } else {
    if (plan) rules.cost_below = plan->cost - kWaitCost / 2;  // rounding must not decide: it must save half a wait
    const auto better = best_plan(request_, Ordering::after_wait, rules, growing);
    if (!better) return false;
    for (const Block* taken : pages_.blocks_of(*better)) {
      if (!clocks_.may_take(*taken, clock_->stream(), Ordering::now, growing)) want(*taken);
    }
    if (plan && better->cost + static_cast<double>(others.size()) * kWaitCost >= plan->cost) return false;
  }
  for (const auto& [other, epoch] : others) clocks_.wait(*clock_, *other, epoch, growing);
  return !others.empty();
}

// Returns whether remap_slack allows new memory before idle pages are brought together. It is 1, its most, where the driver waits for
// work when memory is remapped.
bool PageGrowth::Search::may_grow_first(const Held& held) {
  std::optional<double> chosen = state_.options.remap_slack;
  if (!chosen && heap_.costs_.remaps_wait_long()) chosen = 1;
  if (chosen ? *chosen == 0 : clocks_.count(held) < 2) return false;
  caches_.gather(held);
  const auto live = static_cast<std::size_t>(state_.counters.allocated_bytes()) + request_.rounded;
  const std::size_t most = std::max(live, static_cast<std::size_t>(state_.counters.max_allocated_bytes()));
  const auto share = static_cast<std::size_t>(chosen.value_or(kMostSlackOfStreams) * static_cast<double>(most));
  const std::size_t slack = chosen ? share : std::min(share, driver_.moved_bytes(held));
  return state_.ledger.held_bytes(held) + request_.rounded <= most + slack;
}

// --- a block in one handle ------------------------------------------------------------------------------------------------
// Pages cannot be brought together here: the search finds or makes one handle.

Block* PageGrowth::Search::in_one_handle(Growing& growing) {
  static constexpr Rung<Search> kRungs[] = {
      {&Search::create_handle_after_draining},
      {&Search::borrow},
      {&Search::find_handle_as_frees_complete, OomWait::events},
      {&Search::create_handle_after_all_work, OomWait::device},
      {&Search::create_handle_after_release, OomWait::device},
  };
  return climb(kRungs, *this, state_, growing);
}

Block* PageGrowth::Search::create_handle_after_draining(Growing& growing) {
  state_.drain_caches(growing);
  spare_.return_whole_pages(heap_, growing);
  refresh_before_planning(growing);
  return find_or_create_handle(growing);
}

Block* PageGrowth::Search::find_handle_as_frees_complete(Growing& growing) {
  while (recovery_.synchronize_next_free(request_, growing)) {
    if (Block* block = search_contiguous(growing)) return block;
  }
  return nullptr;
}

Block* PageGrowth::Search::create_handle_after_all_work(Growing& growing) {
  wait_and_release_unused(growing);
  return find_or_create_handle(growing);
}

Block* PageGrowth::Search::create_handle_after_release(Growing& growing) {
  recovery_.release_default_pools(growing);
  return find_or_create_handle(growing);
}

Block* PageGrowth::Search::find_contiguous_anywhere(Ordering ordering, const Held& held) const {
  Block* found = heap_.find_contiguous(request_, *request_.arena, ordering, held);
  for (const auto& arena : request_.pool().arenas()) {
    if (found == nullptr) found = heap_.find_contiguous(request_, *arena, ordering, held);
  }
  return found;
}

// Searches for free memory in one handle. If there is none yet, waits for another stream that has some, which costs less
// than new memory.
Block* PageGrowth::Search::search_contiguous(Growing& growing) {
  Block* block = find_contiguous_anywhere(Ordering::now, growing);
  if (block == nullptr && state_.options.cross_stream == CrossStream::wait && may_wait_for_others(growing)) {
    const Block* other = find_contiguous_anywhere(Ordering::after_wait, growing);
    if (other != nullptr) {
      clocks_.wait(clocks_.of(request_.stream(), growing), clocks_.of(other->arena->stream, growing), other->bin.epoch,
                   growing);
    }
    block = find_contiguous_anywhere(Ordering::now, growing);
  }
  if (block == nullptr || block->arena == request_.arena) return block;
  const PageHeap::Stretch part = heap_.contiguous_part(*block, request_, growing);
  return &pages_.hand_over(*block, part.begin, part.begin + part.bytes, *request_.arena);
}

Block* PageGrowth::Search::find_or_create_handle(Growing& growing) {
  if (Block* block = search_contiguous(growing)) return block;
  if (Block* block = spare_.take_page(request_, growing)) return block;
  if (request_.rounded > state_.device->properties().total_bytes) return nullptr;
  std::optional<BackingPlan> plan = pages_.plan_handle(*request_.arena, request_.rounded);
  if (!plan) {
    heap_.reserve_range(request_, growing);
    plan = pages_.plan_handle(*request_.arena, request_.rounded);
  }
  return driver_.execute_plan(plan, request_, context_, growing);
}

CACHALOT_END
