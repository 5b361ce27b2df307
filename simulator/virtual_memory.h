// The driver's virtual memory: ranges of addresses, and physical memory by handles.
#pragma once

#include <cstddef>
#include <map>

#include "cachalot/device.h"
#include "simulator/abi.h"
#include "simulator/content.h"
#include "simulator/contexts.h"
#include "simulator/devices.h"
#include "simulator/handle_rules.h"
#include "simulator/lock.h"
#include "simulator/report.h"
#include "simulator/sleeping_memory.h"
#include "simulator/watch.h"

namespace cachalot::simulator {

// A handle of the program names device and handle of the device.
class VirtualMemory {
 public:
  VirtualMemory(Report& report, Watch& watch, ContentStore& content, Devices& devices, Contexts& contexts)
      : report_(report), watch_(watch), content_(content), devices_(devices), contexts_(contexts), sleeping_(watch) {}

  // Reserves on the current device. 0: there is no such range.
  Address reserve(std::size_t bytes, std::size_t alignment) CACHALOT_LOCKED;
  void unreserve(Address address, std::size_t bytes) CACHALOT_LOCKED;
  void unreserve_all(const DeviceState& device) CACHALOT_LOCKED;

  // 0: out of memory.
  CUmemGenericAllocationHandle create(DeviceState& device, std::size_t bytes) CACHALOT_LOCKED;
  void release(CUmemGenericAllocationHandle handle) CACHALOT_LOCKED;
  void map(Address address, std::size_t bytes, CUmemGenericAllocationHandle handle) CACHALOT_LOCKED;
  CUmemGenericAllocationHandle retain_at(Address address) CACHALOT_LOCKED;  // with one more reference
  CUmemGenericAllocationHandle mapped_at(Address address) CACHALOT_LOCKED;  // without; 0: no memory of cuMemCreate
  static int device_of(CUmemGenericAllocationHandle handle);

  // Makes a file descriptor that another process, or this one, can import.
  int export_handle(CUmemGenericAllocationHandle handle) CACHALOT_LOCKED;
  CUmemGenericAllocationHandle import_handle(int descriptor) CACHALOT_LOCKED;

  HandleRules& rules() CACHALOT_LOCKED { return rules_; }
  SleepingMemory& sleeping() CACHALOT_LOCKED { return sleeping_; }

 private:
  // A range of addresses, in a larger one where it had to be aligned.
  struct Reservation {
    int device = 0;
    std::size_t bytes = 0;
    AddressRange whole;
  };

  Report& report_ CACHALOT_UNDER_LOCK;
  Watch& watch_ CACHALOT_UNDER_LOCK;
  ContentStore& content_ CACHALOT_UNDER_LOCK;
  Devices& devices_;
  Contexts& contexts_;
  HandleRules rules_ CACHALOT_UNDER_LOCK;
  SleepingMemory sleeping_ CACHALOT_UNDER_LOCK;
  std::map<Address, Reservation> reservations_ CACHALOT_UNDER_LOCK;
};

}  // namespace cachalot::simulator
