// Patterns and moves by CUDA kernels: a launch carries dozens of stretches as its arguments, so that it needs no memory and
// no copy.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cachalot/kernels.h"
#include "device/cuda_device.h"
#include "kernels/cuda_module.h"

CACHALOT_BEGIN

class CudaKernels final : public Kernels {
 public:
  // `module` is the device's. Throws OutOfMemory where the device does not have the memory for the answers.
  CudaKernels(std::shared_ptr<CudaDevice> device, const CudaModule& module);
  ~CudaKernels() override;

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override;
  void move(Stream stream, Span<const BlockMove> moves) override;
  void verify_some(Stream stream, Span<const PatternSpan> spans, std::size_t first,
                   std::vector<PatternMismatch>& mismatches);

  const std::shared_ptr<CudaDevice> device_;
  const CudaModule& module_;
  std::mutex answers_mutex_;  // one verification at a time; held while it waits
  const Address answers_;     // in device memory, one a span
};

CACHALOT_END
