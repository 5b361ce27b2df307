// The driver's virtual memory: ranges of addresses, and physical memory by handles; which addresses are asleep, and what a
// test makes a device say of handles.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "cachalot/call_stack.h"
#include "cachalot/device.h"
#include "cachalot/simulator.h"
#include "simulator/base/lock.h"
#include "simulator/base/report.h"
#include "simulator/base/watch.h"
#include "simulator/models/cuda_abi.h"
#include "simulator/state/content.h"
#include "simulator/state/devices.h"

namespace cachalot::simulator {

// HandleRules have each device's special answers about the handles of cuMemCreate: machines differ in this (a fabric without
// permission, WSL2, sandboxes). They are empty until cachalot_sim_set_handles sets some.
class HandleRules {
 public:
  void set(int device, const cachalot_sim_handles& rules) { rules_[device] = rules; }

  // The value of an attribute that a rule is about.
  std::optional<int> attribute(int device, int attribute) const;
  // Returns the call's result for memory of this description.
  cudaError_t granularity_error(const CUmemAllocationProp& properties) const;
  cudaError_t create_error(const CUmemAllocationProp& properties) const;
  cudaError_t access_error(int device, CUmemGenericAllocationHandle handle) const;
  cudaError_t export_error(int device, CUmemAllocationHandleType kind) const;

  // Keeps the properties of handles by fabric or for GPUDirect RDMA permanently: no device gives a handle twice.
  void made(CUmemGenericAllocationHandle handle, const CUmemAllocationProp& properties);
  // Null for all other handles.
  const CUmemAllocationProp* properties(CUmemGenericAllocationHandle handle) const;

 private:
  const cachalot_sim_handles& of(int device) const;

  std::map<int, cachalot_sim_handles> rules_;
  std::map<CUmemGenericAllocationHandle, CUmemAllocationProp> made_;
};

// Addresses whose memory went while they stayed reserved: memory that is asleep, or free memory that a heap of virtual memory
// mapped elsewhere. A use of them is a mistake of the program, which on a GPU ends it.
// process_mutex guards everything here.
class SleepingMemory {
 public:
  explicit SleepingMemory(Watch& watch) : watch_(watch) {}

  // cuMemUnmap took the memory of the range.
  void add(const AddressRange& range);
  // The range has memory again, or is no longer reserved.
  void remove(const AddressRange& range);

  // Throws cudaErrorInvalidValue if a part of the bytes is asleep. The first use by a call on a line of Python is noted, with
  // bytes and range: one call of a model may use hundreds of tensors. A strict run adds the stacks of the use and of the unmapping.
  void require_awake(const char* call, const void* start, std::size_t bytes);
  // Notes how many uses were not noted one by one. To be called at the end of the process.
  void tell_of_more() const;

 private:
  struct Asleep {
    std::size_t bytes = 0;
    CallStack stack;  // of the unmapping, in a strict run
  };
  std::map<Address, Asleep>::iterator first_behind(Address address);

  Watch& watch_;
  std::map<Address, Asleep> asleep_;         // by their beginnings; they do not overlap
  std::map<std::string, std::string> told_;  // the note of the first use, by call and line
  std::size_t more_ = 0;                     // uses
};

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
