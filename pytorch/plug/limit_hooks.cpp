// Limits of the process's allocator at run time (AllocatorLimits), for the Python package, by ctypes.
//
// Codes and `error` as in hooks.h; JSON as by cachalot_plug_json. Thread-safe. To be called without Python's lock (GIL): trim
// and reserve call the driver, and the soft limit's function takes the lock.
#include <cstddef>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json_writer.h"
#include "pytorch/plug/guarded.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

// Is called on the thread that crossed the soft limit, without a lock of the allocator. It keeps the exception that the
// thread raises in Python, and throws nothing.
using CachalotOnSoft = void (*)(int device, std::size_t held_bytes, std::size_t soft_limit_bytes);

namespace cachalot {
namespace {

MemoryLimit limit_of(const char* text) {
  CACHALOT_REQUIRE(text != nullptr, "limit is {}; it must point to a text such as 20GiB or none", "NULL");
  return MemoryLimit::parse(text);
}

std::size_t size_of(const char* name, const char* text) {
  CACHALOT_REQUIRE(text != nullptr, "{} is NULL; it must point to a size such as 2GiB", name);
  return parse_bytes(text);
}

// Memory may be allocated while Python looks for the handler of an exception.
SoftLimitCallback to_function(CachalotOnSoft on_soft) {
  if (on_soft == nullptr) return nullptr;
  return [on_soft](const SoftLimitReport& report) {
    const KeptException kept(/*may_take_gil=*/true);
    on_soft(report.device, report.held_bytes, report.soft_limit_bytes);
  };
}

void write(JsonWriter& json, const char* name, const std::optional<std::size_t>& bytes) {
  if (bytes) {
    json.member(name, *bytes);
  } else {
    json.member(name, nullptr);
  }
}

// Returns the limits with the fields of cachalot.Limits.
std::string limits_json(const LimitFigures& figures) {
  JsonWriter json;
  json.begin_object().member("device", figures.device).member("set_by", figures.set_by);
  write(json, "limit_bytes", figures.limit_bytes);
  write(json, "soft_limit_bytes", figures.soft_limit_bytes);
  json.member("held_bytes", figures.held_bytes).member("reservation_bytes", figures.reservation_bytes).end_object();
  return json.take();
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// `limit` is a text of MemoryLimit (options.h).
CACHALOT_EXPORT int cachalot_plug_set_limit(const char* limit, int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().set_limit(limit_of(limit), device), 0; });
}

// `on_soft` may be null with the limit "none".
CACHALOT_EXPORT int cachalot_plug_set_soft_limit(const char* limit, CachalotOnSoft on_soft, int device, char* error,
                                                 std::size_t capacity) {
  return guarded(error, capacity, [&] {
    const MemoryLimit soft = limit_of(limit);
    return process_allocator().set_soft_limit(soft, to_function(on_soft), device), 0;
  });
}

// `keep` and `size` are texts of a size, such as 2GiB or 1048576. trim returns the bytes that went back; negative after an
// error.
CACHALOT_EXPORT long cachalot_plug_trim(const char* keep, int device, char* error, std::size_t capacity) {
  return guarded(error, capacity,
                 [&] { return static_cast<long>(process_allocator().trim(size_of("keep", keep), device)); });
}

CACHALOT_EXPORT int cachalot_plug_reserve(const char* size, int device, char* error, std::size_t capacity) {
  return guarded(error, capacity, [&] { return process_allocator().reserve(size_of("size", size), device), 0; });
}

// LimitFigures of a device; limits that are not set are null.
CACHALOT_EXPORT long cachalot_plug_limits_json(int device, char* text, long capacity) {
  return guarded_text(text, capacity, [&] { return limits_json(process_allocator().limit_figures(device)); });
}
}
