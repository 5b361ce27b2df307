// Is it a GPU, and what can it do: attributes, kinds of physical handles, and what threads without a context may call.
#include <cuda_runtime_api.h>

#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/device.h"

namespace cachalot::gpu {
namespace {

constexpr int kLeastDriver = 13000;  // required by programs of nvcc 13

void describe_device(const Effort&) {
  int driver = 0;
  int runtime = 0;
  require("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  require("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
  cudaDeviceProp properties = {};
  require("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
  fact("name", properties.name);
  fact("simulated", is_simulated() ? "yes" : "no");
  fact("memory", static_cast<double>(properties.totalGlobalMem) / kGiB, "GiB");
  fact("compute_capability", std::to_string(properties.major) + "." + std::to_string(properties.minor));
  fact("multiprocessors", properties.multiProcessorCount, "");
  fact("driver", driver, "CUDA version");
  fact("runtime", runtime, "CUDA version");
  check("driver", driver >= kLeastDriver, "CUDA " + std::to_string(driver) + ", and 13000 is needed");
  const auto devices = cuda_devices();
  check("cuda_devices", !devices.empty() && devices[0]->properties().name == properties.name,
        std::to_string(devices.size()) + " devices");
}

void list_attributes(const Effort&) {
  const std::pair<const char*, CUdevice_attribute> attributes[] = {
      {"virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"fabric_handles", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
      {"descriptor_handles", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"rdma_with_virtual_memory", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
      {"stream_writes_of_64_bits", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS},
      {"memory_pools", CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
      {"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT}};
  int virtual_memory = 0;
  for (const auto& [name, attribute] : attributes) {
    int value = 0;
    require("cuDeviceGetAttribute", cuDeviceGetAttribute(&value, attribute, 0));
    fact(std::string("attribute/") + name, value, "");
    if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) virtual_memory = value;
  }
  check("virtual_memory", virtual_memory == 1,
        virtual_memory == 1 ? "the page heap can run" : "no page heap on this GPU");
}

// "mapped" or the call that failed with its code.
std::string try_handle(const CUmemAllocationProp& properties, std::size_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = cuMemCreate(&handle, bytes, &properties, 0);
  if (created != CUDA_SUCCESS) return "cuMemCreate " + name_of(created);
  CUdeviceptr address = 0;
  require("cuMemAddressReserve", cuMemAddressReserve(&address, bytes, 0, 0, 0));
  std::string outcome = "mapped";
  const CUresult mapped = cuMemMap(address, bytes, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) {
    outcome = "cuMemMap " + name_of(mapped);
  } else {
    try {
      open_access(address, bytes);
    } catch (const std::exception& error) {
      outcome = error.what();
    }
    cuMemUnmap(address, bytes);
  }
  cuMemAddressFree(address, bytes);
  cuMemRelease(handle);
  return outcome;
}

std::string granularities(const CUmemAllocationProp& properties) {
  std::size_t least = 0;
  std::size_t best = 0;
  const CUresult result = cuMemGetAllocationGranularity(&least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return "granularity " + name_of(result);
  cuMemGetAllocationGranularity(&best, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return "granularity " + std::to_string(least >> 10) + " and " + std::to_string(best >> 10) + " KiB";
}

// Tries the kinds of handles that a driver, a container or a sandbox lets a program make; the page heap needs any of
// them.
void try_handle_kinds(const Effort&) {
  const std::pair<const char*, int> kinds[] = {
      {"none", CU_MEM_HANDLE_TYPE_NONE},
      {"descriptor", CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
      {"fabric", CU_MEM_HANDLE_TYPE_FABRIC},
      {"descriptor and fabric", CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}};
  require("cudaFree", cudaFree(nullptr));  // makes the context
  int usable = 0;
  for (const auto& [name, kind] : kinds) {
    for (const bool for_rdma : {false, true}) {
      const CUmemAllocationProp properties = allocation_properties(kind, for_rdma);
      const std::string outcome = try_handle(properties, 32 * kMiB);
      usable += outcome == "mapped";
      fact(std::string("handle/") + name + (for_rdma ? " for RDMA" : ""), outcome + ", " + granularities(properties));
    }
  }
  check("handles", usable > 0, std::to_string(usable) + " of 8 kinds can be made and mapped");
}

// cachalot's own choice of kind, with the whole way of a page.
void map_by_cachalot(const Effort&) {
  const auto device = cuda_devices().at(0);
  const DeviceProperties properties = device->properties();
  if (!properties.virtual_memory) return not_applicable("map_by_cachalot", "cachalot sees no virtual memory");
  const std::size_t bytes = 32 * kMiB;
  const Address address = device->reserve(bytes).value();
  const MemoryHandle handle = device->create(bytes).value();
  device->map(address, bytes, handle);
  device->set_access(address, bytes, {});
  const OwnStream stream;
  const WrongWords wrong;
  fill(stream, words_at(reinterpret_cast<void*>(address), bytes), 1);
  check(stream, words_at(reinterpret_cast<void*>(address), bytes), 1, wrong.on_device());
  check_content("map_by_cachalot", wrong.read());
  device->unmap(address, bytes);
  device->release(handle);
  device->unreserve(address, bytes);
}

void call_from_a_fresh_thread(const Effort&) {
  require("cudaFree", cudaFree(nullptr));
  std::array<CUresult, 3> results = {};
  std::thread([&] {
    unsigned long long id = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = allocation_properties();
    results[0] = cuCtxGetId(nullptr, &id);
    results[1] = cuMemCreate(&handle, 2 * kMiB, &properties, 0);
    if (results[1] == CUDA_SUCCESS) cuMemRelease(handle);
    require("cudaSetDevice", cudaSetDevice(0));
    results[2] = cuCtxGetId(nullptr, &id);
  }).join();
  fact("fresh_thread/cuCtxGetId", name_of(results[0]));
  fact("fresh_thread/cuMemCreate", name_of(results[1]));
  check("fresh_thread", results[2] == CUDA_SUCCESS, "after cudaSetDevice cuCtxGetId says " + name_of(results[2]));
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv,
                    {{"device", describe_device},
                     {"attributes", list_attributes},
                     {"handles", try_handle_kinds},
                     {"map_by_cachalot", map_by_cachalot},
                     {"fresh_thread", call_from_a_fresh_thread}});
}
