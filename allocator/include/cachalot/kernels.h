// What kernels do to device memory: patterns, to find out who wrote where, and moves of many blocks at once.
//
// A pattern fills a block, and later it is verified that every byte is as it was.
//
//   auto kernels = cachalot::kernels_for(allocator.device());  // links cachalot::kernels
//   kernels->fill_pattern(stream, {address, bytes, seed});
//   …
//   if (auto offset = kernels->verify_pattern(stream, {address, bytes, seed})) …  // somebody wrote there
//
// A byte of the pattern is a function of its address and the seed: a block that was shifted, copied from elsewhere or
// filled with another seed differs. A stray byte goes unnoticed once in 256 times, eight of them once in 2^64.
//
// Two implementations are equals: CUDA kernels for a GPU, and a host twin for any other Device, which copies: so that
// what uses them can be tested on the simulated device, where kernels compute nothing.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/span.h"

namespace cachalot {

// Device memory and the seed of its pattern. Any alignment, any length; an empty one is left alone, wherever it is.
struct PatternSpan {
  Address address = 0;
  std::size_t bytes = 0;
  std::uint64_t seed = 0;
};

// The first byte of a span that is not as the pattern has it.
struct PatternMismatch {
  std::size_t span = 0;    // its place among the spans asked about
  std::size_t offset = 0;  // in the span, bytes
  friend bool operator==(const PatternMismatch& a, const PatternMismatch& b) {
    return a.span == b.span && a.offset == b.offset;
  }
  friend bool operator!=(const PatternMismatch& a, const PatternMismatch& b) { return !(a == b); }
};

// A copy within a device. An empty one is nothing, wherever it is.
struct BlockMove {
  Address from = 0;
  Address to = 0;
  std::size_t bytes = 0;
};

// Thread safety: every method may be called from any thread at any time.
// Errors: InvalidArgument for memory that begins at null or passes the end of all addresses, before anything is done;
// CudaError for what the device refuses: then some spans may be filled and some blocks copied, and nothing is held.
class Kernels {
 public:
  virtual ~Kernels() = default;
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Writes the pattern to every span, in the order of the stream's work; where spans overlap either's pattern may stay.
  // On a GPU it is queued, and may be captured into a graph; the host twin waits for the stream and has filled when it
  // returns.
  void fill_pattern(Stream stream, Span<const PatternSpan> spans);
  void fill_pattern(Stream stream, const PatternSpan& span) { fill_pattern(stream, Span<const PatternSpan>(&span, 1)); }

  // Compares after the stream's work so far, waits for the answer, and returns the first byte that differs of each span
  // that has one, in the order of the spans. Not while the stream captures.
  std::vector<PatternMismatch> verify_pattern(Stream stream, Span<const PatternSpan> spans);
  // The offset of the first byte that differs; nullopt: none does.
  std::optional<std::size_t> verify_pattern(Stream stream, const PatternSpan& span);

  // Copies every block to its new place, in the order of the stream's work and in no order among themselves: so no
  // destination may overlap another one or any source (InvalidArgument names the two moves); sources may. On a GPU it
  // is queued, all moves in one go; the host twin waits for the stream and has copied when it returns. Not while the
  // stream captures. OutOfMemory, before anything is done, where a GPU has not the memory for the list of moves.
  void move_blocks(Stream stream, Span<const BlockMove> moves);

 protected:
  Kernels() = default;

 private:
  virtual void fill(Stream stream, Span<const PatternSpan> spans) = 0;
  virtual std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) = 0;
  // None is empty, and they are as move_blocks requires.
  virtual void move(Stream stream, Span<const BlockMove> moves) = 0;
};

using KernelsFactory = std::function<std::unique_ptr<Kernels>(std::shared_ptr<Device>)>;

// The host twin: right for every device, slow on a GPU. `device` is not null.
std::unique_ptr<Kernels> host_kernels(std::shared_ptr<Device> device);

// CUDA kernels for a GPU, where they were built; else the host twin. On a GPU it takes 11 KiB of its memory, for the
// answers, and with the first moves 72 KiB more; OutOfMemory when there is not that much. `device` is not null. In the
// library cachalot::kernels; all else here is in cachalot::core.
std::unique_ptr<Kernels> kernels_for(std::shared_ptr<Device> device);

}  // namespace cachalot
