#include "cachalot/c_limits.h"

#include "base/check.h"
#include "c_api_boundary.h"

CACHALOT_BEGIN
namespace {

MemoryLimit limit_of(const char* function, const char* text) {
  CACHALOT_REQUIRE(text != nullptr, "{}: limit is NULL; it must point to a text such as \"20GiB\" or \"none\"",
                   function);
  return MemoryLimit::parse(text);
}

SoftLimitCallback to_function(cachalot_soft_limit_callback callback, void* context) {
  if (callback == nullptr) return nullptr;
  return [callback, context](const SoftLimitReport& report) {
    const cachalot_soft_limit_t in_c = {report.device, report.held_bytes, report.soft_limit_bytes};
    callback(&in_c, context);
  };
}

}  // namespace
CACHALOT_END

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_set_limit(const char* limit, int device) {
  return guarded([&] { c_allocator().set_limit(limit_of("cachalot_set_limit", limit), device); });
}

int cachalot_set_soft_limit(const char* limit, cachalot_soft_limit_callback callback, void* context, int device) {
  return guarded([&] {
    const MemoryLimit soft = limit_of("cachalot_set_soft_limit", limit);
    c_allocator().set_soft_limit(soft, to_function(callback, context), device);
  });
}

int cachalot_limit_figures(int device, cachalot_limits_t* out) {
  static_assert(CACHALOT_NO_LIMIT == MemoryLimit::kNone);
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr, "cachalot_limit_figures: out is {}; it must point to a cachalot_limits_t", "NULL");
    const LimitFigures figures = c_allocator().limit_figures(device);
    *out = {figures.limit_bytes.value_or(CACHALOT_NO_LIMIT), figures.soft_limit_bytes.value_or(CACHALOT_NO_LIMIT),
            figures.held_bytes, figures.reservation_bytes};
  });
}

size_t cachalot_trim(size_t keep, int device) {
  return value_or<size_t>(0, [&] { return c_allocator().trim(keep, device); });
}

int cachalot_reserve(size_t size, int device) {
  return guarded([&] { c_allocator().reserve(size, device); });
}
