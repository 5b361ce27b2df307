// Pools that sleep: their memory goes back to the device and comes again at the same addresses.
//
// A handle that is asleep keeps its pages, homes and view, so that blocks stay what they are; only its memory is gone.
// What the driver did is booked after each call, handle by handle: a call that fails leaves some asleep and some awake, the
// pool counts as asleep, and the next attempt goes on from there.
#include <algorithm>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "base/mutex.h"
#include "device/cuda_codes.h"
#include "device_allocator.h"

namespace cachalot {

// --- tags -----------------------------------------------------------------------------------------------------------

void DeviceAllocator::begin_tagged(PoolId id, std::string_view tag) {
  const auto is_this_thread = [self = std::this_thread::get_id()](Stream) {
    return std::this_thread::get_id() == self;
  };
  const Lock lock(mutex_);
  redirects_.reserve(redirects_.size() + 1);
  PrivatePool& pool = retain_pool(id);
  if (pool.tag.empty()) pool.tag = tag;
  redirects_.push_back({&pool, is_this_thread, RedirectFor::thread});
  set_mode(kRedirecting, true);
}

// The innermost of this thread's regions of the tag.
void DeviceAllocator::end_tagged(PoolId id, std::string_view tag) {
  const Lock lock(mutex_);
  const auto region = std::find_if(redirects_.rbegin(), redirects_.rend(),
                                   [&](const Redirect& r) { return r.pool->id == id && r.filter(nullptr); });
  CACHALOT_REQUIRE(region != redirects_.rend(), "end_tagged: this thread is in no region of tag '{}' on device {}", tag,
                   index_);
  --region->pool->use_count;
  redirects_.erase(std::next(region).base());
  set_mode(kRedirecting, !redirects_.empty());
}

std::optional<TagMemory> DeviceAllocator::tag_memory(PoolId id) const {
  const Lock lock(mutex_);
  const PrivatePool* const pool = find_pool(id);
  if (pool == nullptr) return std::nullopt;
  const ThreadCaches::Recall hold(caches_.get());
  TagMemory memory;
  memory.is_asleep = pool->is_asleep;
  for (const auto& [address, head] : heap_.segments()) {
    if (head->arena->pool.id() != id) continue;
    const SegmentSnapshot segment = picture(*head);
    memory.allocated_bytes += segment.allocated_size;
    memory.reserved_bytes += segment.total_size - segment.asleep_size;
    memory.asleep_bytes += segment.asleep_size;
  }
  return memory;
}

std::string DeviceAllocator::name_of(const PrivatePool& pool) const {
  return pool.tag.empty() ? formatted("pool ({}, {})", pool.id.first, pool.id.second) : formatted("tag '{}'", pool.tag);
}

void DeviceAllocator::require_awake(const PrivatePool* pool, const char* done) const {
  CACHALOT_REQUIRE(pool == nullptr || !pool->is_asleep,
                   "{} is asleep on device {}: nothing can be {} from it before restore_physical", name_of(*pool),
                   index_, done);
}

bool DeviceAllocator::sleeps(const Block& block, const void* ptr) const {
  const Lock lock(mutex_);
  return is_live(block, ptr) && is_asleep(block.arena->pool);
}

void DeviceAllocator::require_pages(const char* call) const {
  CACHALOT_REQUIRE(pages_ != nullptr, "{} needs heap:pages; the heap of device {} is 'segments'", call, index_);
}

// nullptr: there is no such pool.
PrivatePool* DeviceAllocator::find_sleeper(PoolId id, const char* call) const {
  require_pages(call);
  PrivatePool* const pool = find_pool(id);
  if (pool == nullptr) return nullptr;
  CACHALOT_REQUIRE(!capturing(), "{}: a graph is being captured on device {}; end the capture first", call, index_);
  CACHALOT_REQUIRE(!pool->provider, "{}: the memory of {} is its segment provider's", call, name_of(*pool));
  return pool;
}

std::vector<HandleId> DeviceAllocator::handles_of(const PrivatePool& pool, bool asleep) const {
  std::vector<HandleId> handles = pages_->handles_of(pool);
  std::erase_if(handles, [&](HandleId id) { return pages_->pages().handle(id).is_asleep() != asleep; });
  return handles;
}

std::size_t DeviceAllocator::bytes_of(const std::vector<HandleId>& handles) const {
  std::size_t bytes = 0;
  for (const HandleId id : handles) bytes += pages_->pages().bytes(pages_->pages().handle(id));
  return bytes;
}

// --- going to sleep -------------------------------------------------------------------------------------------------

void DeviceAllocator::create_tag(PoolId id, std::string_view tag) {
  const Lock lock(mutex_);
  if (find_pool(id) != nullptr) return;
  PrivatePool& pool = retain_pool(id);
  --pool.use_count;
  pool.tag = tag;
}

bool DeviceAllocator::may_sleep(PoolId id, const char* call) const {
  const Lock lock(mutex_);
  return find_sleeper(id, call) != nullptr;
}

bool DeviceAllocator::release_physical(PoolId id, bool save) {
  const Lock lock(mutex_);
  const SlowSection slow(*this);
  PrivatePool* const pool = find_sleeper(id, "release_physical");
  if (pool == nullptr) return false;
  gather_all();
  free_orphans();
  if (pool->is_asleep && handles_of(*pool, /*asleep=*/false).empty()) return true;
  const bool was_asleep = std::exchange(pool->is_asleep, true);  // nobody else takes memory from it from here on
  std::vector<HandleId> unsaved;
  try {
    synchronize_frees(pool);
    if (pages_->handles_of(*pool).empty()) return true;  // a GPU that was never used is not to get a context now
    finish_all_work();
    if (!in_use(*pool)) release_pages(pool, kEverything);
    const std::vector<HandleId> handles = handles_of(*pool, /*asleep=*/false);
    std::copy_if(handles.begin(), handles.end(), std::back_inserter(unsaved),
                 [&](HandleId handle) { return !pool->saved.contains(handle); });
    if (was_asleep) set_access(handles);  // what an attempt to wake it mapped may lack it
    if (save) save_bytes(*pool, unsaved);
    put_to_sleep(handles);
  } catch (...) {
    stay_awake(*pool, unsaved);
    if (was_asleep) pool->is_asleep = true;
    throw;
  }
  return true;
}

// What did not fall asleep holds what it held, and needs no copy; `saved` is what was just to be saved.
void DeviceAllocator::stay_awake(PrivatePool& pool, const std::vector<HandleId>& saved) {
  for (const HandleId id : saved) {
    if (!pages_->pages().handle(id).is_asleep()) forget_saved(pool, id);
  }
  free_host_memory();
  pool.is_asleep = !handles_of(pool, /*asleep=*/true).empty();
}

void DeviceAllocator::save_bytes(PrivatePool& pool, const std::vector<HandleId>& handles) {
  for (const HandleId id : handles) {
    const std::vector<PageHeap::Stretch> stretches = pages_->used_stretches(id);
    std::size_t bytes = 0;
    for (const PageHeap::Stretch& stretch : stretches) bytes += stretch.bytes;
    if (bytes == 0) continue;
    char* to = static_cast<char*>(pinned_memory(bytes, pool));
    pool.saved[id] = {to, stretches};
    const Unlocked unlocked(mutex_);
    for (const PageHeap::Stretch& stretch : stretches) {
      device_->copy_to_host(to, stretch.begin, stretch.bytes);
      to += stretch.bytes;
    }
  }
}

void* DeviceAllocator::pinned_memory(std::size_t bytes, const PrivatePool& pool) {
  void* memory = nullptr;
  {
    const Unlocked unlocked(mutex_);
    memory = device_->host_malloc(bytes);
  }
  if (memory != nullptr) return memory;
  throw OutOfMemory(formatted("the host has no {} of pinned memory to save what {} holds on device {}",
                              format_bytes(bytes), name_of(pool), index_),
                    index_, bytes);
}

// All work is done. Throws CudaError: of the driver's first refusal to unmap, or its last to take memory back, which is then
// set aside.
void DeviceAllocator::put_to_sleep(const std::vector<HandleId>& handles) {
  for (const PageHeap::Run& run : pages_->runs_of(handles)) {
    {
      const Unlocked unlocked(mutex_);
      device_->unmap(run.begin, run.bytes);
    }
    std::vector<Orphan> memory;
    for (const HandleId id : run.handles) {
      memory.push_back({take_memory(id), pages_->pages().bytes(pages_->pages().handle(id)), {}});
      block_orphan(memory.back());  // until the device has taken it
    }
    std::exception_ptr error;
    for (Orphan& each : memory) {
      try {
        free_orphan(std::move(each));
      } catch (const CudaError&) {
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
}

MemoryHandle DeviceAllocator::take_memory(HandleId id) noexcept {
  count_given_back(id);
  return pages_->pages().put_to_sleep(id);
}

// --- waking ---------------------------------------------------------------------------------------------------------

bool DeviceAllocator::restore_physical(PoolId id) {
  const Lock lock(mutex_);
  PrivatePool* const pool = find_sleeper(id, "restore_physical");
  if (pool == nullptr) return false;
  if (!pool->is_asleep) return true;
  const PoolHold hold(pool);
  run_free_memory_callbacks();
  if (try_to_wake(*pool)) return true;
  std::vector<HandleId> sleepers = handles_of(*pool, /*asleep=*/true);
  if (sleepers.empty()) sleepers = pages_->handles_of(*pool);  // that the device neither opened nor took back
  const Address first = pages_->pages().handle(sleepers.front()).views.front().address;
  const std::size_t bytes = bytes_of(sleepers);
  throw_out_of_memory({bytes, bytes, pages_->first_block(first).arena}, nullptr);
}

// False: there is not enough memory.
bool DeviceAllocator::try_to_wake(PrivatePool& pool) {
  const SlowSection slow(*this);
  if (!pool.is_asleep) return true;
  find_sleeper(pool.id, "restore_physical");  // a capture may have begun
  free_orphans();
  forget_idle_sleepers(pool);
  if (!wake_once(pool)) {
    recover_without_request();
    if (!wake_once(pool)) return false;
  }
  pool.is_asleep = false;
  for (const auto& [id, saved] : std::exchange(pool.saved, {})) spare_host_memory_.push_back(saved.host);
  free_host_memory();
  return true;
}

// False: no memory, for the handles or for their mappings.
bool DeviceAllocator::wake_once(const PrivatePool& pool) {
  const std::vector<HandleId> sleepers = handles_of(pool, /*asleep=*/true);
  std::vector<MemoryHandle> memory;
  return create_again(sleepers, memory) && have_memory([&] { wake(pool, sleepers, memory); });
}

// What was freed meanwhile need not come back, unless a graph may know its addresses.
void DeviceAllocator::forget_idle_sleepers(PrivatePool& pool) {
  if (in_use(pool)) return;
  for (const HandleId id : pages_->claim_idle_handles(pools_of(&pool))) {
    if (pages_->pages().handle(id).is_asleep()) {
      release_handle(id, &pool);
    } else {
      pages_->put_back_idle(id);
    }
  }
}

// As for a request: what others hold without need goes back to the device.
void DeviceAllocator::recover_without_request() {
  synchronize_frees(nullptr);
  drain_caches();
  release_default_pools();
  release_unused_pools({});
  count_retry(PoolKind::small);  // of neither kind
}

// Memory for each of the handles, which counts as held, and as asked for until it is mapped; or false, and none.
bool DeviceAllocator::create_again(const std::vector<HandleId>& handles, std::vector<MemoryHandle>& memory) {
  const PhysicalPages& pages = pages_->pages();
  const std::size_t bytes = bytes_of(handles);
  if (bytes == 0) return true;
  if (limit_ != kNoLimit && held_bytes_ + bytes > limit_) return false;
  held_bytes_ += bytes;
  asking_bytes_ += bytes;
  memory.reserve(handles.size());
  std::exception_ptr error;
  try {
    const Unlocked unlocked(mutex_);
    while (memory.size() < handles.size()) {
      const auto created = device_->create(pages.bytes(pages.handle(handles[memory.size()])));
      if (!created) break;
      memory.push_back(*created);
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (memory.size() == handles.size()) return true;
  discard(handles, memory, 0);
  memory.clear();
  if (error) std::rethrow_exception(error);
  return false;
}

// Takes create_again back, but for the first handles, which are mapped by now.
void DeviceAllocator::discard(const std::vector<HandleId>& handles, const std::vector<MemoryHandle>& memory,
                              std::size_t mapped) {
  for (std::size_t i = mapped; i < handles.size(); ++i) {
    const std::size_t bytes = pages_->pages().bytes(pages_->pages().handle(handles[i]));
    held_bytes_ -= bytes;
    asking_bytes_ -= bytes;
    if (i < memory.size()) adopt_orphan({memory[i], bytes, {}});
  }
  free_orphans();
}

// All are awake and hold what was saved, or the driver's error is thrown and they are asleep again, as far as it allows.
void DeviceAllocator::wake(const PrivatePool& pool, const std::vector<HandleId>& sleepers,
                           const std::vector<MemoryHandle>& memory) {
  std::size_t mapped = 0;
  try {
    for (; mapped < sleepers.size(); ++mapped) map_again(sleepers[mapped], memory[mapped]);
    set_access(pages_->handles_of(pool));
    bring_saved_bytes(pool);
  } catch (...) {
    discard(sleepers, memory, mapped);
    try {
      put_to_sleep({sleepers.begin(), sleepers.begin() + static_cast<std::ptrdiff_t>(mapped)});
    } catch (const CudaError&) {  // the first error is the one to tell
    }
    throw;
  }
}

void DeviceAllocator::map_again(HandleId id, MemoryHandle memory) {
  const PhysicalHandle& handle = pages_->pages().handle(id);
  const Address at = handle.views.front().address;
  const std::size_t bytes = pages_->pages().bytes(handle);
  {
    const Unlocked unlocked(mutex_);
    device_->map(at, bytes, memory);
  }
  pages_->pages().wake(id, memory);
  asking_bytes_ -= bytes;
  counters_.pages_mapped(pages_->range_of(at)->kind, as_signed(bytes));
  observe_memory(Change::Action::segment_map, at, bytes, *pages_->first_block(at).arena, nullptr);
}

// Handles that have it already may be among them.
void DeviceAllocator::set_access(const std::vector<HandleId>& handles) {
  for (const PageHeap::Run& run : pages_->runs_of(handles)) {
    const Unlocked unlocked(mutex_);
    device_->set_access(run.begin, run.bytes, peers_);
  }
}

void DeviceAllocator::bring_saved_bytes(const PrivatePool& pool) {
  for (const auto& entry : pool.saved) {
    const Unlocked unlocked(mutex_);
    const char* from = static_cast<const char*>(entry.second.host);
    for (const PageHeap::Stretch& stretch : entry.second.stretches) {
      device_->copy_from_host(stretch.begin, from, stretch.bytes);
      from += stretch.bytes;
    }
  }
}

// --- host memory ----------------------------------------------------------------------------------------------------

void DeviceAllocator::forget_saved(PrivatePool& pool, HandleId id) {
  const auto saved = pool.saved.find(id);
  if (saved == pool.saved.end()) return;
  spare_host_memory_.push_back(saved->second.host);
  pool.saved.erase(saved);
}

// What the device refuses is tried again another time.
void DeviceAllocator::free_host_memory() {
  for (void* memory : std::exchange(spare_host_memory_, {})) {
    try {
      const Unlocked unlocked(mutex_);
      device_->host_free(memory);
    } catch (const CudaError&) {
      spare_host_memory_.push_back(memory);
    }
  }
}

}  // namespace cachalot
