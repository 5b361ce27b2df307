// Patterns and moves by CUDA kernels: hundreds of spans in one launch, which carries them as its arguments, so that a
// launch needs no memory and no copy. Moves are CUB's, which wants them listed in device memory: a launch writes the
// list.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/kernels.h"
#include "kernels/launches.h"

namespace cachalot {

class CudaKernels final : public Kernels {
 public:
  // `device` is a GPU. OutOfMemory when it has not the memory for the answers.
  explicit CudaKernels(std::shared_ptr<Device> device);
  ~CudaKernels() override;

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override;
  void move(Stream stream, Span<const BlockMove> moves) override;
  void make_move_scratch();
  void verify_launch(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                     std::vector<PatternMismatch>& mismatches);

  const std::shared_ptr<Device> device_;
  std::mutex answers_mutex_;           // one verification at a time; held while it waits
  unsigned long long* const answers_;  // in device memory, one a span of a launch
  // Moves share one scratch: the next on whatever stream come after the event. Made when the first are queued.
  std::mutex moves_mutex_;
  MoveScratch moves_;
  Event moved_ = nullptr;
};

}  // namespace cachalot
