// What the guard (option guard:True) finds: memory that was written by somebody whose it was not; and with debug:True
// what callers did wrong.
//
//   cachalot::CachingAllocator allocator(devices, cachalot::parse_options("debug:True"), cachalot::kernels_for);
//   allocator.set_guard_handler([](const cachalot::GuardReport& report) { log(to_string(report)); });
//
// Each block has canaries, patterns before and behind it, which are compared when it is freed. What is freed is filled
// with a pattern and kept for a while (guard_quarantine_mb); nothing may be written there any more, and who does is
// found when it leaves. A byte that is written with what was there goes unnoticed: once in 256 times.
//
// With debug:True a free of what is not allocated, another size at the free than at the allocation and the like, which are
// refused with an InvalidArgument always, are reported as well: also those that the caller has no way to pass on, or
// passes over. For that the last 65,536 blocks that were freed on each device are remembered, until their addresses are
// allocated again. With debug:True,guard:False that is all: no canaries, and no free that waits. docs/debugging.md shows
// what each report looks like.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "cachalot/span.h"

namespace cachalot {

// An allocation or a free, as the guard remembers it.
struct GuardCall {
  // Of the device's allocations and frees, from 1 on, in the order they were made; of a mistake: the last one's before it.
  std::uint64_t number = 0;
  std::uint64_t thread = 0;  // the operating system's number of it
  std::int64_t clock_us =
      0;              // Device::clock_us: microseconds since the Unix epoch; simulated: since the device's making
  CallStack stack{};  // with debug:True; else empty
  friend bool operator==(const GuardCall& a, const GuardCall& b) {
    return a.number == b.number && a.thread == b.thread && a.clock_us == b.clock_us && a.stack == b.stack;
  }
  friend bool operator!=(const GuardCall& a, const GuardCall& b) { return !(a == b); }
};

// One block, where it was written to or what was done to it, and its history.
struct GuardReport {
  enum class Kind : std::uint8_t {
    front_canary,      // somebody wrote before the block
    back_canary,       // somebody wrote behind it
    write_after_free,  // somebody wrote to it, or beside it, when it was freed
    // With debug:True, mistakes of a caller:
    double_free,     // a free of a block that was freed already
    invalid_free,    // a free of an address where no block begins: within one, or where none was
    wrong_size,      // a free that said another size than the allocation
    wrong_device,    // a free that said another device than the allocation
    use_after_free,  // another call (record_stream, share, …) with a block that was freed
    invalid_use,     // another call with an address where no block begins
    released_pool,   // use of a private pool that all its users have released
  };
  Kind kind = Kind::front_canary;
  int device = 0;                   // -1: of an address that no device knows
  Address address = 0;              // of the block: what allocate returned; where no block is known, of the mistake
  std::size_t requested_bytes = 0;  // of the block; 0: none is known
  // From `address`, of the first byte that was overwritten, or of the pointer that was passed; negative: before the block.
  std::ptrdiff_t offset = 0;
  Stream stream = nullptr;               // that it was allocated for
  std::vector<Stream> recorded{};        // others that it was used on, as record_stream said
  std::optional<GuardCall> allocated{};  // none: no block is known
  std::optional<GuardCall> freed{};      // none: it is live; of a pool: its last user's release
  std::optional<GuardCall> mistake{};    // the call that was wrong; none: somebody wrote, and who is not known
  std::string message{};                 // of a mistake: what was wrong with it
};

// Whether it is a mistake of a caller; else something was found in memory.
bool is_mistake(GuardReport::Kind kind);

const char* to_string(GuardReport::Kind kind);  // "front_canary", …
// A paragraph, and with debug:True a list of frames for each call; without an end of line.
std::string to_string(const GuardReport& report);
// A JSON array of objects with the names of the members above; streams and addresses are numbers.
std::string to_json(Span<const GuardReport> reports);

// Called for each report, by the thread that found it, with none of the allocator's locks held: it may call the
// allocator. What it throws comes out of the call that found it, which has then done its work; of a mistake, instead of
// the InvalidArgument. A call that returns memory or a checkpoint has then done nothing: allocate, checkpoint_pool,
// pool_has_exactly, restore_pool. If the call fails, or is a destructor's, what handlers throw is dropped.
using GuardHandler = std::function<void(const GuardReport&)>;

}  // namespace cachalot
