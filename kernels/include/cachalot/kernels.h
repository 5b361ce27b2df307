/// @file
/// The operations on device memory that need kernels: patterns and moves.
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

CACHALOT_BEGIN_API

/// A PatternSpan names device memory and the seed of its pattern. Any alignment and any length are
/// allowed. Zero-length spans are ignored; their addresses are not checked.
struct PatternSpan {
  Address address = 0;     ///< of the first byte
  std::size_t bytes = 0;   ///< length
  std::uint64_t seed = 0;  ///< of the pattern
};

/// A PatternMismatch names the first byte of a span that differs from the pattern.
struct PatternMismatch {
  std::size_t span = 0;    ///< index of the span among the spans that were verified
  std::size_t offset = 0;  ///< of the byte in the span
  /// Compares both members.
  friend bool operator==(const PatternMismatch& a, const PatternMismatch& b) {
    return a.span == b.span && a.offset == b.offset;
  }
  /// Returns !(a == b).
  friend bool operator!=(const PatternMismatch& a, const PatternMismatch& b) { return !(a == b); }
};

/// A BlockMove names a copy within a device. Zero-length moves are ignored; their addresses are not
/// checked.
struct BlockMove {
  Address from = 0;       ///< of the first byte to read
  Address to = 0;         ///< of the first byte to write
  std::size_t bytes = 0;  ///< length
};

/// A Kernels fills device memory with patterns, verifies the patterns later, and moves many blocks
/// at once. It finds out which byte of a block was overwritten.
///
///     auto kernels = cachalot::kernels_for(allocator.device());  // links cachalot::kernels
///     kernels->fill_pattern(stream, {address, bytes, seed});
///     ...
///     auto offset = kernels->verify_pattern(stream, {address, bytes, seed});
///     if (offset) std::printf("byte %zu was overwritten\n", *offset);
///
/// A byte of the pattern is a function of its address and the seed: a block that was shifted,
/// copied from elsewhere or filled with another seed differs. A stray byte equals the pattern with
/// a probability of 1/256, eight stray bytes with one of 2^-64.
///
/// There are two implementations: CUDA kernels for a GPU, and a host twin for any other Device,
/// which copies through the host. The host twin serves tests on the simulated device, whose kernels
/// compute nothing.
///
/// Thread safety: every method may be called from any thread at any time.
/// Errors: InvalidArgument for memory that begins at null or passes the last address, before
/// anything is done. CudaError if the device refuses; some spans may then be filled and some blocks
/// copied.
class Kernels {
 public:
  virtual ~Kernels() = default;
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  /// Writes the pattern to every span, in the order of the stream's work. Where spans overlap, the
  /// pattern of either may remain.
  /// On a GPU the work is queued and may be captured into a graph.
  /// Blocks: the host twin waits for the stream and has filled the spans when it returns.
  void fill_pattern(Stream stream, Span<const PatternSpan> spans);
  /// Writes the pattern to one span; otherwise as the function above.
  void fill_pattern(Stream stream, const PatternSpan& span) {
    fill_pattern(stream, Span<const PatternSpan>(&span, 1));
  }

  /// Returns the first byte that differs of each span that has one, in the order of the spans.
  /// Compares after the stream's work so far.
  /// Requires: the stream does not capture.
  /// Blocks: until the result is known.
  std::vector<PatternMismatch> verify_pattern(Stream stream, Span<const PatternSpan> spans);
  /// Returns the offset of the first byte of one span that differs, or nullopt; otherwise as the
  /// function above.
  std::optional<std::size_t> verify_pattern(Stream stream, const PatternSpan& span);

  /// Copies every block to its new place, in the order of the stream's work. On a GPU the copies
  /// are queued and may be captured into a graph.
  /// Requires: the moves have no order among themselves, so no destination overlaps another
  /// destination or a source. Sources may overlap.
  /// Throws InvalidArgument, which names the two moves, if a destination overlaps.
  /// Blocks: the host twin waits for the stream and has copied the blocks when it returns.
  void move_blocks(Stream stream, Span<const BlockMove> moves);

  /// Returns whether all memory is copied through the host, as the host twin does: large spans take
  /// long.
  virtual bool copies_through_host() const { return false; }

 protected:
  Kernels() = default;

 private:
  virtual void fill(Stream stream, Span<const PatternSpan> spans) = 0;
  virtual std::vector<PatternMismatch> verify(Stream stream, Span<const PatternSpan> spans) = 0;
  // No move is empty, and they are as move_blocks requires.
  virtual void move(Stream stream, Span<const BlockMove> moves) = 0;
};

/// A KernelsFactory makes the Kernels of a device: host_kernels or kernels_for.
using KernelsFactory = std::function<std::unique_ptr<Kernels>(std::shared_ptr<Device>)>;

/// Returns the host twin. It is correct for every device and slow on a GPU. Part of cachalot::core.
/// Throws InvalidArgument if `device` is null.
std::unique_ptr<Kernels> host_kernels(std::shared_ptr<Device> device);

/// Returns CUDA kernels for a GPU, else the host twin; also the host twin, after a line on stderr,
/// if the driver of the GPU does not compile the kernels. Part of cachalot::kernels.
/// On a GPU it takes 11 KiB of device memory for results.
/// Throws InvalidArgument if `device` is null; OutOfMemory if a GPU does not have that memory.
std::unique_ptr<Kernels> kernels_for(std::shared_ptr<Device> device);

CACHALOT_END_API
