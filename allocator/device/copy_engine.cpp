#include "device/copy_engine.h"

#include <algorithm>

CACHALOT_BEGIN

std::int64_t CopyEngine::take(std::int64_t now_ns, std::int64_t earliest_ns, std::int64_t duration_ns) {
  std::erase_if(busy_, [&](const auto& copy) { return copy.second <= now_ns; });
  std::int64_t begin_ns = std::max(now_ns, earliest_ns);
  if (duration_ns == 0) return begin_ns;
  for (const auto& [busy_from_ns, busy_until_ns] : busy_) {
    if (begin_ns + duration_ns <= busy_from_ns) break;
    begin_ns = std::max(begin_ns, busy_until_ns);
  }
  busy_.emplace(begin_ns, begin_ns + duration_ns);
  return begin_ns + duration_ns;
}

CACHALOT_END
