#include "kernels/cuda_kernels.h"

#include <algorithm>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_calls.h"
#include "kernels/launches.h"

namespace cachalot {

namespace {

constexpr std::size_t kAnswerBytes = kSpansALaunch * sizeof(unsigned long long);

Address allocate_for(const char* purpose, Device& device, std::size_t bytes) {
  const auto address = device.malloc(bytes);
  if (!address) {
    throw OutOfMemory("device " + std::to_string(device.index()) + " has no " + format_bytes(bytes) + " for " + purpose,
                      device.index(), bytes);
  }
  return *address;
}

// Calls use(part, place of its first item) for every launch that the items take.
template <typename Item, typename Use>
void for_each_launch(Span<const Item> items, std::size_t most, Use&& use) {
  for (std::size_t first = 0; first < items.size(); first += most) {
    use(items.subspan(first, std::min(most, items.size() - first)), first);
  }
}

}  // namespace

CudaKernels::CudaKernels(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      answers_(reinterpret_cast<unsigned long long*>(
          allocate_for("the answers of verify_pattern", *device_, kAnswerBytes))) {}

CudaKernels::~CudaKernels() {
  try {
    device_->free(reinterpret_cast<Address>(answers_));
    if (moves_.list != nullptr) device_->free(reinterpret_cast<Address>(moves_.list));
    if (moved_ != nullptr) device_->event_destroy(moved_);
  } catch (const CudaError&) {  // the device is lost, or captures: a destructor has nobody to tell
  }
}

void CudaKernels::fill(Stream stream, Span<const PatternSpan> spans) {
  const CurrentDevice current(device_->index());
  for_each_launch(spans, kSpansALaunch, [&](Span<const PatternSpan> part, std::size_t) {
    check("cudaLaunchKernel", launch_fill(stream, part));
  });
}

std::vector<PatternMismatch> CudaKernels::verify(Stream stream, Span<const PatternSpan> spans) {
  const CurrentDevice current(device_->index());
  const std::lock_guard lock(answers_mutex_);
  std::vector<PatternMismatch> mismatches;
  for_each_launch(spans, kSpansALaunch, [&](Span<const PatternSpan> part, std::size_t first) {
    verify_launch(stream, part, first, mismatches);
  });
  return mismatches;
}

void CudaKernels::verify_launch(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                                std::vector<PatternMismatch>& mismatches) {
  std::vector<unsigned long long> answers(spans.size(), kNoDifference);
  const std::size_t bytes = answers.size() * sizeof(answers[0]);
  check("cudaMemcpyAsync", cudaMemcpyAsync(answers_, answers.data(), bytes, cudaMemcpyHostToDevice, stream));
  check("cudaLaunchKernel", launch_verify(stream, spans, answers_));
  check("cudaMemcpyAsync", cudaMemcpyAsync(answers.data(), answers_, bytes, cudaMemcpyDeviceToHost, stream));
  check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i] != kNoDifference) mismatches.push_back({first + i, answers[i]});
  }
}

void CudaKernels::move(Stream stream, Span<const BlockMove> moves) {
  const CurrentDevice current(device_->index());
  const std::lock_guard lock(moves_mutex_);
  if (moves_.list == nullptr) make_move_scratch();
  device_->stream_wait(stream, moved_);
  for_each_launch(moves, kMovesALaunch, [&](Span<const BlockMove> part, std::size_t) {
    const cudaError_t code = launch_moves(stream, part, moves_);
    device_->event_record(moved_, stream);  // also where only the list was queued
    check("cub::DeviceMemcpy::Batched", code);
  });
}

// The list, and behind it what CUB needs, in one allocation.
void CudaKernels::make_move_scratch() {
  constexpr std::size_t kListBytes = round_up(kMovesALaunch * sizeof(BlockMove), 256);  // as CUB aligns its own
  MoveScratch scratch;
  check("cub::DeviceMemcpy::Batched", move_temp_bytes(scratch.temp_bytes));
  if (moved_ == nullptr) moved_ = device_->event_create();
  const Address memory = allocate_for("a list of moves", *device_, kListBytes + scratch.temp_bytes);
  scratch.list = reinterpret_cast<BlockMove*>(memory);
  scratch.temp = reinterpret_cast<void*>(memory + kListBytes);
  moves_ = scratch;
}

}  // namespace cachalot
