// Green contexts: contexts of a part of the multiprocessors. Kernels do nothing here, so that the part makes no difference.
#include <algorithm>
#include <cstdint>

#include "simulator/state/calls.h"

using namespace cachalot::simulator;

namespace {

// The least part of a device, and its multiple: "Green Contexts" of the CUDA Driver API.
unsigned int least_part(const GpuModel& gpu) { return gpu.major >= 9 ? 8 : gpu.major == 8 ? 4 : 2; }
unsigned int part_step(const GpuModel& gpu) { return gpu.major >= 9 ? 8 : 2; }

CUdevResource multiprocessors(const GpuModel& gpu, unsigned int count) {
  CUdevResource resource{};
  resource.type = count > 0 ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID;
  resource.sm = {.smCount = count, .minSmPartitionSize = least_part(gpu), .smCoscheduledAlignment = part_step(gpu)};
  return resource;
}

// The handle of a description is the number of its multiprocessors.
CUdevResourceDesc description_of(unsigned int count) {
  return reinterpret_cast<CUdevResourceDesc>(static_cast<std::uintptr_t>(count));
}

CUcontext context_of(CUgreenCtx green) { return reinterpret_cast<CUcontext>(green); }

}  // namespace

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  return driver_call([&](Process& process) {
    process.devices().at(device);
    if (type != CU_DEV_RESOURCE_TYPE_SM) return cudaErrorInvalidValue;
    const GpuModel& gpu = *process.config().gpu;
    *resource = multiprocessors(gpu, static_cast<unsigned int>(gpu.multiprocessors));
    return cudaSuccess;
  });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* parts, unsigned int* count, const CUdevResource* from,
                                     CUdevResource* rest, unsigned int, unsigned int least) {
  return driver_call([&](Process& process) {
    if (from->type != CU_DEV_RESOURCE_TYPE_SM) return cudaErrorInvalidResourceType;
    const GpuModel& gpu = *process.config().gpu;
    const unsigned int step = part_step(gpu);
    const unsigned int size = (std::max(least, least_part(gpu)) + step - 1) / step * step;
    const unsigned int most = from->sm.smCount / size;
    *count = parts ? std::min(*count, most) : most;
    if (*count == 0) return cudaErrorInvalidResourceConfiguration;
    if (parts) std::fill_n(parts, *count, multiprocessors(gpu, size));
    if (rest) *rest = multiprocessors(gpu, from->sm.smCount - *count * size);
    return cudaSuccess;
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources, unsigned int count) {
  return driver_call([&](Process&) {
    unsigned int all = 0;
    for (const CUdevResource* resource = resources; resource != resources + count; ++resource) {
      if (resource->type != CU_DEV_RESOURCE_TYPE_SM) return cudaErrorInvalidResourceType;
      all += resource->sm.smCount;
    }
    if (all == 0) return cudaErrorInvalidValue;
    *description = description_of(all);
    return cudaSuccess;
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc description, CUdevice device, unsigned int flags) {
  return driver_call([&](Process& process) {
    if (!description || flags != CU_GREEN_CTX_DEFAULT_STREAM) return cudaErrorInvalidValue;
    DeviceState& state = process.devices().at(device);
    state.make_context();
    *green = reinterpret_cast<CUgreenCtx>(process.create_context(state));
    return cudaSuccess;
  });
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  return driver_call([&](Process& process) { process.destroy_context("cuGreenCtxDestroy", context_of(green)); });
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  return driver_call([&](Process& process) {
    process.contexts().at("cuCtxFromGreenCtx", context_of(green));
    *context = context_of(green);
  });
}

CUresult cuGreenCtxGetId(CUgreenCtx green, unsigned long long* id) {
  return driver_call([&](Process& process) { *id = process.contexts().at("cuGreenCtxGetId", context_of(green)).id; });
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags, int priority) {
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = cuCtxPushCurrent(context_of(green)); error != CUDA_SUCCESS) return error;
  const CUresult error = cuStreamCreateWithPriority(stream, flags, priority);
  cuCtxPopCurrent(nullptr);
  return error;
}

}  // extern "C"
