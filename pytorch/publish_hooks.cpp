#include "pytorch/publish_hooks.h"

#include <string>

#include "base/json_writer.h"
#include "live/process_publisher.h"
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

int cachalot_plug_publish(const char* directory, char* error, std::size_t capacity) {
  return guarded(error, capacity,
                 [&] { return publish_process(process_allocator(), directory == nullptr ? "" : directory), 0; });
}

int cachalot_plug_stop_publishing(char* error, std::size_t capacity) {
  return guarded(error, capacity, [] { return stop_publishing_process(), 0; });
}

long cachalot_plug_published_json(char* text, long capacity) { return guarded_text(text, capacity, published_json); }
