// The publishing of the process's statistics (statistics_publisher.h), for the Python package, by ctypes.
//
// Codes and `error` as in hooks.h. Thread-safe. To be called without Python's lock (GIL).
#include <cstddef>
#include <string>

#include "base/json_writer.h"
#include "live/process_publisher.h"
#include "pytorch/export.h"
#include "pytorch/guarded.h"
#include "pytorch/process.h"

namespace cachalot {
namespace {

std::string published_json() {
  JsonWriter json;
  json.begin_object().member("path", published_page()).end_object();
  return json.take();
}

}  // namespace
}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

extern "C" {

// `directory` is the folder of the page, or null for the usual one.
CACHALOT_EXPORT int cachalot_plug_publish(const char* directory, char* error, std::size_t capacity) {
  return guarded(error, capacity,
                 [&] { return publish_process(process_allocator(), directory == nullptr ? "" : directory), 0; });
}

CACHALOT_EXPORT int cachalot_plug_stop_publishing(char* error, std::size_t capacity) {
  return guarded(error, capacity, [] { return stop_publishing_process(), 0; });
}

// {"path": of the page, or "" if nothing is published}, as by cachalot_plug_json.
CACHALOT_EXPORT long cachalot_plug_published_json(char* text, long capacity) {
  return guarded_text(text, capacity, published_json);
}
}
