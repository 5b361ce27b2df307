#include "diagnostics/device_guard.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/known_stream.h"
#include "heap/observers.h"

CACHALOT_BEGIN

DeviceGuard::DeviceGuard(DeviceAllocator& heap, const PageMap& page_map, Duties duties, KernelsFactory make_kernels,
                         GuardLog& log)
    : heap_(heap),
      duties_(duties),
      front_(duties.canaries ? GuardedBlock::kFront : 0),
      log_(log),
      calls_(*heap.state.device, duties.debug),
      books_(duties.debug),
      mistakes_(heap, calls_, log),
      blocks_(heap, page_map),
      memory_(heap, std::move(make_kernels)),
      quarantine_(heap, blocks_, memory_, duties.canaries ? most_quarantined_bytes : 0) {
  heap_.pressure.add_last_resort([this] { return drain(); });
  heap_.state.observers.watch_through_front();
}

// --- malloc ---------------------------------------------------------------------------------------------------------

void* DeviceGuard::allocate(std::size_t bytes, Stream stream, const AllocationPlace& place) {
  if (bytes == 0 || bytes >= kMaxRequestBytes) return heap_.fast.allocate(bytes, stream);  // null, or refused
  void* made = nullptr;
  try {
    return log_.tell_after([&] { return made = allocate_block(bytes, stream, place); });
  } catch (...) {  // of the quarantine, which was emptied for it: a handler
    if (made != nullptr) undo_allocation(made);
    throw;
  }
}

// Frees memory that the caller does not have yet: also if the device refuses to check it.
void DeviceGuard::undo_allocation(const void* ptr) {
  try {
    deallocate(ptr);
  } catch (const CudaError&) {
    forget(as_address(ptr), std::nullopt, calls_.stack_now());
  }
}

void* DeviceGuard::allocate_block(std::size_t bytes, Stream stream, const AllocationPlace& place) {
  const AllocationStack for_watchers(heap_.state.observers.is_watched());
  const std::size_t asked = duties_.canaries ? front_ + bytes + GuardedBlock::kLeastBack : bytes;
  CallStack stack = calls_.stack_now();
  const KnownStream known = heap_.streams.identify(stream);
  AllocationPlace in_heap = place;
  in_heap.alignment.offset = front_;
  void* const raw =
      in_heap.is_anywhere() ? heap_.fast.allocate(asked, stream) : heap_.fast.allocate_placed(asked, stream, in_heap);
  GuardedBlock block = adopt(raw, bytes, asked, known, std::move(stack));
  try {
    const SharedLock looking(memory_.mutex);
    if (duties_.canaries && memory_.may_wait(block.stream)) memory_.write_canaries(block);
    books_.add(block);
  } catch (...) {
    blocks_.free(block, /*was_waited_for=*/true);
    throw;
  }
  blocks_.tell_watchers(Change::Action::alloc, block);
  return as_pointer(block.address);
}

// Adopts the heap's memory for `asked` bytes. Without caching the heap knows no more of the block.
GuardedBlock DeviceGuard::adopt(void* raw, std::size_t bytes, std::size_t asked, const KnownStream& stream,
                                CallStack stack) {
  GuardedBlock block;
  block.address = as_address(raw) + front_;
  block.bytes = bytes;
  block.front = front_;
  block.stream = stream;
  block.site = AllocationStack::of_this_thread();
  block.allocated = calls_.next(std::move(stack));
  const auto sizes = blocks_.sizes(as_address(raw));
  block.heap_bytes = sizes ? sizes->allocated : asked;
  if (duties_.canaries) block.back = std::min(block.heap_bytes - front_ - bytes, GuardedBlock::kMostBack);
  return block;
}

// --- free -----------------------------------------------------------------------------------------------------------

bool DeviceGuard::deallocate(const void* ptr, const std::optional<Claim>& claim) {
  if (claim) require_size(ptr, claim->bytes);
  const auto bytes = books_.footprint(as_address(ptr));
  if (!bytes) return false;
  CallStack stack = calls_.stack_now();
  return reporting([&](Reports& found) {
    try {
      const bool keep = quarantine_.make_room(*bytes, found);
      return retire(as_address(ptr), claim, stack, keep, found);
    } catch (const DeviceReset&) {
      return forget(as_address(ptr), claim, std::move(stack));  // destructors must be able to free it
    }
  });
}

void DeviceGuard::require_size(const void* ptr, std::size_t claimed) {
  const std::optional<std::size_t> asked = requested(ptr);
  if (!asked || *asked == claimed) return;
  const std::string message =
      formatted("size {} does not match the allocation at {}: {} bytes were asked for", claimed, ptr, *asked);
  report_mistake(GuardReport::Kind::wrong_size, ptr, message);
  throw InvalidArgument(message);
}

GuardBooks::Entry DeviceGuard::take(Address address, const std::optional<Claim>& claim, CallStack stack) {
  const auto user = claim ? std::optional(heap_.streams.identify(claim->stream)) : std::nullopt;
  return books_.take(address, user, calls_.next(std::move(stack)));
}

bool DeviceGuard::retire(Address address, const std::optional<Claim>& claim, CallStack stack, bool keep,
                         Reports& found) {
  GuardBooks::Entry entry;
  bool was_told = false;
  bool was_looked_at = false;
  const auto undo = [&] {
    if (was_told) blocks_.tell_watchers(Change::Action::alloc, entry.mapped());
    books_.put_back(std::move(entry));
  };
  {
    const SharedLock looking(memory_.mutex);
    entry = take(address, claim, std::move(stack));
    if (entry.empty()) return false;
    GuardedBlock& block = entry.mapped();
    try {
      was_looked_at = duties_.canaries && memory_.compare_canaries(block, found);
      blocks_.tell_watchers(Change::Action::free_requested, block);
      was_told = true;
      if (was_looked_at && keep) {
        quarantine_.add(block, memory_);
        return true;
      }
    } catch (...) {
      undo();
      throw;
    }
  }
  try {
    blocks_.free(entry.mapped(), was_looked_at);
  } catch (...) {
    undo();
    throw;
  }
  return true;
}

bool DeviceGuard::forget(Address address, const std::optional<Claim>& claim, CallStack stack) {
  GuardBooks::Entry entry;
  {
    const SharedLock looking(memory_.mutex);
    entry = take(address, claim, std::move(stack));
  }
  if (entry.empty()) return false;
  blocks_.tell_watchers(Change::Action::free_requested, entry.mapped());
  blocks_.free(entry.mapped(), /*was_waited_for=*/true);
  return true;
}

bool DeviceGuard::drain() {
  return reporting([&](Reports& found) { return quarantine_.empty_all(found); });
}

// --- one block ------------------------------------------------------------------------------------------------------

bool DeviceGuard::record_stream(const void* ptr, Stream stream) {
  const SharedLock looking(memory_.mutex);
  if (!requested(ptr)) return false;
  return books_.add_use(as_address(ptr), heap_.streams.identify(stream));
}

void DeviceGuard::stream_ends(Stream stream) {
  const KnownStream ending = heap_.streams.identify(stream);
  if (ending.key.is_immortal()) return;
  const SharedLock looking(memory_.mutex);
  wait_for(*heap_.state.device, stream);
  books_.forget_stream(ending);
}

std::optional<std::size_t> DeviceGuard::requested(const void* ptr) const {
  return books_.requested_bytes(as_address(ptr));
}

std::optional<DeviceGuard::Sighting> DeviceGuard::sight(const void* ptr) const {
  std::optional<Sighting> sighting = books_.sight(as_address(ptr));
  return sighting ? sighting : quarantine_.sight(as_address(ptr));
}

// --- mistakes -------------------------------------------------------------------------------------------------------

void DeviceGuard::report_mistake(GuardReport::Kind kind, const void* ptr, std::string message) {
  if (duties_.debug) mistakes_.report(kind, ptr, sight(ptr), std::move(message));
}

void DeviceGuard::report_released_pool(PoolId pool, std::string_view message) {
  if (duties_.debug) mistakes_.report_released_pool(pool, message);
}

void DeviceGuard::note_users(PoolId pool) {
  if (duties_.debug) mistakes_.note_users(pool);
}

// --- looking at all -------------------------------------------------------------------------------------------------

void DeviceGuard::check() {
  reporting([&](Reports& found) {
    const Lock looking(memory_.mutex);
    compare_all(found);
    return true;
  });
}

// Live blocks after the work of their streams, those that are allocated meanwhile left out.
void DeviceGuard::compare_all(Reports& found) {
  CACHALOT_REQUIRE(!heap_.pools.is_capturing(),
                   "the guard cannot look at memory of device {} while a graph is captured there",
                   heap_.state.device->index());
  std::map<StreamKey, std::pair<KnownStream, std::vector<GuardQuestion>>> of_stream;
  books_.for_each_live([&](GuardedBlock& block) {
    auto& [stream, questions] = of_stream[block.stream.key];
    stream = block.stream;
    append_questions(block, questions);
  });
  std::vector<GuardQuestion> of_quarantine;
  quarantine_.append_questions(of_quarantine, memory_);
  for (auto& [key, asked] : of_stream) {
    auto& [stream, questions] = asked;
    if (memory_.may_wait(stream)) memory_.compare(std::move(questions), memory_.stream_for_work(stream), found);
  }
  memory_.compare(std::move(of_quarantine), nullptr, found);
}

// --- soundness ------------------------------------------------------------------------------------------------------

std::string DeviceGuard::validate() const {
  const auto holds = [this](const GuardedBlock& block) { return blocks_.holds(block); };
  std::string broken = books_.validate(holds);
  return broken.empty() ? quarantine_.validate(holds) : broken;
}

std::size_t DeviceGuard::metadata_bytes() const {
  return sizeof(*this) + books_.metadata_bytes() + quarantine_.metadata_bytes();
}

// The guard around what takes memory away from blocks that stay, or makes others of them: sleep and checkpoints.

// --- sleep ----------------------------------------------------------------------------------------------------------

void DeviceGuard::put_to_sleep(FunctionRef<void()> release_physical) {
  drain();
  reporting([&](Reports& found) {
    const Lock looking(memory_.mutex);
    compare_all(found);
    try {
      release_physical();
    } catch (...) {  // a part may be asleep
      mark_sleepers();
      throw;
    }
    mark_sleepers();
    return true;
  });
}

// Other threads may have freed into the quarantine since it was drained.
void DeviceGuard::mark_sleepers() {
  quarantine_.mark_sleepers();
  books_.for_each_live([&](GuardedBlock& block) {
    if (block.pattern != GuardedBlock::Pattern::canaries || !blocks_.sleeps(block)) return;
    block.slept = true;
    block.pattern = GuardedBlock::Pattern::none;
  });
}

void DeviceGuard::wake() {
  const Lock looking(memory_.mutex);
  books_.for_each_live([&](GuardedBlock& block) {
    memory_.mutex.assert_held();
    if (!block.slept || blocks_.sleeps(block) || !memory_.may_wait(block.stream)) return;
    memory_.write_canaries(block);
    block.slept = false;
  });
}

// --- checkpoints ----------------------------------------------------------------------------------------------------

RestoreResult DeviceGuard::restore(const PoolCheckpoint& checkpoint) {
  drain();
  const CallStack stack = calls_.stack_now();
  const Lock looking(memory_.mutex);
  RestoreResult result = heap_.checkpoints.restore_pool(checkpoint);
  const auto as_users = [this](std::vector<void*>& pointers) {
    for (void*& pointer : pointers) pointer = as_pointer(as_address(pointer) + front_);
  };
  as_users(result.freed);
  as_users(result.created);
  std::erase_if(result.freed, [this](const void* ptr) { return !forget_restored(as_address(ptr)); });
  for (const void* ptr : result.created) adopt_restored(as_address(ptr), stack);
  return result;
}

// Returns false if its user had freed it already. Then a capture may have kept it in quarantine.
bool DeviceGuard::forget_restored(Address address) {
  const GuardBooks::Entry entry = books_.extract(address);
  if (entry.empty()) {
    quarantine_.forget(address);
    return false;
  }
  blocks_.tell_watchers(Change::Action::free_requested, entry.mapped());
  return true;
}

// Adopts a restored block. Its requested bytes are no longer known: all of the heap's block is the user's.
void DeviceGuard::adopt_restored(Address address, const CallStack& stack) {
  GuardedBlock block;
  block.address = address;
  block.front = front_;
  block.heap_bytes = blocks_.sizes(block.heap_address()).value().allocated;
  block.bytes = block.heap_bytes - front_;
  block.allocated = calls_.next(stack);
  books_.add(block);
  blocks_.tell_watchers(Change::Action::alloc, block);
}

CACHALOT_END
