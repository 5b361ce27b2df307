// Sizes and times that the tests of devices share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace cachalot {

inline constexpr std::size_t kPage = 2 * kMiB;
inline constexpr std::int64_t kMicrosecond = 1000;  // of the simulated clock, in ns

}  // namespace cachalot
