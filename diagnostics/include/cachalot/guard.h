/// @file
/// The guard of an allocator, which reports memory corruption and mistakes of callers.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/allocator_groups.h"
#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "cachalot/kernels.h"
#include "cachalot/span.h"

CACHALOT_BEGIN_API

/// A GuardCall describes an allocation, a free or a mistake, as the guard remembers it.
struct GuardCall {
  /// Number of the call among the device's allocations and frees, from 1 on. For a mistake: the
  /// number of the last allocation or free before it.
  std::uint64_t number = 0;
  std::uint64_t thread = 0;  ///< the operating system's number of the thread
  /// Device::clock_us: microseconds since the Unix epoch; on a simulated device, since it was made.
  std::int64_t clock_us = 0;
  CallStack stack{};  ///< with debug:True; else empty

  /// Compares all members.
  friend bool operator==(const GuardCall& a, const GuardCall& b) {
    return a.number == b.number && a.thread == b.thread && a.clock_us == b.clock_us &&
           a.stack == b.stack;
  }
  /// Returns !(a == b).
  friend bool operator!=(const GuardCall& a, const GuardCall& b) { return !(a == b); }
};

/// A GuardReport describes one write to memory that the writer does not own or, with debug:True,
/// one mistake of a caller.
///
///     auto options = cachalot::parse_options("debug:True");
///     cachalot::CachingAllocator allocator(devices, options,
///                                          cachalot::guard_factory(cachalot::kernels_for));
///     cachalot::AllocatorGuard(allocator).set_handler([](const auto& r) { log(to_string(r)); });
///
/// With guard:True each block has canaries, which are patterns before and behind it. The canaries
/// are compared when the block is freed. A freed block is filled with a pattern and kept in
/// quarantine for a while, up to 256 MiB of each device. A write to quarantined memory is detected
/// when the block leaves quarantine. A byte that is overwritten with the value that it had goes
/// unnoticed: once in 256 times.
///
/// With debug:True the guard also reports what callers do wrong, such as a free of memory that is
/// not allocated, or a free with another size than the allocation. Those calls throw
/// InvalidArgument with or without the guard; a report exists even if the caller cannot pass the
/// error on or ignores it. The guard remembers the last 65,536 freed blocks of each device for
/// this, until their addresses are allocated again. With debug:True,guard:False there are only
/// these reports: no canaries, no quarantine, and no free that waits.
///
/// docs/debugging.md shows each report.
struct GuardReport {
  /// Kind names the finding.
  enum class Kind : std::uint8_t {
    front_canary,      ///< a write before the block
    back_canary,       ///< a write behind the block
    write_after_free,  ///< a write to a freed block, or to its canaries
    // With debug:True, mistakes of a caller:
    double_free,     ///< a free of a block that was freed already
    invalid_free,    ///< a free of an address where no block begins
    wrong_size,      ///< a free with another size than the allocation
    wrong_device,    ///< a free with another device than the allocation
    use_after_free,  ///< another call (record_stream, share, ...) with a block that was freed
    invalid_use,     ///< another call with an address where no block begins
    released_pool,   ///< use of a private pool after all its users released it
  };
  Kind kind = Kind::front_canary;  ///< the kind of the finding
  int device = 0;                  ///< index of the device; -1: no device knows the address
  Address address = 0;  ///< of the block, as allocate returned it; without a block: of the mistake
  std::size_t requested_bytes = 0;  ///< of the block; 0: no block is known
  /// Distance from `address` to the first byte that was overwritten, or to the pointer that was
  /// passed. Negative: before the block.
  std::ptrdiff_t offset = 0;
  Stream stream = nullptr;               ///< stream that the block was allocated for
  std::vector<Stream> recorded{};        ///< other streams that it was used on (record_stream)
  std::optional<GuardCall> allocated{};  ///< the allocation; empty: no block is known
  /// The free; empty: the block is live. For released_pool: the release by the last user.
  std::optional<GuardCall> freed{};
  std::optional<GuardCall> mistake{};  ///< the wrong call; empty: a write, whose author is unknown
  std::string message{};               ///< of a mistake: what was wrong
};

/// Returns true for a mistake of a caller, false for a write that was found in memory.
bool is_mistake(GuardReport::Kind kind);

/// Returns the name of the kind: "front_canary", ...
const char* to_string(GuardReport::Kind kind);
/// Returns a paragraph, and with debug:True a list of frames for each call; without an end of line.
std::string to_string(const GuardReport& report);
/// Returns a JSON array of objects with the names of the members above. Streams and addresses are
/// numbers.
std::string to_json(Span<const GuardReport> reports);

/// A GuardHandler is called for each report, by the thread that found it, with none of the
/// allocator's locks held: it may call the allocator.
///
/// An exception that it throws leaves the call that found the report:
/// - of a write: after the call has done its work. allocate, checkpoint_pool, pool_has_exactly and
///   restore_pool return memory or a checkpoint, and have then done nothing.
/// - of a mistake: instead of the InvalidArgument.
///
/// If the call itself fails, or is deallocate_when_possible, the exception is dropped.
using GuardHandler = std::function<void(const GuardReport&)>;

class CachingAllocator;
class GuardFront;

/// Returns the factory of the guard, for the constructor of a CachingAllocator. It is used if the
/// options are guard:True or debug:True. `kernels` makes the kernels that write and compare
/// patterns; kernels_for of cachalot::kernels is the fast choice on a GPU.
FrontFactory guard_factory(KernelsFactory kernels = host_kernels);

/// An AllocatorGuard controls the guard of a CachingAllocator, which must outlive it.
///
/// An allocator has a guard if it was made with guard:True or debug:True. With the guard on,
/// statistics and snapshots describe the heap's own blocks, which start 512 bytes before the user's
/// and end behind them; blocks in quarantine count as allocated. A free waits for the streams that
/// use the block, which must exist until then. With debug:True,guard:False none of this holds.
///
/// Thread safety: any thread. Each function throws InvalidArgument in a forked child.
class AllocatorGuard {
 public:
  /// Controls the guard of `allocator`, if it has one.
  explicit AllocatorGuard(CachingAllocator& allocator);

  /// Sets the handler called for each report. Empty (the default): print to stderr. Does nothing
  /// without a guard.
  void set_handler(GuardHandler handler);
  /// Returns the number of reports so far; 0 without a guard.
  std::uint64_t reports() const;
  /// Verifies all live blocks and all blocks in quarantine now. Returns every report since the last
  /// call, those of frees and of mistakes included; at most the newest 1,000.
  /// Throws InvalidArgument without a guard, and while a graph is captured.
  /// Blocks: until the streams that use the blocks are done.
  std::vector<GuardReport> check();
  /// Returns the bytes in quarantine; 0 without a guard.
  std::size_t quarantine_bytes(int device = 0) const;

 private:
  GuardFront* front() const;

  AllocatorState& state_;
};

CACHALOT_END_API
