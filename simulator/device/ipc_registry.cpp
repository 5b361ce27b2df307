#include "simulator/device/ipc_registry.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "base/locks.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN
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

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 47;  // more than a process has: the file is not trusted

struct Ticket {
  char magic[16] = "simulated share";
  ExportedMemory memory;
};

}  // namespace

ShareableHandle to_shareable_handle(const ExportedMemory& memory) {
  const Ticket ticket{.memory = memory};
  const int descriptor = memfd_create(ticket.magic, MFD_CLOEXEC);
  if (descriptor >= 0 && pwrite(descriptor, &ticket, sizeof(ticket), 0) == sizeof(ticket)) {
    return {.kind = ShareableHandle::Kind::descriptor, .descriptor = descriptor};
  }
  if (descriptor >= 0) close(descriptor);
  fail("cuMemExportToShareableHandle", CudaCode::unknown, "no file descriptor to share it by");
}

ExportedMemory from_shareable_handle(const ShareableHandle& shared) {
  Ticket ticket;
  const bool has_descriptor = shared.kind == ShareableHandle::Kind::descriptor;
  const bool read = has_descriptor && pread(shared.descriptor, &ticket, sizeof(ticket), 0) == sizeof(ticket);
  const bool is_ticket = read && std::memcmp(ticket.magic, Ticket{}.magic, sizeof(ticket.magic)) == 0;
  if (!is_ticket || ticket.memory.bytes == 0 || ticket.memory.bytes > kMostBytes) {
    fail("cuMemImportFromShareableHandle", CudaCode::invalid_value,
         "not a descriptor that a simulated device exported");
  }
  return ticket.memory;
}

CACHALOT_END
