#include "guard/guard.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "device/wait_for.h"

namespace cachalot {

namespace {

using Pattern = GuardedBlock::Pattern;

Address as_address(const void* ptr) { return reinterpret_cast<Address>(ptr); }
void* as_pointer(Address address) { return reinterpret_cast<void*>(address); }

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

Guard::Guard(DeviceAllocator& heap, const PageMap& page_map, KernelsFactory make_kernels, GuardLog& log)
    : heap_(heap),
      page_map_(page_map),
      device_(*heap.device()),
      make_kernels_(std::move(make_kernels)),
      log_(log),
      order_(heap.device()) {
  heap_.set_last_resort([this] { return drain(); });
}

GuardCall Guard::call_now() { return {++calls_, this_thread(), device_.clock_us()}; }

bool Guard::may_wait(Stream stream) const { return !heap_.is_capturing() && !device_.capture_status(stream).capturing; }

// `sample` is memory of ours, and is overwritten when the kernels are made.
Kernels& Guard::kernels(const PatternSpan& sample, Stream stream) {
  const std::lock_guard lock(kernels_mutex_);
  if (kernels_ == nullptr) {
    std::unique_ptr<Kernels> made = make_kernels_(heap_.device());
    CACHALOT_REQUIRE(made != nullptr, "the factory of kernels made none for device {}", device_.index());
    if (!computes(*made, sample, stream)) made = host_kernels(heap_.device());
    kernels_ = std::move(made);
  }
  return *kernels_;
}

// --- malloc ---------------------------------------------------------------------------------------------------------

void* Guard::allocate(std::size_t bytes, Stream stream, bool contiguous) {
  if (bytes == 0 || bytes >= kMaxRequestBytes) return heap_.allocate(bytes, stream);  // null, or refused
  const std::size_t asked = GuardedBlock::kFront + bytes + GuardedBlock::kLeastBack;
  void* const raw = contiguous ? heap_.allocate_contiguous(asked, stream) : heap_.allocate(asked, stream);
  GuardedBlock block = adopt(raw, bytes, asked, stream);
  try {
    const std::shared_lock memory(memory_);
    if (may_wait(stream)) write_canaries(block);
    remember(block);
  } catch (...) {
    free_in_heap(block, /*was_looked_at=*/true);
    throw;
  }
  return as_pointer(block.address);
}

// What the heap gave for `asked` bytes. Without caching it knows no more of the block.
GuardedBlock Guard::adopt(void* raw, std::size_t bytes, std::size_t asked, Stream stream) {
  const Block* const heap_block = this->heap_block(as_address(raw));
  const auto sizes = heap_block == nullptr ? std::nullopt : heap_.sizes(*heap_block, raw);
  const std::size_t behind = (sizes ? sizes->allocated : asked) - GuardedBlock::kFront - bytes;
  GuardedBlock block;
  block.address = as_address(raw) + GuardedBlock::kFront;
  block.bytes = bytes;
  block.back = std::min(behind, GuardedBlock::kMostBack);
  block.stream = stream;
  block.allocated = call_now();
  return block;
}

void Guard::write_canaries(GuardedBlock& block) {
  const PatternSpan canaries[] = {block.front_canary(), block.back_canary()};
  kernels(canaries[0], block.stream).fill_pattern(block.stream, canaries);
  block.pattern = Pattern::canaries;
  block.front_reported = block.back_reported = false;
}

void Guard::remember(GuardedBlock block) {
  const std::lock_guard lock(mutex_);
  const Address address = block.address;
  live_.insert_or_assign(address, std::move(block));
}

// --- free -----------------------------------------------------------------------------------------------------------

bool Guard::deallocate(const void* ptr, const std::optional<Claim>& claim) {
  return reporting([&](Reports& found) {
    const auto bytes = footprint_of(as_address(ptr), claim);
    if (!bytes) return false;
    const bool keep = make_room(*bytes, found);
    return retire(as_address(ptr), claim, keep, found);
  });
}

std::optional<std::size_t> Guard::footprint_of(Address address, const std::optional<Claim>& claim) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return std::nullopt;
  const GuardedBlock& block = found->second;
  CACHALOT_REQUIRE(!claim || claim->bytes == block.bytes,
                   "size {} does not match the allocation at {:#x}: {} bytes were asked for", claim->bytes, address,
                   block.bytes);
  return block.footprint();
}

// Until it is put back nobody else finds the block.
Guard::Blocks::node_type Guard::take(Address address, const std::optional<Claim>& claim) {
  const GuardCall now = call_now();
  const std::lock_guard lock(mutex_);
  Blocks::node_type node = live_.extract(address);
  if (node.empty()) return node;
  node.mapped().freed = now;
  if (claim) node.mapped().add_use(claim->stream);
  return node;
}

void Guard::put_back(Blocks::node_type node) {
  const std::lock_guard lock(mutex_);
  node.mapped().freed.reset();
  live_.insert(std::move(node));
}

bool Guard::retire(Address address, const std::optional<Claim>& claim, bool keep, Reports& found) {
  std::shared_lock memory(memory_);
  Blocks::node_type node = take(address, claim);
  if (node.empty()) return false;
  GuardedBlock& block = node.mapped();
  try {
    const bool was_looked_at = look_at(block, found);
    if (was_looked_at && keep) {
      quarantine(block);
      return true;
    }
    memory.unlock();
    free_in_heap(block, was_looked_at);
  } catch (...) {
    put_back(std::move(node));
    throw;
  }
  return true;
}

// Compares the canaries after all work on the block; false when that must not be waited for.
bool Guard::look_at(GuardedBlock& block, Reports& found) {
  if (block.pattern != Pattern::canaries || !may_wait(block.stream)) return false;
  if (std::ranges::any_of(block.recorded, [&](Stream stream) { return order_.captures(stream); })) return false;
  for (const Stream stream : block.recorded) order_.put_before(stream, block.stream);
  std::vector<GuardQuestion> questions;
  append_questions(block, questions);
  ask(std::move(questions), block.stream, found);
  return true;
}

// Its streams may go from here on: nothing of ours is left to do on them.
void Guard::quarantine(GuardedBlock& block) {
  block.pattern = Pattern::none;
  kernels(block.front_canary(), block.stream).fill_pattern(block.stream, block.poison());
  wait_for(device_, block.stream);
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
      for (const Stream stream : block.recorded) heap_.record_stream(*heap_block, raw, stream);
    }
    if (heap_.try_deallocate(*heap_block, raw) || heap_.deallocate_with_context(*heap_block, raw)) return;
  }
  [[maybe_unused]] const bool was_uncached = heap_.deallocate_uncached(raw);
  CACHALOT_ASSERT(was_uncached);
}

// --- one block ------------------------------------------------------------------------------------------------------

bool Guard::record_stream(const void* ptr, Stream stream) {
  const std::shared_lock memory(memory_);
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(as_address(ptr));
  if (found == live_.end()) return false;
  found->second.add_use(stream);
  return true;
}

std::optional<std::size_t> Guard::requested(const void* ptr) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(as_address(ptr));
  return found == live_.end() ? std::nullopt : std::optional(found->second.bytes);
}

std::string Guard::describe(const void* ptr) const {
  const auto history = [](const GuardedBlock& block) {
    std::string text = fmt::format("allocated as call {} by thread {}", block.allocated.number, block.allocated.thread);
    if (block.freed) text += fmt::format(", freed as call {} by thread {}", block.freed->number, block.freed->thread);
    return text;
  };
  const Address address = as_address(ptr);
  const std::lock_guard lock(mutex_);
  for (const GuardedBlock& block : quarantine_) {
    if (!block.contains(address)) continue;
    return fmt::format("{} the block of {} bytes at {:#x}, which was already freed ({})",
                       address == block.address ? "it is" : "it lies inside", block.bytes, block.address,
                       history(block));
  }
  for (const auto& [at, block] : live_) {
    if (!block.contains(address)) continue;
    return fmt::format("it lies inside the allocation of {} bytes at {:#x} ({})", block.bytes, at, history(block));
  }
  return "";
}

// --- soundness ------------------------------------------------------------------------------------------------------

std::string Guard::validate() const {
  const std::lock_guard lock(mutex_);
  const auto is_held = [&](const GuardedBlock& block) {
    const void* const raw = as_pointer(block.heap_address());
    const Block* const heap_block = this->heap_block(block.heap_address());
    return (heap_block != nullptr && heap_.sizes(*heap_block, raw).has_value()) || heap_.is_uncached(raw);
  };
  for (const auto& [address, block] : live_) {
    if (!is_held(block)) return fmt::format("guard: the live block at {:#x} is not live in the heap", address);
  }
  std::size_t bytes = 0;
  for (const GuardedBlock& block : quarantine_) {
    if (!is_held(block)) return fmt::format("guard: {:#x} is in quarantine, but not live in the heap", block.address);
    bytes += block.footprint();
  }
  if (bytes != quarantine_bytes_) return fmt::format("guard: quarantine_bytes is {}, not {}", quarantine_bytes_, bytes);
  return "";
}

std::size_t Guard::metadata_bytes() const {
  const std::lock_guard lock(mutex_);
  return sizeof(*this) + (live_.size() + quarantine_.size()) * sizeof(GuardedBlock);
}

}  // namespace cachalot
