#include "simulator/handle_rules.h"

#include <initializer_list>

#include "simulator/calls.h"

namespace cachalot::simulator {
namespace {

bool is_of_kind(const CUmemAllocationProp& properties, int kind) {
  return (static_cast<int>(properties.requestedHandleTypes) & kind) != 0;
}

cudaError_t first_of(std::initializer_list<int> errors) {
  for (const int error : errors) {
    if (error != 0) return static_cast<cudaError_t>(error);
  }
  return cudaSuccess;
}

}  // namespace

const cachalot_sim_handles& HandleRules::of(int device) const {
  static constexpr cachalot_sim_handles kNone{};
  const auto at = rules_.find(device);
  return at == rules_.end() ? kNone : at->second;
}

std::optional<int> HandleRules::attribute(int device, int attribute) const {
  const cachalot_sim_handles& rules = of(device);
  if (attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) return rules.claims_fabric;
  if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) return rules.claims_rdma;
  return std::nullopt;
}

cudaError_t HandleRules::granularity_error(const CUmemAllocationProp& properties) const {
  const cachalot_sim_handles& rules = of(properties.location.id);
  const bool unknown = is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC) && rules.claims_fabric == 0;
  return first_of({rules.granularity_error, unknown ? cudaErrorNotSupported : 0});
}

cudaError_t HandleRules::create_error(const CUmemAllocationProp& properties) const {
  const cachalot_sim_handles& rules = of(properties.location.id);
  const bool by_fabric = is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC);
  const bool by_file = is_of_kind(properties, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return first_of({by_fabric && rules.claims_fabric == 0 ? cudaErrorNotSupported : 0,
                   by_fabric ? rules.create_fabric_error : 0, by_file ? rules.create_file_error : 0,
                   properties.allocFlags.gpuDirectRDMACapable != 0 ? rules.create_rdma_error : 0});
}

cudaError_t HandleRules::access_error(int device, CUmemGenericAllocationHandle handle) const {
  const CUmemAllocationProp* const made = properties(handle);
  const bool for_rdma = made != nullptr && made->allocFlags.gpuDirectRDMACapable != 0;
  return first_of({for_rdma ? of(device).access_rdma_error : 0});
}

cudaError_t HandleRules::export_error(int device, CUmemAllocationHandleType kind) const {
  return first_of({kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? of(device).export_file_error : 0});
}

void HandleRules::made(CUmemGenericAllocationHandle handle, const CUmemAllocationProp& properties) {
  if (is_of_kind(properties, CU_MEM_HANDLE_TYPE_FABRIC) || properties.allocFlags.gpuDirectRDMACapable != 0) {
    made_[handle] = properties;
  }
}

const CUmemAllocationProp* HandleRules::properties(CUmemGenericAllocationHandle handle) const {
  const auto at = made_.find(handle);
  return at == made_.end() ? nullptr : &at->second;
}

}  // namespace cachalot::simulator

int cachalot_sim_set_handles(int device, const cachalot_sim_handles* rules) {
  using namespace cachalot::simulator;
  return guarded([&](Process& process) {
    if (rules == nullptr) return cudaErrorInvalidValue;
    process.virtual_memory().rules().set(process.devices().at(device).ordinal, *rules);
    return cudaSuccess;
  });
}
