// Memory that simulated devices have exported to other processes. Each SimulatedDevice object plays a process of its
// own, so that export and import can be tried within one. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cachalot/device.h"

CACHALOT_BEGIN

struct ExportedMemory {
  std::uint64_t exporter = 0;  // the number of the device object
  Address address = 0;         // in the exporter; of a handle, its number
  std::size_t bytes = 0;
};

// A number for a device object, unique in the process.
std::uint64_t next_exporter();

void publish_export(const ExportedMemory& memory);
bool is_exported(const ExportedMemory& memory);
void withdraw_export(std::uint64_t exporter, Address address);  // freed; nothing happens if it was not exported
void withdraw_exports(std::uint64_t exporter);                  // the exporter is gone

IpcHandle to_ipc_handle(const ExportedMemory& memory);
ExportedMemory from_ipc_handle(const IpcHandle& handle);  // of any 64 bytes: ask is_exported afterwards

// A handle's descriptor is a file without a name in which it stands where the memory is. That the exporter has released
// it meanwhile is not noticed. Both throw CudaError, the second for any other file.
ShareableHandle to_shareable_handle(const ExportedMemory& memory);
ExportedMemory from_shareable_handle(const ShareableHandle& shared);

CACHALOT_END
