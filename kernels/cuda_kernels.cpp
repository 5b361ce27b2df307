#include "kernels/cuda_kernels.h"

#include <algorithm>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "device/cuda_calls.h"
#include "kernels/launches.h"

namespace cachalot {

namespace {

constexpr std::size_t kAnswerBytes = kSpansALaunch * sizeof(unsigned long long);

unsigned long long* allocate_answers(Device& device) {
  const auto address = device.malloc(kAnswerBytes);
  if (!address) {
    throw OutOfMemory("device " + std::to_string(device.index()) + " has no " + format_bytes(kAnswerBytes) +
                          " for the answers of verify_pattern",
                      device.index(), kAnswerBytes);
  }
  return reinterpret_cast<unsigned long long*>(*address);
}

// Calls use(part, place of its first span) for every launch that the spans take. Empty ones take none by themselves.
template <typename Use>
void for_each_launch(std::span<const PatternSpan> spans, Use&& use) {
  for (std::size_t first = 0; first < spans.size(); first += kSpansALaunch) {
    use(spans.subspan(first, std::min(kSpansALaunch, spans.size() - first)), first);
  }
}

}  // namespace

CudaKernels::CudaKernels(std::shared_ptr<Device> device)
    : device_(std::move(device)), answers_(allocate_answers(*device_)) {}

CudaKernels::~CudaKernels() {
  try {
    device_->free(reinterpret_cast<Address>(answers_));
  } catch (const CudaError&) {  // the device is lost, or captures: a destructor has nobody to tell
  }
}

void CudaKernels::fill(Stream stream, std::span<const PatternSpan> spans) {
  const CurrentDevice current(device_->index());
  for_each_launch(spans, [&](std::span<const PatternSpan> part, std::size_t) {
    check("cudaLaunchKernel", launch_fill(stream, part));
  });
}

std::vector<PatternMismatch> CudaKernels::verify(Stream stream, std::span<const PatternSpan> spans) {
  const CurrentDevice current(device_->index());
  const std::lock_guard lock(answers_mutex_);
  std::vector<PatternMismatch> mismatches;
  for_each_launch(spans, [&](std::span<const PatternSpan> part, std::size_t first) {
    verify_launch(stream, part, first, mismatches);
  });
  return mismatches;
}

void CudaKernels::verify_launch(Stream stream, std::span<const PatternSpan> spans, std::size_t first,
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

}  // namespace cachalot
