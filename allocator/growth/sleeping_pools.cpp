#include "growth/sleeping_pools.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

void SleepingPools::require_pages(const char* call) const {
  CACHALOT_REQUIRE(growth_ != nullptr, "{} needs heap:pages; the heap of device {} is '{}'", call, state_.index,
                   to_string(heap_));
}

// Returns the pool, or null if it does not exist.
PrivatePool* SleepingPools::require_may_sleep(PoolId id, const char* call, const Held& held) const {
  require_pages(call);
  PrivatePool* const pool = pools_.find(id, held);
  if (pool == nullptr) return nullptr;
  CACHALOT_REQUIRE(!state_.capturing(held), "{}: a graph is being captured on device {}; end the capture first", call,
                   state_.index);
  CACHALOT_REQUIRE(!pool->provider, "{}: the memory of {} is its segment provider's", call, name_of(*pool));
  const std::size_t plain = plain_bytes(*pool, held);
  CACHALOT_REQUIRE(plain == 0, "{}: {} of {} is plain memory, which cannot sleep (AllocateOptions::plain)", call,
                   format_bytes(plain), name_of(*pool));
  return pool;
}

// Returns the bytes of plain segments in use. The others go back before the pool sleeps.
std::size_t SleepingPools::plain_bytes(const PrivatePool& pool, const Held& /*held*/) const {
  std::size_t bytes = 0;
  for (const auto& [address, head] : state_.blocks.segments()) {
    if (head->arena->pool.owner() != &pool || head->arena->in_ranges) continue;
    if (head->is_free() && !head->is_split()) continue;
    for (const Block* block = head; !block->is_edge(); block = block->next) bytes += block->size();
  }
  return bytes;
}

Vector<HandleId> SleepingPools::handles_of(const PrivatePool& pool, bool asleep, const Held& /*held*/) const {
  Vector<HandleId> handles = pages().handles_of(pool);
  std::erase_if(handles, [&](HandleId id) { return pages().pages().handle(id).is_asleep() != asleep; });
  return handles;
}

std::size_t SleepingPools::bytes_of(const Vector<HandleId>& handles, const Held& /*held*/) const {
  std::size_t bytes = 0;
  for (const HandleId id : handles) bytes += pages().pages().bytes(pages().pages().handle(id));
  return bytes;
}

bool SleepingPools::may_sleep(PoolId id, const char* call) const {
  const DeviceLock lock(state_.mutex);
  return require_may_sleep(id, call, lock) != nullptr;
}

bool SleepingPools::release_physical(PoolId id, const SleepOptions& options) {
  const Operation lock(state_.mutex);
  Growing growing(state_.growth_mutex, lock);
  PrivatePool* const pool = require_may_sleep(id, "release_physical", growing);
  if (pool == nullptr) return false;
  put_to_sleep(*pool, options, growing);
  return true;
}

std::size_t SleepingPools::put_to_sleep(PrivatePool& pool, const SleepOptions& options, Growing& growing) {
  caches_.gather(growing);
  const std::size_t awake = awake_bytes(pool, growing);
  // From here on no other thread takes memory from it, and an ensure waits.
  const bool was_asleep = std::exchange(pool.is_asleep, true);
  Vector<HandleId> unsaved;
  try {
    driver().free_orphans(growing);
    if (was_asleep && awake == 0) return 0;
    frees_.synchronize(&pool, growing);
    pool.plain.front().growth->release_free(&pool, Reservation::goes, growing);
    if (pages().handles_of(pool).empty()) return 0;  // a GPU that was never used is not to get a context now
    clocks_.finish_all_work(growing);
    if (!pools_.in_use(pool, growing))
      driver().release_pages(&pool, PageDriver::kEverything, PageDriver::kEverything, growing);
    const Vector<HandleId> handles = handles_of(pool, /*asleep=*/false, growing);
    const SavedMemory::OfPool& saved = saved_.of(pool, growing);
    std::copy_if(handles.begin(), handles.end(), std::back_inserter(unsaved),
                 [&](HandleId handle) { return !saved.contains(handle); });
    if (was_asleep) set_access(handles, growing);  // mappings of a failed attempt to wake it may lack it
    if (options.keep != Keep::nothing) save_bytes(pool, unsaved, options, growing);
    pool.has_lost_content |= options.keep == Keep::nothing;
    give_back(handles, growing);
  } catch (...) {
    cancel_sleep(pool, unsaved, growing);
    if (was_asleep) pool.is_asleep = true;
    throw;
  }
  return awake;
}

// Cancels a sleep. Handles that did not fall asleep keep their content, and need no copy; `saved` are those that were
// just to be saved.
void SleepingPools::cancel_sleep(PrivatePool& pool, const Vector<HandleId>& saved, Growing& growing) {
  for (const HandleId id : saved) {
    if (!pages().pages().handle(id).is_asleep()) saved_.forget(pool, id, growing);
  }
  saved_.free(growing);
  pool.is_asleep = !handles_of(pool, /*asleep=*/true, growing).empty();
}

void SleepingPools::save_bytes(PrivatePool& pool, const Vector<HandleId>& handles, const SleepOptions& options,
                               Growing& growing) {
  const auto bytes_of = [](const Vector<PageHeap::Stretch>& stretches) {
    std::size_t bytes = 0;
    for (const PageHeap::Stretch& stretch : stretches) bytes += stretch.bytes;
    return bytes;
  };
  Vector<std::pair<HandleId, Vector<PageHeap::Stretch>>> wanted;
  std::size_t all_bytes = 0;
  for (const HandleId id : handles) {
    Vector<PageHeap::Stretch> stretches = pages().used_stretches(id);
    const std::size_t bytes = bytes_of(stretches);
    all_bytes += bytes;
    if (bytes != 0) wanted.emplace_back(id, std::move(stretches));
  }
  if (wanted.empty()) return;
  std::shared_ptr<SavedFile> file;
  if (options.keep == Keep::file) file = file_memory(all_bytes, options.folder, pool, growing);
  char* next = file != nullptr ? file->data() : nullptr;
  for (const auto& [id, stretches] : wanted) {
    const std::size_t bytes = bytes_of(stretches);
    char* to =
        file != nullptr ? std::exchange(next, next + bytes) : static_cast<char*>(pinned_memory(bytes, pool, growing));
    saved_.keep(pool, id, {to, stretches, file}, growing);
    const Unlocked<Held> unlocked(growing);
    for (const PageHeap::Stretch& stretch : stretches) {
      state_.device->copy_to_host(to, stretch.begin, stretch.bytes);
      to += stretch.bytes;
    }
  }
}

// One file has the content of all handles. The room is looked at first, so that the message has it.
std::shared_ptr<SavedFile> SleepingPools::file_memory(std::size_t bytes, const std::string& folder,
                                                      const PrivatePool& pool, Growing& growing) {
  std::shared_ptr<SavedFile> file;
  std::size_t free = 0;
  {
    const Unlocked<Held> unlocked(growing);
    free = SavedFile::free_bytes(folder);
    if (bytes <= free) file = SavedFile::make(folder, bytes);
  }
  if (file != nullptr) return file;
  throw OutOfMemory(formatted("folder '{}' has no room to save what {} holds on device {}: {} are needed, {} are free",
                              folder, name_of(pool), state_.index, format_bytes(bytes), format_bytes(free)),
                    state_.index, bytes);
}

void* SleepingPools::pinned_memory(std::size_t bytes, const PrivatePool& pool, Growing& growing) {
  void* memory = nullptr;
  {
    const Unlocked<Held> unlocked(growing);
    memory = state_.device->host_malloc(bytes);
  }
  if (memory != nullptr) return memory;
  throw OutOfMemory(formatted("the host has no {} of pinned memory to save what {} holds on device {}",
                              format_bytes(bytes), name_of(pool), state_.index),
                    state_.index, bytes);
}

// All work is done. Throws the driver's first refusal, after all were tried: to unmap handles, which stay awake, or to take back
// memory, which is then set aside.
void SleepingPools::give_back(const Vector<HandleId>& handles, Growing& growing) {
  Vector<Orphan> memory;
  for (const HandleId id : handles) memory.push_back(view_of(id, growing));
  std::exception_ptr refusal = driver().unmap(memory, growing);
  Block* block = nullptr;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (!memory[i].views.empty()) continue;
    const PhysicalHandle& handle = pages().pages().handle(handles[i]);
    const PoolKind kind = pages().range_of(handle.home)->kind;
    block = &pages().first_block(handle.home, block);
    state_.ledger.pages_went(kind, handle.home, memory[i].bytes, *block->arena, growing);
    memory[i] = driver().take_memory(handles[i], growing);
  }
  std::erase_if(memory, [](const Orphan& each) { return !each.views.empty(); });
  const std::exception_ptr kept = driver().free_all(std::move(memory), growing);
  if (!refusal) refusal = kept;
  if (refusal) std::rethrow_exception(refusal);
}

// --- waking ---------------------------------------------------------------------------------------------------------

bool SleepingPools::restore_physical(PoolId id) {
  const Operation lock(state_.mutex);
  PrivatePool* const pool = require_may_sleep(id, "restore_physical", lock);
  if (pool == nullptr) return false;
  if (!pool->is_asleep) return true;
  const PoolHold hold(pool);
  pressure_.run_callbacks(lock);
  Vector<HandleId> sleepers;
  do {  // again if others have woken it, or freed all of it, while the lock was released
    if (wake_somehow(*pool, lock)) return true;
    sleepers = handles_of(*pool, /*asleep=*/true, lock);
    if (sleepers.empty()) sleepers = pages().handles_of(*pool);  // that the device neither opened nor took back
  } while (!pool->is_asleep || sleepers.empty());
  const Address first = pages().pages().handle(sleepers.front()).views.front().address;
  const std::size_t bytes = bytes_of(sleepers, lock);
  supply_.throw_out_of_memory({bytes, bytes, pages().first_block(first).arena}, nullptr, lock);
}

// Returns false if there is not enough memory, even after all that may give way has done so.
bool SleepingPools::wake_somehow(PrivatePool& pool, Held& held) {
  if (try_to_wake(pool, held)) return true;
  if (pressure_.run_last_resorts(held) && try_to_wake(pool, held)) return true;
  const int priority = pool.evictable ? pool.evictable->priority : kAnyPriority;
  while (pressure_.evict(&pool, priority, held) != 0) {
    if (try_to_wake(pool, held)) return true;
  }
  return false;
}

bool SleepingPools::try_to_wake(PrivatePool& pool, Held& held) {
  Growing growing(state_.growth_mutex, held);
  if (!pool.is_asleep) return true;
  require_may_sleep(pool.id, "restore_physical", growing);  // a capture may have begun
  driver().free_orphans(growing);
  forget_idle_sleepers(pool, growing);
  if (!wake_once(pool, growing)) {
    recovery_.recover(growing);
    if (!wake_once(pool, growing)) return false;
  }
  pool.is_asleep = false;
  saved_.forget_all(pool, growing);
  saved_.free(growing);
  return true;
}

// Returns false without memory for the handles or for their mappings.
bool SleepingPools::wake_once(const PrivatePool& pool, Growing& growing) {
  const Vector<HandleId> sleepers = handles_of(pool, /*asleep=*/true, growing);
  const std::size_t bytes = bytes_of(sleepers, growing);
  std::optional<Ledger::Ask> ask = state_.ledger.ask(bytes, growing);
  if (!ask && bytes != 0) return false;
  Vector<MemoryHandle> memory;
  return create_again(sleepers, memory, ask, growing) && have_memory([&] {
           holds(growing);
           wake(pool, sleepers, memory, ask, growing);
         });
}

// Forgets sleeping memory that was freed meanwhile: it need not come back, unless a graph may know its addresses.
void SleepingPools::forget_idle_sleepers(PrivatePool& pool, Growing& growing) {
  if (pools_.in_use(pool, growing)) return;
  Vector<HandleId> idle = pages().idle_handles(state_.pools_of(&pool, growing));
  std::erase_if(idle, [&](HandleId id) { return !pages().pages().handle(id).is_asleep(); });
  pages().claim_handles(idle);
  driver().release_handles(idle, &pool, growing);
}

// Memory for each of the handles, as asked for, until it is mapped; or false, and none.
bool SleepingPools::create_again(const Vector<HandleId>& handles, Vector<MemoryHandle>& memory,
                                 std::optional<Ledger::Ask>& ask, Growing& growing) {
  std::vector<std::size_t> sizes;
  sizes.reserve(handles.size());
  for (const HandleId id : handles) sizes.push_back(pages().pages().bytes(pages().pages().handle(id)));
  memory.reserve(handles.size());
  std::exception_ptr error;
  try {
    const Unlocked<Held> unlocked(growing);
    while (memory.size() < handles.size()) {
      const auto created = state_.device->create(sizes[memory.size()]);
      if (!created) break;
      memory.push_back(*created);
    }
  } catch (...) {
    error = std::current_exception();
  }
  if (memory.size() == handles.size()) return true;
  undo_creation(handles, memory, ask, growing);
  memory.clear();
  if (error) std::rethrow_exception(error);
  return false;
}

// Takes create_again back, except for handles that are awake by now.
void SleepingPools::undo_creation(const Vector<HandleId>& handles, const Vector<MemoryHandle>& memory,
                                  std::optional<Ledger::Ask>& ask, Growing& growing) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const PhysicalHandle& handle = pages().pages().handle(handles[i]);
    if (!handle.is_asleep()) continue;
    const std::size_t bytes = pages().pages().bytes(handle);
    ask->withdrawn(bytes, growing);
    if (i < memory.size()) driver().adopt_orphan({memory[i], bytes, {}}, growing);
  }
  driver().free_orphans(growing);
}

// Wakes handles: all are awake with their saved content, or the driver's error is thrown and they are asleep again, as
// far as it allows.
void SleepingPools::wake(const PrivatePool& pool, const Vector<HandleId>& sleepers, const Vector<MemoryHandle>& memory,
                         std::optional<Ledger::Ask>& ask, Growing& growing) {
  map_again(pool, sleepers, memory, ask, growing);
  try {
    restore_saved_bytes(pool, growing);
  } catch (...) {
    try {
      give_back(sleepers, growing);
    } catch (const CudaError&) {  // the first error is the one to tell
    }
    throw;
  }
}

// Handles are awake, and observers are told, once all are accessible. After a failure those stay awake that the driver does not
// unmap: their memory can go nowhere else.
void SleepingPools::map_again(const PrivatePool& pool, const Vector<HandleId>& sleepers,
                              const Vector<MemoryHandle>& memory, std::optional<Ledger::Ask>& ask, Growing& growing) {
  Vector<Orphan> mapped;
  std::exception_ptr error;
  try {
    for (const HandleId id : sleepers) {
      Orphan view = view_of(id, growing);
      {
        const Unlocked<Held> unlocked(growing);
        state_.device->map(view.views.front(), view.bytes, memory[mapped.size()]);
      }
      mapped.push_back(std::move(view));
    }
    set_access(pages().handles_of(pool), growing);
  } catch (...) {
    error = std::current_exception();
    driver().unmap(mapped, growing);
  }
  Block* block = nullptr;
  for (std::size_t i = 0; i < mapped.size(); ++i) {
    if (mapped[i].views.empty()) continue;
    const Address at = mapped[i].views.front();
    const PageRange& range = *pages().range_of(at);
    block = &pages().first_block(at, block);
    pages().pages().wake(sleepers[i], memory[i]);
    ask->granted(mapped[i].bytes, growing);
    state_.ledger.pages_came(home_of(range), mapped[i].bytes, growing);
    state_.ledger.tell_of_pages(Change::Action::segment_map, range.kind, at, mapped[i].bytes, *block->arena, nullptr,
                                growing);
  }
  if (!error) return;
  undo_creation(sleepers, memory, ask, growing);
  std::rethrow_exception(error);
}

// Returns where a handle of a private pool is mapped, or is when it is awake; without its memory.
Orphan SleepingPools::view_of(HandleId id, const Held& /*held*/) const {
  const PhysicalHandle& handle = pages().pages().handle(id);
  return {0, pages().pages().bytes(handle), {handle.home}};
}

// Handles that have it already may be among them.
void SleepingPools::set_access(const Vector<HandleId>& handles, Growing& growing) {
  for (const PageHeap::Run& run : pages().runs_of(handles)) {
    const Unlocked<Held> unlocked(growing);
    state_.device->set_access(run.begin, run.bytes, handles_.peers);
  }
}

void SleepingPools::restore_saved_bytes(const PrivatePool& pool, Growing& growing) {
  for (const auto& entry : saved_.of(pool, growing)) {
    const Unlocked<Held> unlocked(growing);
    const char* from = static_cast<const char*>(entry.second.host);
    for (const PageHeap::Stretch& stretch : entry.second.stretches) {
      state_.device->copy_from_host(stretch.begin, from, stretch.bytes);
      from += stretch.bytes;
    }
  }
}

bool SleepingPools::read_saved(Address from, void* to, std::size_t bytes) const {
  const DeviceLock lock(state_.mutex);
  std::size_t copied = 0;
  for (const auto& [pool, handles] : saved_.all(lock)) {
    for (const auto& [id, saved] : handles) {
      const char* content = static_cast<const char*>(saved.host);
      for (const PageHeap::Stretch& stretch : saved.stretches) {
        const Address begin = std::max(stretch.begin, from);
        const Address end = std::min(stretch.begin + stretch.bytes, from + bytes);
        if (begin < end) {
          std::memcpy(static_cast<char*>(to) + (begin - from), content + (begin - stretch.begin), end - begin);
          copied += end - begin;
        }
        content += stretch.bytes;
      }
    }
  }
  return copied == bytes;
}

// --- soundness ----------------------------------------------------------------------------------------------------------

// Checks that memory is away only in pools that are asleep, and that only their memory is saved.
std::string SleepingPools::validate(const Held& held) const {
  if (growth_ == nullptr) return "";
  for (const auto& entry : pools_.all(held)) {
    const PrivatePool& pool = *entry.second;
    if (!pool.is_asleep && !handles_of(pool, /*asleep=*/true, held).empty())
      return formatted("{} is awake, and some of its memory is not", name_of(pool));
    const SavedMemory::OfPool& of_pool = saved_.of(pool, held);
    if (!pool.is_asleep && !of_pool.empty()) return formatted("{} is awake, and has saved bytes", name_of(pool));
    const Vector<HandleId> handles = pages().handles_of(pool);
    for (const auto& saved : of_pool) {
      if (std::find(handles.begin(), handles.end(), saved.first) == handles.end())
        return formatted("{} has saved bytes of handle {}, which is not its own", name_of(pool), saved.first);
    }
  }
  return "";
}

CACHALOT_END
