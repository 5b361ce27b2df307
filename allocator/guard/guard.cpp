#include "guard/guard.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
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

// Whatever comes of the action: the handler hears of what it found, and no lock is held then.
template <typename Action>
auto Guard::reporting(Action action) {
  Reports found;
  const auto result = [&] {
    try {
      return action(found);
    } catch (...) {
      log_.add(found);
      throw;
    }
  }();
  log_.add(found);
  return result;
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
  block.pattern = Pattern::poison;
  const std::lock_guard lock(mutex_);
  quarantine_.push_back(std::move(block));
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
    if (heap_.deallocate(*heap_block, raw)) return;
  }
  [[maybe_unused]] const bool was_uncached = heap_.deallocate_uncached(raw);
  CACHALOT_ASSERT(was_uncached);
}

// --- quarantine -----------------------------------------------------------------------------------------------------

// Whether a block of so many bytes may be kept; older ones go for it.
bool Guard::make_room(std::size_t bytes, Reports& found) {
  const std::size_t limit = quarantine_limit_;
  if (bytes > limit || heap_.is_capturing()) return false;
  leave_quarantine(limit - bytes, found);
  return true;
}

bool Guard::drain() {
  return reporting([&](Reports& found) { return leave_quarantine(0, found); });
}

// The oldest leave until at most so many bytes are left. What cannot be freed stays.
bool Guard::leave_quarantine(std::size_t keep_bytes, Reports& found) {
  std::deque<GuardedBlock> leaving;
  if (heap_.is_capturing()) return false;
  try {
    {
      const std::shared_lock memory(memory_);
      leaving = take_from_quarantine(keep_bytes);
      std::vector<GuardQuestion> questions;
      for (GuardedBlock& block : leaving) append_questions(block, questions);
      ask(std::move(questions), nullptr, found);
    }
    const bool freed_any = !leaving.empty();
    for (; !leaving.empty(); leaving.pop_front()) free_in_heap(leaving.front(), /*was_looked_at=*/true);
    return freed_any;
  } catch (...) {
    put_back(std::move(leaving));
    throw;
  }
}

std::deque<GuardedBlock> Guard::take_from_quarantine(std::size_t keep_bytes) {
  const std::lock_guard lock(mutex_);
  std::deque<GuardedBlock> leaving;
  while (quarantine_bytes_ > keep_bytes) {
    leaving.push_back(std::move(quarantine_.front()));
    quarantine_.pop_front();
    quarantine_bytes_ -= leaving.back().footprint();
  }
  return leaving;
}

void Guard::put_back(std::deque<GuardedBlock> leaving) {
  const std::lock_guard lock(mutex_);
  for (const GuardedBlock& block : leaving) quarantine_bytes_ += block.footprint();
  quarantine_.insert(quarantine_.begin(), std::make_move_iterator(leaving.begin()),
                     std::make_move_iterator(leaving.end()));
}

std::size_t Guard::quarantine_bytes() const {
  const std::lock_guard lock(mutex_);
  return quarantine_bytes_;
}

// --- looking --------------------------------------------------------------------------------------------------------

void Guard::ask(std::vector<GuardQuestion> questions, Stream stream, Reports& found) {
  if (questions.empty()) return;
  std::vector<PatternSpan> spans;
  spans.reserve(questions.size());
  for (const GuardQuestion& question : questions) spans.push_back(question.span);
  for (const PatternMismatch& mismatch : kernels(spans[0], stream).verify_pattern(stream, spans)) {
    found.push_back(questions[mismatch.span].answer(mismatch.offset, device_.index()));
  }
}

void Guard::check() {
  reporting([&](Reports& found) {
    const std::unique_lock memory(memory_);
    check_all(found);
    return true;
  });
}

// Live blocks after the work of their streams, those that are allocated meanwhile left out.
void Guard::check_all(Reports& found) {
  CACHALOT_REQUIRE(!heap_.is_capturing(),
                   "the guard cannot look at memory of device {} while a graph is captured there", device_.index());
  std::map<Stream, std::vector<GuardQuestion>> of_stream;
  std::vector<GuardQuestion> of_quarantine;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, block] : live_) append_questions(block, of_stream[block.stream]);
    for (GuardedBlock& block : quarantine_) append_questions(block, of_quarantine);
  }
  for (auto& [stream, questions] : of_stream) {
    if (may_wait(stream)) ask(std::move(questions), stream, found);
  }
  ask(std::move(of_quarantine), nullptr, found);
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

// --- memory that goes, or changes -----------------------------------------------------------------------------------

void Guard::put_to_sleep(const std::function<void()>& release_physical) {
  drain();
  reporting([&](Reports& found) {
    const std::unique_lock memory(memory_);
    check_all(found);
    const auto mark_sleepers = [&] {
      const std::lock_guard lock(mutex_);
      for (auto& [address, block] : live_) {
        const Block* const heap_block = this->heap_block(block.heap_address());
        if (block.pattern != Pattern::canaries || heap_block == nullptr || !heap_.sleeps(*heap_block)) continue;
        block.slept = true;
        block.pattern = Pattern::none;
      }
    };
    try {
      release_physical();
    } catch (...) {
      mark_sleepers();
      throw;
    }
    mark_sleepers();
    return true;
  });
}

void Guard::wake() {
  const std::unique_lock memory(memory_);
  std::vector<GuardedBlock*> awake;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, block] : live_) {
      if (block.slept && !heap_.sleeps(*heap_block(block.heap_address()))) awake.push_back(&block);
    }
  }
  for (GuardedBlock* block : awake) {
    if (!may_wait(block->stream)) continue;
    write_canaries(*block);
    block->slept = false;
  }
}

RestoreResult Guard::restore(const PoolCheckpoint& checkpoint) {
  drain();
  const std::unique_lock memory(memory_);
  RestoreResult result = heap_.restore_pool(checkpoint);
  const auto as_users = [](std::vector<void*>& pointers) {
    for (void*& pointer : pointers) pointer = as_pointer(as_address(pointer) + GuardedBlock::kFront);
  };
  as_users(result.freed);
  as_users(result.created);
  const std::lock_guard lock(mutex_);
  for (void* ptr : result.freed) live_.erase(as_address(ptr));
  for (void* ptr : result.created) {
    const auto sizes = heap_.sizes(*heap_block(in_heap(as_address(ptr))), as_pointer(in_heap(as_address(ptr))));
    GuardedBlock block;
    block.address = as_address(ptr);
    block.bytes = sizes->allocated - GuardedBlock::kFront;
    block.allocated = call_now();
    live_.insert_or_assign(block.address, std::move(block));
  }
  return result;
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
