// Limits of the process's allocator at run time (AllocatorLimits), for the Python package, by ctypes: what it needs beside c_api.h.
//
// Codes and texts: hooks.h. Thread-safe.
#include <cstddef>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/check.h"
#include "base/json_writer.h"
#include "c_api/last_error.h"
#include "pytorch/plug/hooks.h"
#include "pytorch/plug/process_allocator.h"
#include "pytorch/plug/python_api.h"

namespace cachalot {
namespace {

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

// Sets `bytes` to those that a text such as 2GiB or 1048576 stands for.
CACHALOT_EXPORT int cachalot_plug_bytes(const char* text, std::size_t* bytes) {
  return guarded([&] {
    CACHALOT_REQUIRE(text != nullptr, "text is {}; it must point to a size such as 2GiB", "NULL");
    *bytes = parse_bytes(text);
  });
}

CACHALOT_EXPORT void cachalot_plug_on_soft_limit(const cachalot_soft_limit_t* report, void* context) {
  const KeptException kept(/*may_take_gil=*/true);
  reinterpret_cast<void (*)(const cachalot_soft_limit_t*)>(context)(report);
}

// Sets the memory that is free on a device and all that it has, as the allocator counts them: of an integrated GPU by the machine's
// memory.
CACHALOT_EXPORT int cachalot_plug_memory_info(int device, std::size_t* free, std::size_t* total) {
  return guarded([&] {
    const MemoryInfo memory = process_allocator().device(device)->memory_info();
    *free = memory.free_bytes;
    *total = memory.total_bytes;
  });
}

// LimitFigures of a device as JSON, with the name of what set the limit; limits that are not set are null.
CACHALOT_EXPORT char* cachalot_plug_limits_json(int device) {
  return text_or_null([&] { return limits_json(process_allocator().limit_figures(device)); });
}
}
