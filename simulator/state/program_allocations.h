// Memory that programs allocate, and device memory that they share with other processes.
#pragma once

#include <cstddef>
#include <map>

#include "cachalot/device.h"
#include "simulator/base/lock.h"
#include "simulator/base/report.h"
#include "simulator/base/watch.h"
#include "simulator/device/ipc_registry.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/content.h"
#include "simulator/state/copies.h"
#include "simulator/state/cuda_host_memory.h"
#include "simulator/state/devices.h"
#include "simulator/state/launches.h"

namespace cachalot::simulator {

// Device memory shared between processes, all of them simulated. The importer reads and writes the exporter's content
// through the exporter's file; its own device keeps the accounts of an import as SimulatedDevice does for a foreign
// one.
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

// Device memory of cudaMalloc, and host memory of cudaHostAlloc, cudaMallocManaged and cudaHostRegister.
class Allocations {
 public:
  Allocations(Report& report, Watch& watch, HostMemory& host_memory, Devices& devices, StreamWrites& writes,
              HostFunctions& host_functions)
      : report_(report),
        watch_(watch),
        host_memory_(host_memory),
        devices_(devices),
        writes_(writes),
        host_functions_(host_functions) {}

  // Returns null if memory runs out.
  void* malloc(DeviceState& device, std::size_t bytes) CACHALOT_LOCKED;
  // Returns the device's memory as the program asks for it: the report has the time and the free memory.
  MemoryInfo memory_info(DeviceState& device) CACHALOT_LOCKED;
  // Throws cudaErrorInvalidValue for an address of no device.
  // Returns the device that had it.
  const DeviceState& free(const char* call, Address address) CACHALOT_LOCKED;

  // These do as malloc and free, for memory that NCCL takes: the report shows it separately.
  void* malloc_for_nccl(DeviceState& device, NcclMemory whose, std::size_t bytes) CACHALOT_LOCKED;
  void free_of_nccl(NcclMemory whose, Address address) CACHALOT_LOCKED;

  // Returns pinned or managed memory, or null if the host does not have that much.
  void* malloc_host(HostRange::Kind kind, std::size_t bytes, unsigned int flags, int device) CACHALOT_LOCKED;
  // Returns false if no range of this kind starts there.
  bool free_host(HostRange::Kind kind, void* start) CACHALOT_LOCKED;

 private:
  void* malloc_managed(std::size_t bytes, unsigned int flags, int device) CACHALOT_LOCKED;

  Report& report_ CACHALOT_UNDER_LOCK;
  Watch& watch_ CACHALOT_UNDER_LOCK;
  HostMemory& host_memory_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  StreamWrites& writes_;
  HostFunctions& host_functions_;
};

}  // namespace cachalot::simulator
