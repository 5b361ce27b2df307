// Built in place of diagnostics/ where that folder is not there.
#include <cstdlib>
#include <string_view>

#include "base/check.h"
#include "process_diagnostics.h"

CACHALOT_BEGIN

FrontFactory process_guard(const KernelsFactory& /*kernels*/) { return {}; }

std::string check_guard_json(CachingAllocator& /*allocator*/) {
  throw InvalidArgument("the guard is off: this build has no guard (diagnostics/guard)");
}

std::string publish_process(CachingAllocator& /*allocator*/, const std::string& /*directory*/) {
  throw InvalidArgument("statistics cannot be published: this build has no publisher (diagnostics/publish)");
}

void stop_publishing_process() {}

std::string published_page() { return ""; }

bool is_publishing_asked_for() {
  const char* const text = std::getenv("CACHALOT_PUBLISH");
  const std::string_view value = text == nullptr ? "" : text;
  CACHALOT_REQUIRE(value.empty() || value == "0",
                   "'{:.60}' is not 0: this build has no publisher of statistics (diagnostics/publish)", value);
  return false;
}

void publish_as_asked(CachingAllocator& /*allocator*/) {}

CACHALOT_END
