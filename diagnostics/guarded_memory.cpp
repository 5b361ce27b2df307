#include "diagnostics/guarded_memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "device/addresses.h"

CACHALOT_BEGIN

std::size_t most_quarantined_bytes = std::size_t{256} << 20;

std::optional<BlockSizes> GuardedHeap::sizes(Address in_heap) const {
  const Block* const block = page_map_.find(in_heap);
  return block == nullptr ? std::nullopt : cachalot::sizes(heap_.state, *block, as_pointer(in_heap));
}

bool GuardedHeap::holds(const GuardedBlock& block) const {
  return sizes(block.heap_address()).has_value() || heap_.uncached.contains(as_pointer(block.heap_address()));
}

bool GuardedHeap::sleeps(const GuardedBlock& block) const {
  const Block* const found = find(block);
  return found != nullptr && cachalot::sleeps(heap_.state, *found, as_pointer(block.heap_address()));
}

void GuardedHeap::free(const GuardedBlock& block, bool was_waited_for) {
  const void* const raw = as_pointer(block.heap_address());
  Block* const found = find(block);
  if (found != nullptr) {
    if (!was_waited_for) {
      for (const KnownStream& stream : block.recorded) heap_.fast.record_stream(*found, raw, stream);
    }
    if (heap_.fast.deallocate(*found, raw)) return;
  }
  [[maybe_unused]] const bool was_uncached = heap_.uncached.deallocate(raw);
  CACHALOT_ASSERT(was_uncached);
}

void GuardedHeap::tell_watchers(Change::Action action, const GuardedBlock& block) {
  if (!heap_.state.observers.is_watched()) return;
  heap_.state.observers.tell_watchers({.action = action,
                                       .address = block.address,
                                       .bytes = block.bytes,
                                       .block_bytes = block.heap_bytes,
                                       .stream = block.stream.handle},
                                      action == Change::Action::alloc ? block.site : CallStack());
}

namespace {

using Pattern = GuardedBlock::Pattern;

// Kernels that compute nothing, those of a simulated runtime, find every byte as it should be.
bool computes(Kernels& kernels, const PatternSpan& sample, Stream stream) {
  kernels.fill_pattern(stream, sample);
  return kernels.verify_pattern(stream, {sample.address, sample.bytes, ~sample.seed}).has_value();
}

}  // namespace

GuardedMemory::GuardedMemory(DeviceAllocator& heap, KernelsFactory make_kernels)
    : heap_(heap), device_(heap.state.device), make_kernels_(std::move(make_kernels)), order_(heap.state.device) {}

Stream GuardedMemory::stream_for_work(const KnownStream& stream) {
  if (still_lives(*device_, stream)) return stream.handle;
  device_->synchronize();
  return nullptr;
}

bool GuardedMemory::may_wait(const KnownStream& stream) {
  return !heap_.pools.is_capturing() && !device_->capture_status(stream_for_work(stream)).capturing;
}

// `sample` is memory of the guard, and is overwritten when the kernels are made.
Kernels& GuardedMemory::kernels(const PatternSpan& sample, Stream stream) {
  const Lock lock(kernels_mutex_);
  if (kernels_ == nullptr) {
    std::unique_ptr<Kernels> made = make_kernels_(device_);
    CACHALOT_REQUIRE(made != nullptr, "the factory of kernels made none for device {}", device_->index());
    if (!computes(*made, sample, stream)) made = host_kernels(device_);
    kernels_ = std::move(made);
  }
  return *kernels_;
}

void GuardedMemory::write_canaries(GuardedBlock& block) {
  const PatternSpan canaries[] = {block.front_canary(), block.back_canary()};
  const Stream stream = stream_for_work(block.stream);
  kernels(canaries[0], stream).fill_pattern(stream, canaries);
  block.pattern = Pattern::canaries;
  block.front_reported = block.back_reported = false;
}

Pattern GuardedMemory::poison(GuardedBlock& block) {
  block.pattern = Pattern::none;
  const Stream stream = stream_for_work(block.stream);
  Kernels& writing = kernels(block.front_canary(), stream);
  const Pattern kind = writing.copies_through_host() ? Pattern::samples : Pattern::poison;
  std::vector<PatternSpan> spans;
  block.append_poison(kind, spans);
  writing.fill_pattern(stream, spans);
  wait_for(*device_, stream);
  return kind;
}

bool GuardedMemory::compare_canaries(GuardedBlock& block, Reports& found) {
  if (block.pattern != Pattern::canaries || !may_wait(block.stream)) return false;
  const Stream stream = stream_for_work(block.stream);
  const auto comes_after = [&](const KnownStream& user) { return wait_for_use(user, stream); };
  if (!std::ranges::all_of(block.recorded, comes_after)) return false;
  std::vector<GuardQuestion> questions;
  append_questions(block, questions);
  compare(std::move(questions), stream, found);
  return true;
}

// The stream waits for the work of another that uses its block; false while that captures. A stream that was destroyed
// takes no event, so the device is waited for.
bool GuardedMemory::wait_for_use(const KnownStream& user, Stream stream) {
  try {
    if (order_.captures(user)) return false;
    order_.put_before(user, stream);
  } catch (const CudaError& error) {
    wait_in_place_of_stream(*device_, error);
  }
  return true;
}

void GuardedMemory::compare(std::vector<GuardQuestion> questions, Stream stream, Reports& found) {
  if (questions.empty()) return;
  std::vector<PatternSpan> spans;
  spans.reserve(questions.size());
  for (const GuardQuestion& question : questions) spans.push_back(question.span);
  for (const PatternMismatch& mismatch : kernels(spans[0], stream).verify_pattern(stream, spans)) {
    const GuardQuestion& question = questions[mismatch.span];
    if (!*question.was_reported) found.push_back(question.answer(mismatch.offset, device_->index()));
  }
}

// The quarantine.

bool Quarantine::make_room(std::size_t bytes, Reports& found) {
  if (bytes > most_bytes_ || heap_.pools.is_capturing()) return false;
  shrink_to(most_bytes_ - bytes, found);
  return true;
}

bool Quarantine::empty_all(Reports& found) { return shrink_to(0, found); }

// Lets the oldest leave until at most `keep_bytes` are left.
bool Quarantine::shrink_to(std::size_t keep_bytes, Reports& found) {
  if (heap_.pools.is_capturing()) return false;
  Blocks leaving;
  try {
    {
      const SharedLock looking(memory_.mutex);
      leaving = take_oldest(keep_bytes);
      std::vector<GuardQuestion> questions;
      for (GuardedBlock& block : leaving) cachalot::append_questions(block, questions);
      memory_.compare(std::move(questions), nullptr, found);
    }
    const bool freed_any = !leaving.empty();
    for (; !leaving.empty(); leaving.pop_front()) blocks_.free(leaving.front(), /*was_waited_for=*/true);
    return freed_any;
  } catch (...) {
    put_back(std::move(leaving));
    throw;
  }
}

Quarantine::Blocks Quarantine::take_oldest(std::size_t keep_bytes) {
  const Lock lock(mutex_);
  Blocks leaving;
  while (bytes_ > keep_bytes) {
    bytes_ -= kept_.front().footprint();
    leaving.splice(leaving.end(), kept_, kept_.begin());
  }
  return leaving;
}

void Quarantine::put_back(Blocks leaving) {
  const Lock lock(mutex_);
  for (const GuardedBlock& block : leaving) bytes_ += block.footprint();
  kept_.splice(kept_.begin(), leaving);
}

// Until the block is in the list its pattern is unknown.
void Quarantine::add(GuardedBlock& block, GuardedMemory& memory) {
  const GuardedBlock::Pattern pattern = memory.poison(block);
  const Lock lock(mutex_);
  kept_.push_back(std::move(block));
  kept_.back().pattern = pattern;
  bytes_ += kept_.back().footprint();
}

void Quarantine::forget(Address address) {
  const Lock lock(mutex_);
  const auto found = std::ranges::find(kept_, address, &GuardedBlock::address);
  if (found == kept_.end()) return;
  bytes_ -= found->footprint();
  kept_.erase(found);
}

void Quarantine::mark_sleepers() {
  const Lock lock(mutex_);
  for (GuardedBlock& block : kept_) {
    if (blocks_.sleeps(block)) block.pattern = GuardedBlock::Pattern::none;
  }
}

void Quarantine::append_questions(std::vector<GuardQuestion>& questions, GuardedMemory& /*memory*/) {
  const Lock lock(mutex_);
  for (GuardedBlock& block : kept_) cachalot::append_questions(block, questions);
}

std::size_t Quarantine::bytes() const {
  const Lock lock(mutex_);
  return bytes_;
}

std::optional<GuardSighting> Quarantine::sight(Address at) const {
  const Lock lock(mutex_);
  const auto found = std::ranges::find_if(kept_, [&](const GuardedBlock& block) { return block.contains(at); });
  return found == kept_.end() ? std::nullopt : std::optional(GuardSighting{*found, at});
}

std::string Quarantine::validate(const std::function<bool(const GuardedBlock&)>& holds) const {
  const Lock lock(mutex_);
  std::size_t bytes = 0;
  for (const GuardedBlock& block : kept_) {
    if (!holds(block)) return formatted("guard: {:#x} is in quarantine, but not live in the heap", block.address);
    bytes += block.footprint();
  }
  return bytes == bytes_ ? "" : formatted("guard: quarantine_bytes is {}, not {}", bytes_, bytes);
}

std::size_t Quarantine::metadata_bytes() const {
  const Lock lock(mutex_);
  return kept_.size() * sizeof(GuardedBlock);
}

CACHALOT_END
