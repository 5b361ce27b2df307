// What each device says of the handles of cuMemCreate, and does with them, beyond what every simulated device does: machines
// differ in this (a fabric without permission, WSL2, sandboxes). Nothing, until cachalot_sim_set_handles asks for it.
#pragma once

#include <map>
#include <optional>

#include "cachalot/simulator.h"
#include "simulator/abi.h"

namespace cachalot::simulator {

class HandleRules {
 public:
  void set(int device, const cachalot_sim_handles& rules) { rules_[device] = rules; }

  // The value of an attribute that a rule is about.
  std::optional<int> attribute(int device, int attribute) const;
  // What the call returns for memory of this description.
  cudaError_t granularity_error(const CUmemAllocationProp& properties) const;
  cudaError_t create_error(const CUmemAllocationProp& properties) const;
  cudaError_t access_error(int device, CUmemGenericAllocationHandle handle) const;
  cudaError_t export_error(int device, CUmemAllocationHandleType kind) const;

  // Kept for handles by fabric or for GPUDirect RDMA, for good: no device gives a handle twice.
  void made(CUmemGenericAllocationHandle handle, const CUmemAllocationProp& properties);
  // Null for all other handles.
  const CUmemAllocationProp* properties(CUmemGenericAllocationHandle handle) const;

 private:
  const cachalot_sim_handles& of(int device) const;

  std::map<int, cachalot_sim_handles> rules_;
  std::map<CUmemGenericAllocationHandle, CUmemAllocationProp> made_;
};

}  // namespace cachalot::simulator
