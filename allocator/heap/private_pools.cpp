#include "heap/private_pools.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/json_writer.h"

CACHALOT_BEGIN

// --- users --------------------------------------------------------------------------------------------------------------

PrivatePool* PrivatePools::find(PoolId id, const Held& /*held*/) const {
  const auto found = pools_.find(id);
  return found == pools_.end() ? nullptr : found->second.get();
}

PrivatePool& PrivatePools::existing(PoolId id, const char* rule, const Held& held) const {
  PrivatePool* pool = find(id, held);
  CACHALOT_REQUIRE(pool != nullptr, "{} ({}, {}) on device {}", rule, id.first, id.second, state_.index);
  return *pool;
}

PrivatePool& PrivatePools::retain(PoolId id, const Held& held) {
  CACHALOT_REQUIRE(!id.is_default(), "pool id (0, 0) is the default pool's and cannot name a private pool");
  if (PrivatePool* pool = find(id, held)) {
    ++pool->use_count;
    return *pool;
  }
  PrivatePool& made = *pools_.emplace(id, std::make_unique<PrivatePool>(id, growth_)).first->second;
  set_split_rules(made, held);
  return made;
}

void PrivatePools::create_or_retain_pool(PoolId id, std::shared_ptr<SegmentProvider> provider) {
  const Operation lock(state_.mutex);
  const PrivatePool* const known = find(id, lock);
  CACHALOT_REQUIRE(known == nullptr || !provider || known->provider == provider,
                   "pool ({}, {}) already exists: its segment provider cannot change", id.first, id.second);
  PrivatePool& pool = retain(id, lock);
  if (known != nullptr || !provider) return;
  pool.provider = std::move(provider);
  pool.small.growth = pool.large.growth = growth_.segments;
  pool.small.in_ranges = pool.large.in_ranges = false;
  set_split_rules(pool, lock);
}

void PrivatePools::release_pool(PoolId id) {
  const DeviceLock lock(state_.mutex);
  PrivatePool& pool = existing(id, "releasePool: could not find pool of id", lock);
  CACHALOT_REQUIRE(pool.use_count > 0, "releasePool: pool ({}, {}) has no users", id.first, id.second);
  --pool.use_count;
}

bool PrivatePools::in_use(const PrivatePool& pool, const Held& /*held*/) const {
  return pool.use_count > 0 || std::any_of(redirects_.begin(), redirects_.end(),
                                           [&](const Redirect& redirect) { return redirect.pool == &pool; });
}

int PrivatePools::pool_use_count(PoolId id) const {
  const DeviceLock lock(state_.mutex);
  const PrivatePool* pool = find(id, lock);
  return pool == nullptr ? 0 : pool->use_count;
}

void PrivatePools::set_use_on_oom(PoolId id, bool use_on_oom) {
  const Operation lock(state_.mutex);
  std::erase(lenders_, id);
  if (use_on_oom) lenders_.push_back(id);
}

void PrivatePools::set_no_split(PoolId id) {
  const DeviceLock lock(state_.mutex);
  existing(id, "setNoSplit: could not find pool of id", lock).may_split = false;
}

void PrivatePools::set_plain(PoolId id) {
  const DeviceLock lock(state_.mutex);
  existing(id, "set_plain: could not find pool of id", lock).takes_plain = true;
}

void PrivatePools::apply_split_rules(const Held& held) {
  const auto apply = [&](BlockPool& pool) {
    holds(held);
    set_split_rules(pool, held);
  };
  for_each(apply, held);
}

void PrivatePools::set_split_rules(PrivatePool& owner, const Held& held) {
  for (BlockPool* pool : {&owner.small, &owner.large, &owner.plain[0], &owner.plain[1]}) set_split_rules(*pool, held);
}

// Memory in ranges may always be split.
void PrivatePools::set_split_rules(BlockPool& pool, const Held& /*held*/) {
  pool.set_rules(pool.in_ranges ? SplitRules() : SplitRules(state_.options));
}

void PrivatePools::take_plain(bool on, const Held& held) {
  state_.takes_plain = on;
  update_mode(held);
}

// Every request must ask which pool serves it.
void PrivatePools::update_mode(const Held& held) {
  state_.set_mode(HeapState::kRedirecting, !redirects_.empty() || state_.takes_plain, held);
}

void PrivatePools::erase(PoolId id, Growing& /*growing*/) { pools_.erase(id); }

// --- redirection --------------------------------------------------------------------------------------------------------

void PrivatePools::begin_allocate_to_pool(PoolId id, StreamFilter filter, RedirectFor reason) {
  CACHALOT_REQUIRE(filter, "beginAllocateToPool: the filter must be callable");
  const Operation lock(state_.mutex);
  const auto begin = [&](const Held& held) {
    holds(held);
    for (const Redirect& redirect : redirects_) {
      CACHALOT_REQUIRE(redirect.pool->id != id, "beginAllocateToPool: already recording to mempool_id ({}, {})",
                       id.first, id.second);
    }
    redirects_.reserve(redirects_.size() + 1);
    redirects_.push_back({&retain(id, held), std::move(filter), reason});
    update_mode(held);
  };
  if (reason != RedirectFor::capture) return begin(lock);
  const Growing growing(state_.growth_mutex,
                        lock);  // the captures that a slow path found when it began hold to its end
  begin(growing);
  ++state_.captures;
}

void PrivatePools::end_allocate_to_pool(PoolId id) {
  const DeviceLock lock(state_.mutex);
  const auto redirect =
      std::find_if(redirects_.begin(), redirects_.end(), [&](const Redirect& r) { return r.pool->id == id; });
  CACHALOT_REQUIRE(redirect != redirects_.end(), "endAllocatePool: not currently recording to mempool_id ({}, {})",
                   id.first, id.second);
  if (redirect->reason == RedirectFor::capture) --state_.captures;
  redirects_.erase(redirect);
  update_mode(lock);
}

void PrivatePools::begin_capture() {
  const DeviceLock lock(state_.mutex);
  const Growing growing(state_.growth_mutex, lock);  // as for a redirection
  ++state_.captures;
}

void PrivatePools::end_capture() {
  const DeviceLock lock(state_.mutex);
  if (state_.captures > 0) --state_.captures;
}

// The latest redirection whose filter takes the stream (on this thread).
const PrivatePools::Redirect* PrivatePools::redirect_of(Stream stream, const Held& /*held*/) const {
  const auto redirect =
      std::find_if(redirects_.rbegin(), redirects_.rend(), [&](const Redirect& r) { return r.filter(stream); });
  return redirect == redirects_.rend() ? nullptr : &*redirect;
}

BlockPool& PrivatePools::pool_for(PoolKind kind, Stream stream, const Held& held) {
  const Redirect* const redirect = redirect_of(stream, held);
  if (redirect == nullptr) {
    BlockPool& pool = state_.default_pools[static_cast<std::size_t>(kind)];
    return state_.takes_plain ? state_.plain_beside(pool, held) : pool;
  }
  PrivatePool& owner = *redirect->pool;
  require_awake(&owner, state_.index);
  BlockPool& pool = kind == PoolKind::small ? owner.small : owner.large;
  // The memory of a tag is to sleep, which plain memory cannot.
  const bool is_plain = owner.takes_plain || (state_.takes_plain && owner.tag.empty());
  return is_plain ? state_.plain_beside(pool, held) : pool;
}

bool PrivatePools::is_capturing() const {
  const DeviceLock lock(state_.mutex);
  return state_.capturing(lock);
}

bool PrivatePools::thread_is_redirected(const Held& /*held*/) const {
  return std::any_of(redirects_.begin(), redirects_.end(),
                     [](const Redirect& r) { return r.reason == RedirectFor::thread && r.filter(nullptr); });
}

// --- tags -----------------------------------------------------------------------------------------------------------------

void PrivatePools::begin_tagged(PoolId id, std::string_view tag) {
  const auto is_this_thread = [self = std::this_thread::get_id()](Stream) {
    return std::this_thread::get_id() == self;
  };
  std::string name(tag);
  const Operation lock(state_.mutex);
  redirects_.reserve(redirects_.size() + 1);
  PrivatePool& pool = retain(id, lock);
  if (pool.tag.empty()) pool.tag = std::move(name);
  redirects_.push_back({&pool, is_this_thread, RedirectFor::thread});
  update_mode(lock);
}

// The innermost of this thread's regions of the tag.
void PrivatePools::end_tagged(PoolId id, std::string_view tag) {
  const DeviceLock lock(state_.mutex);
  const auto region = std::find_if(redirects_.rbegin(), redirects_.rend(),
                                   [&](const Redirect& r) { return r.pool->id == id && r.filter(nullptr); });
  CACHALOT_REQUIRE(region != redirects_.rend(), "end_tagged: this thread is in no region of tag '{}' on device {}", tag,
                   state_.index);
  --region->pool->use_count;
  redirects_.erase(std::next(region).base());
  update_mode(lock);
}

void PrivatePools::create_tag(PoolId id, std::string_view tag) {
  std::string name(tag);
  const Operation lock(state_.mutex);
  if (find(id, lock) != nullptr) return;
  PrivatePool& pool = retain(id, lock);
  --pool.use_count;
  pool.tag = std::move(name);
}

namespace {

void write_tag(JsonWriter& json, const TagMemory& memory) {
  json.begin_object().member("tag", memory.tag).member("device", memory.device).member("is_asleep", memory.is_asleep);
  json.member("allocated_bytes", memory.allocated_bytes).member("requested_bytes", memory.requested_bytes);
  json.member("reserved_bytes", memory.reserved_bytes).member("asleep_bytes", memory.asleep_bytes);
  json.member("is_evictable", memory.is_evictable).member("priority", memory.priority).member("holds", memory.holds);
  json.key("pool").begin_array().value(memory.pool.first).value(memory.pool.second).end_array().end_object();
}

}  // namespace

std::string to_json(const std::vector<TagMemory>& tags) {
  JsonWriter json;
  json.list(tags, write_tag);
  return json.take();
}

CACHALOT_END
