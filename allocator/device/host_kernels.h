// The host twin: patterns and moves by copies, on any Device. Memory of any size goes through a buffer of at most a
// mebibyte.
#pragma once

#include <memory>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/kernels.h"

CACHALOT_BEGIN

class HostKernels final : public Kernels {
 public:
  explicit HostKernels(std::shared_ptr<Device> device) : device_(std::move(device)) {}

 private:
  void fill(Stream stream, Span<const PatternSpan> spans) override;
  std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) override;
  void move(Stream stream, Span<const BlockMove> moves) override;

  const std::shared_ptr<Device> device_;
};

CACHALOT_END
