// Plays of parts that have fewer operations than a whole allocator: each step is read from bytes. As a Player does,
// each uses its memory as a well-behaved user would, whatever fails, and expects that
//   - nothing was thrown but OutOfMemory, and CudaError where a call of the device was made to fail;
//   - nobody is handed what others still use or hold, and what is held keeps what was written to it;
//   - the books balance, and validate() finds no broken rule;
// and at the end, when nothing fails any more, that all memory goes back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cachalot/simulated_device.h"
#include "tests/programs/bytes.h"

namespace cachalot {

struct SmallPlayResult {
  std::string trouble;              // "" or what is wrong
  std::uint64_t faults = 0;         // calls of the device that failed
  std::uint64_t out_of_memory = 0;  // OutOfMemory that was thrown
};

// With a `fault` that call fails, counted from the start, and no other; else the bytes say which do.
SmallPlayResult play_tensor_pool(Bytes& bytes, const std::optional<Fault>& fault);
SmallPlayResult play_pinned_memory(Bytes& bytes, const std::optional<Fault>& fault);

struct SmallPlay {
  const char* name;
  SmallPlayResult (*run)(Bytes& bytes, const std::optional<Fault>& fault);
};
inline constexpr SmallPlay kSmallPlays[] = {{"TensorPool", play_tensor_pool}, {"PinnedMemory", play_pinned_memory}};

}  // namespace cachalot
