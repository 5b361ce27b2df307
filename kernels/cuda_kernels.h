// Patterns by CUDA kernels: hundreds of spans in one launch, which carries them as its arguments, so that a launch
// needs no memory and no copy.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/kernels.h"

namespace cachalot {

class CudaKernels final : public Kernels {
 public:
  // `device` is a GPU. OutOfMemory when it has not the memory for the answers.
  explicit CudaKernels(std::shared_ptr<Device> device);
  ~CudaKernels() override;

 private:
  void fill(Stream stream, std::span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, std::span<const PatternSpan> spans) override;
  void verify_launch(Stream stream, std::span<const PatternSpan> spans, std::size_t first,
                     std::vector<PatternMismatch>& mismatches);

  const std::shared_ptr<Device> device_;
  std::mutex answers_mutex_;           // one verification at a time; held while it waits
  unsigned long long* const answers_;  // in device memory, one a span of a launch
};

}  // namespace cachalot
