#include "base/json_writer.h"
#include "cachalot/private_pool.h"

CACHALOT_BEGIN
namespace {

void write_tag(JsonWriter& json, const TagMemory& memory) {
  json.begin_object()
      .member("tag", memory.tag)
      .member("device", memory.device)
      .member("is_asleep", memory.is_asleep)
      .member("allocated_bytes", memory.allocated_bytes)
      .member("requested_bytes", memory.requested_bytes)
      .member("reserved_bytes", memory.reserved_bytes)
      .member("asleep_bytes", memory.asleep_bytes);
  json.key("pool").begin_array().value(memory.pool.first).value(memory.pool.second).end_array().end_object();
}

}  // namespace

std::string to_json(const std::vector<TagMemory>& tags) {
  JsonWriter json;
  json.list(tags, write_tag);
  return json.take();
}

CACHALOT_END
