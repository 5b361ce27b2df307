// Kernels that move blocks as a GPU does: queued, and known to the hazard checker as work of the stream.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cachalot/kernels.h"
#include "cachalot/simulated_device.h"

namespace cachalot {

// The bytes are copied at once, as all content of the simulated device; the work takes a microsecond a block. The new
// place is handed out to the moving stream and the old one given back, so that both are checked against earlier work.
class MovingKernels final : public Kernels {
 public:
  explicit MovingKernels(std::shared_ptr<SimulatedDevice> device) : device_(std::move(device)) {}

  std::size_t moved() const { return moved_; }  // blocks, ever

 private:
  void fill(Stream, Span<const PatternSpan>) override {}
  std::vector<PatternMismatch> verify(Stream, Span<const PatternSpan>) override { return {}; }
  void move(Stream stream, Span<const BlockMove> moves) override {
    std::vector<std::byte> content;
    for (const auto& [from, to, bytes] : moves) {
      content.resize(bytes);
      device_->copy_to_host(content.data(), from, bytes);
      device_->copy_from_host(to, content.data(), bytes);
    }
    for (const auto& [from, to, bytes] : moves) {
      device_->handed_out(to, bytes, stream);
      hand_to(stream, from, bytes);
      device_->launch(stream, 1000, {{from, bytes}, {to, bytes}});
      device_->given_back(from);
    }
    moved_ += moves.size();
  }
  // Whoever used it so far must come before the stream.
  void hand_to(Stream stream, Address address, std::size_t bytes) {
    device_->given_back(address);
    device_->handed_out(address, bytes, stream);
  }

  const std::shared_ptr<SimulatedDevice> device_;
  std::size_t moved_ = 0;
};

}  // namespace cachalot
