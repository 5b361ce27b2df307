#include "guard/guard.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"
#include "device/wait_for.h"
#include "observe/allocation_stack.h"

namespace cachalot {

namespace {

using Pattern = GuardedBlock::Pattern;

std::uint64_t this_thread() {
  static thread_local const auto number = static_cast<std::uint64_t>(::gettid());
  return number;
}

// Kernels that compute nothing, those of a simulated runtime, find every byte as it should be.
bool computes(Kernels& kernels, const PatternSpan& sample, Stream stream) {
  kernels.fill_pattern(stream, sample);
  return kernels.verify_pattern(stream, {sample.address, sample.bytes, ~sample.seed}).has_value();
}

}  // namespace

Guard::Guard(DeviceAllocator& heap, const PageMap& page_map, Duties duties, KernelsFactory make_kernels, GuardLog& log)
    : heap_(heap),
      page_map_(page_map),
      device_(*heap.state.device),
      duties_(duties),
      front_(duties.canaries ? GuardedBlock::kFront : 0),
      make_kernels_(std::move(make_kernels)),
      log_(log),
      order_(heap.state.device) {
  heap_.pressure.set_last_resort([this] { return drain(); });
  heap_.state.observers.watch_through_guard();
}

CallStack Guard::stack_now() const { return duties_.debug ? CallStack::capture() : CallStack(); }

GuardCall Guard::call_now(CallStack stack) { return {++calls_, this_thread(), device_.clock_us(), std::move(stack)}; }

GuardCall Guard::mistake_now() const { return {calls_, this_thread(), device_.clock_us(), stack_now()}; }

Stream Guard::stream_for_work(const KnownStream& stream) {
  if (still_lives(device_, stream)) return stream.handle;
  device_.synchronize();
  return nullptr;
}

bool Guard::may_wait(const KnownStream& stream) {
  return !heap_.pools.is_capturing() && !device_.capture_status(stream_for_work(stream)).capturing;
}

// `sample` is memory of ours, and is overwritten when the kernels are made.
Kernels& Guard::kernels(const PatternSpan& sample, Stream stream) {
  const std::lock_guard lock(kernels_mutex_);
  if (kernels_ == nullptr) {
    std::unique_ptr<Kernels> made = make_kernels_(heap_.state.device);
    CACHALOT_REQUIRE(made != nullptr, "the factory of kernels made none for device {}", device_.index());
    if (!computes(*made, sample, stream)) made = host_kernels(heap_.state.device);
    kernels_ = std::move(made);
  }
  return *kernels_;
}

// --- malloc ---------------------------------------------------------------------------------------------------------

void* Guard::allocate(std::size_t bytes, Stream stream, bool contiguous) {
  if (bytes == 0 || bytes >= kMaxRequestBytes) return heap_.fast.allocate(bytes, stream);  // null, or refused
  void* made = nullptr;
  try {
    return log_.tell_after([&] { return made = allocate_block(bytes, stream, contiguous); });
  } catch (...) {  // of the quarantine, which was emptied for it: a handler
    if (made != nullptr) undo_allocation(made);
    throw;
  }
}

// Nobody has it yet: also where the device refuses to look at it.
void Guard::undo_allocation(const void* ptr) {
  try {
    deallocate(ptr);
  } catch (const CudaError&) {
    forget(as_address(ptr), std::nullopt, stack_now());
  }
}

void* Guard::allocate_block(std::size_t bytes, Stream stream, bool contiguous) {
  const AllocationStack for_watchers(heap_.state.observers.is_watched());
  const std::size_t asked = duties_.canaries ? front_ + bytes + GuardedBlock::kLeastBack : bytes;
  CallStack stack = stack_now();
  const KnownStream known = heap_.streams.identify(stream);
  void* const raw = contiguous ? heap_.fast.allocate_contiguous(asked, stream) : heap_.fast.allocate(asked, stream);
  GuardedBlock block = adopt(raw, bytes, asked, known, std::move(stack));
  try {
    const std::shared_lock memory(memory_);
    if (duties_.canaries && may_wait(block.stream)) write_canaries(block);
    remember(block);
  } catch (...) {
    free_in_heap(block, /*was_looked_at=*/true);
    throw;
  }
  tell(Change::Action::alloc, block);
  return as_pointer(block.address);
}

void Guard::tell(Change::Action action, const GuardedBlock& block) {
  if (!heap_.state.observers.is_watched()) return;
  heap_.state.observers.tell_watchers({.action = action,
                       .address = block.address,
                       .bytes = block.bytes,
                       .block_bytes = block.heap_bytes,
                       .stream = block.stream.handle},
                      action == Change::Action::alloc ? block.site : CallStack());
}

// What the heap gave for `asked` bytes. Without caching it knows no more of the block.
GuardedBlock Guard::adopt(void* raw, std::size_t bytes, std::size_t asked, const KnownStream& stream, CallStack stack) {
  GuardedBlock block;
  block.address = as_address(raw) + front_;
  block.bytes = bytes;
  block.front = front_;
  block.stream = stream;
  block.site = AllocationStack::of_this_thread();
  block.allocated = call_now(std::move(stack));
  const auto sizes = heap_sizes(as_address(raw));
  block.heap_bytes = sizes ? sizes->allocated : asked;
  if (duties_.canaries) block.back = std::min(block.heap_bytes - front_ - bytes, GuardedBlock::kMostBack);
  return block;
}

void Guard::write_canaries(GuardedBlock& block) {
  const PatternSpan canaries[] = {block.front_canary(), block.back_canary()};
  const Stream stream = stream_for_work(block.stream);
  kernels(canaries[0], stream).fill_pattern(stream, canaries);
  block.pattern = Pattern::canaries;
  block.front_reported = block.back_reported = false;
}

void Guard::remember(GuardedBlock block) {
  const std::lock_guard lock(mutex_);
  freed_.forget(block);
  const Address address = block.address;
  live_.insert_or_assign(address, std::move(block));
}

// --- free -----------------------------------------------------------------------------------------------------------

bool Guard::deallocate(const void* ptr, const std::optional<Claim>& claim) {
  if (claim) require_size(ptr, claim->bytes);
  const auto bytes = footprint_of(as_address(ptr));
  if (!bytes) return false;
  CallStack stack = stack_now();
  return reporting([&](Reports& found) {
    try {
      const bool keep = make_room(*bytes, found);
      return retire(as_address(ptr), claim, stack, keep, found);
    } catch (const DeviceReset&) {
      return forget(as_address(ptr), claim, std::move(stack));  // destructors must be able to free it
    }
  });
}

bool Guard::forget(Address address, const std::optional<Claim>& claim, CallStack stack) {
  const Blocks::node_type node = take(address, claim, std::move(stack));
  if (node.empty()) return false;
  tell(Change::Action::free_requested, node.mapped());
  free_in_heap(node.mapped(), /*was_looked_at=*/true);
  return true;
}

void Guard::require_size(const void* ptr, std::size_t claimed) {
  const std::optional<std::size_t> asked = requested(ptr);
  if (!asked || *asked == claimed) return;
  const std::string message =
      formatted("size {} does not match the allocation at {}: {} bytes were asked for", claimed, ptr, *asked);
  report_mistake(GuardReport::Kind::wrong_size, ptr, message);
  throw InvalidArgument(message);
}

std::optional<std::size_t> Guard::footprint_of(Address address) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  return found == live_.end() ? std::nullopt : std::optional(found->second.footprint());
}

// Until it is put back nobody else finds the block.
Guard::Blocks::node_type Guard::take(Address address, const std::optional<Claim>& claim, CallStack stack) {
  GuardCall now = call_now(std::move(stack));
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return {};
  // It stays where it is when the host has no memory for the books.
  if (claim) found->second.add_use(heap_.streams.identify(claim->stream));
  if (duties_.debug) freed_.add(found->second, now);
  Blocks::node_type node = live_.extract(found);
  node.mapped().freed = std::move(now);
  return node;
}

void Guard::put_back(Blocks::node_type node) {
  const std::lock_guard lock(mutex_);
  freed_.forget(node.mapped());
  node.mapped().freed.reset();
  live_.insert(std::move(node));
}

bool Guard::retire(Address address, const std::optional<Claim>& claim, CallStack stack, bool keep, Reports& found) {
  std::shared_lock memory(memory_);
  Blocks::node_type node = take(address, claim, std::move(stack));
  if (node.empty()) return false;
  GuardedBlock& block = node.mapped();
  bool was_told = false;
  try {
    const bool was_looked_at = look_at(block, found);
    tell(Change::Action::free_requested, block);
    was_told = true;
    if (was_looked_at && keep) {
      quarantine(block);
      return true;
    }
    memory.unlock();
    free_in_heap(block, was_looked_at);
  } catch (...) {
    if (was_told) tell(Change::Action::alloc, block);
    put_back(std::move(node));
    throw;
  }
  return true;
}

// Compares the canaries after all work on the block; false when that must not be waited for.
bool Guard::look_at(GuardedBlock& block, Reports& found) {
  if (!duties_.canaries) return false;
  if (block.pattern != Pattern::canaries || !may_wait(block.stream)) return false;
  const Stream stream = stream_for_work(block.stream);
  const auto comes_after = [&](const KnownStream& user) { return wait_for_use(user, stream); };
  if (!std::ranges::all_of(block.recorded, comes_after)) return false;
  std::vector<GuardQuestion> questions;
  append_questions(block, questions);
  ask(std::move(questions), stream, found);
  return true;
}

// The stream waits for the work of another that uses its block; false while that captures. A stream that was destroyed takes no
// event, so the device is waited for.
bool Guard::wait_for_use(const KnownStream& user, Stream stream) {
  try {
    if (order_.captures(user)) return false;
    order_.put_before(user, stream);
  } catch (const CudaError& error) {
    wait_in_place_of_stream(device_, error);
  }
  return true;
}

// Its streams may go from here on: nothing of ours is left to do on them.
void Guard::quarantine(GuardedBlock& block) {
  block.pattern = Pattern::none;
  const Stream stream = stream_for_work(block.stream);
  kernels(block.front_canary(), stream).fill_pattern(stream, block.poison());
  wait_for(device_, stream);
  const std::lock_guard lock(mutex_);
  quarantine_.push_back(std::move(block));
  quarantine_.back().pattern = Pattern::poison;
  quarantine_bytes_ += quarantine_.back().footprint();
}

// Work on it was either waited for, or the heap is told of it.
void Guard::free_in_heap(const GuardedBlock& block, bool was_looked_at) {
  const void* const raw = as_pointer(block.heap_address());
  Block* const heap_block = this->heap_block(block.heap_address());
  if (heap_block != nullptr) {
    if (!was_looked_at) {
      for (const KnownStream& stream : block.recorded) heap_.fast.record_stream(*heap_block, raw, stream);
    }
    if (heap_.fast.deallocate(*heap_block, raw)) return;
  }
  [[maybe_unused]] const bool was_uncached = heap_.uncached.deallocate(raw);
  CACHALOT_ASSERT(was_uncached);
}

// --- one block ------------------------------------------------------------------------------------------------------

bool Guard::record_stream(const void* ptr, Stream stream) {
  const std::shared_lock memory(memory_);
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(as_address(ptr));
  if (found == live_.end()) return false;
  found->second.add_use(heap_.streams.identify(stream));
  return true;
}

void Guard::stream_ends(Stream stream) {
  const KnownStream ending = heap_.streams.identify(stream);
  if (ending.key.is_immortal()) return;
  const std::shared_lock memory(memory_);
  wait_for(device_, stream);
  const std::lock_guard lock(mutex_);
  for (auto& [address, block] : live_) {
    if (block.stream == ending) block.stream = {};
    std::erase(block.recorded, ending);
  }
}

std::optional<std::size_t> Guard::requested(const void* ptr) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(as_address(ptr));
  return found == live_.end() ? std::nullopt : std::optional(found->second.bytes);
}

// --- soundness ------------------------------------------------------------------------------------------------------

std::string Guard::validate() const {
  const std::lock_guard lock(mutex_);
  const auto is_held = [&](const GuardedBlock& block) {
    return heap_sizes(block.heap_address()).has_value() || heap_.uncached.contains(as_pointer(block.heap_address()));
  };
  for (const auto& [address, block] : live_) {
    if (!is_held(block)) return formatted("guard: the live block at {:#x} is not live in the heap", address);
  }
  std::size_t bytes = 0;
  for (const GuardedBlock& block : quarantine_) {
    if (!is_held(block)) return formatted("guard: {:#x} is in quarantine, but not live in the heap", block.address);
    bytes += block.footprint();
  }
  if (bytes != quarantine_bytes_) return formatted("guard: quarantine_bytes is {}, not {}", quarantine_bytes_, bytes);
  return freed_.validate();
}

std::size_t Guard::metadata_bytes() const {
  const std::lock_guard lock(mutex_);
  return sizeof(*this) + (live_.size() + quarantine_.size()) * sizeof(GuardedBlock) + freed_.metadata_bytes();
}

}  // namespace cachalot
