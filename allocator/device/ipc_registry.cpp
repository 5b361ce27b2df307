#include "device/ipc_registry.h"

#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "base/mutex.h"

namespace cachalot {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::pair<std::uint64_t, Address>, std::size_t> exports CACHALOT_GUARDED_BY(mutex);  // bytes
};

// Never destroyed: devices may outlive static objects.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

}  // namespace

std::uint64_t next_exporter() {
  static std::atomic<std::uint64_t> exporters{0};
  return ++exporters;
}

void publish_export(const ExportedMemory& memory) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  all.exports[{memory.exporter, memory.address}] = memory.bytes;
}

bool is_exported(const ExportedMemory& memory) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  const auto at = all.exports.find({memory.exporter, memory.address});
  return at != all.exports.end() && at->second == memory.bytes;
}

void withdraw_export(std::uint64_t exporter, Address address) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  all.exports.erase({exporter, address});
}

void withdraw_exports(std::uint64_t exporter) {
  Registry& all = registry();
  const Lock lock(all.mutex);
  all.exports.erase(all.exports.lower_bound({exporter, 0}), all.exports.lower_bound({exporter + 1, 0}));
}

IpcHandle to_ipc_handle(const ExportedMemory& memory) {
  IpcHandle handle;
  static_assert(sizeof(memory) <= sizeof(handle.bytes));
  std::memcpy(handle.bytes, &memory, sizeof(memory));
  return handle;
}

ExportedMemory from_ipc_handle(const IpcHandle& handle) {
  ExportedMemory memory;
  std::memcpy(&memory, handle.bytes, sizeof(memory));
  return memory;
}

}  // namespace cachalot
