// Files that are easily mistaken for a snapshot or a trace, recognized by how they begin.
#pragma once

#include <string>
#include <string_view>

namespace cachalot::tools {

inline constexpr std::size_t kTellingBytes = 512;  // as many of a file's first bytes as foreign_format looks at

// Returns what a file is and what to do instead, as in "is a PyTorch checkpoint (torch.save), not a memory snapshot: …";
// "" for a file that is not recognized. `begin` has the file's first bytes, decompressed; `wanted` is "memory snapshot" or
// "trace".
std::string foreign_format(std::string_view begin, std::string_view wanted);

// Returns what to say of a file in no known format: how it begins, and what is read instead.
std::string unknown_format(std::string_view begin);

// Returns whether the file begins as a trace does: "a,<number>,".
bool looks_like_trace(std::string_view begin);

}  // namespace cachalot::tools
