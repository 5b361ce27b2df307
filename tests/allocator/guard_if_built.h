// The guard for tests that take it as one more kind of heap. Without diagnostics/ they run without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cachalot/caching_allocator.h"
#if __has_include("cachalot/guard.h")
#include "cachalot/guard.h"

CACHALOT_BEGIN
extern std::size_t most_quarantined_bytes;  // of guarded_memory.h, whose other names clash with those of tests/programs
CACHALOT_END
#endif

namespace cachalot {

#if __has_include("cachalot/guard.h")

inline FrontFactory guard_if_built() { return guard_factory(); }
inline Options parse_guarded(std::string_view text) { return parse_options(text); }

// The quarantine of allocators that are made while it lives.
class SmallQuarantine {
 public:
  explicit SmallQuarantine(std::size_t bytes = kMiB) : before_(std::exchange(most_quarantined_bytes, bytes)) {}
  SmallQuarantine(const SmallQuarantine&) = delete;
  SmallQuarantine& operator=(const SmallQuarantine&) = delete;
  ~SmallQuarantine() { most_quarantined_bytes = before_; }

 private:
  const std::size_t before_;
};

inline std::uint64_t guard_reports(CachingAllocator& allocator) { return AllocatorGuard(allocator).reports(); }
inline std::size_t quarantined_bytes(CachingAllocator& allocator) {
  return AllocatorGuard(allocator).quarantine_bytes();
}

#else

inline FrontFactory guard_if_built() { return {}; }
inline Options parse_guarded(std::string_view text) {
  Options options = parse_options(text);
  options.guard = options.debug = false;
  return options;
}
struct SmallQuarantine {
  explicit SmallQuarantine(std::size_t /*bytes*/ = 0) {}
};
inline std::uint64_t guard_reports(CachingAllocator& /*allocator*/) { return 0; }
inline std::size_t quarantined_bytes(CachingAllocator& /*allocator*/) { return 0; }

#endif

}  // namespace cachalot
