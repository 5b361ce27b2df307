#include "guard/guarded_memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "device/addresses.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

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

// `sample` is memory of ours, and is overwritten when the kernels are made.
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

void GuardedMemory::poison(GuardedBlock& block) {
  block.pattern = Pattern::none;
  const Stream stream = stream_for_work(block.stream);
  kernels(block.front_canary(), stream).fill_pattern(stream, block.poison());
  wait_for(*device_, stream);
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
    found.push_back(questions[mismatch.span].answer(mismatch.offset, device_->index()));
  }
}

CACHALOT_END
