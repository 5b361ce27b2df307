// Device memory shared between processes, all of them simulated. The importer reads and writes the exporter's content
// through the exporter's file; its own device keeps the accounts of an import as SimulatedDevice does for a foreign
// one.
#pragma once

#include <map>

#include "cachalot/device.h"
#include "device/ipc_registry.h"
#include "simulator/abi.h"
#include "simulator/content.h"
#include "simulator/contexts.h"
#include "simulator/devices.h"
#include "simulator/lock.h"
#include "simulator/stream_writes.h"

namespace cachalot::simulator {

class IpcMemory {
 public:
  IpcMemory(ContentStore& content, Devices& devices, Contexts& contexts, StreamWrites& writes)
      : content_(content), devices_(devices), contexts_(contexts), writes_(writes) {}

  cudaIpcMemHandle_t share(Address address) CACHALOT_LOCKED;
  Address open(const cudaIpcMemHandle_t& handle) CACHALOT_LOCKED;
  void close(Address address) CACHALOT_LOCKED;
  // The device is about to be reset.
  void forget_all(const DeviceState& device) CACHALOT_LOCKED;

 private:
  ContentStore& content_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Contexts& contexts_;
  StreamWrites& writes_;
  std::map<Address, ExportedMemory> imports_ CACHALOT_UNDER_LOCK;  // of other processes
};

}  // namespace cachalot::simulator
