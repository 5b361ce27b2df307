// NCCL's functions about communicators, and about memory that is registered with them.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "simulator/handles.h"
#include "simulator/nccl/errors.h"
#include "simulator/nccl/families.h"
#include "simulator/nccl/groups.h"
#include "simulator/notes.h"

namespace cachalot::simulator::nccl {
namespace {

void require_not_null(const char* name, const void* pointer) {
  if (!pointer) throw NcclError(ncclInvalidArgument, std::string(name) + ": a null pointer");
}

template <typename Value>
ncclResult_t give_answer(const char* name, ncclComm_t comm, Value* to, Value (*value)(Communicator&)) {
  return nccl_call([&] {
    require_not_null(name, to);
    *to = value(*find(comm));
  });
}

// Whatever is registered: nothing reads it. It takes no memory of the device: for a symmetric window, NCCL 2.28.9 maps the
// memory of all ranks that is there already into one range of addresses (src/dev_runtime.cc, symMemoryMapLsaTeam), and what
// it keeps of a window is some hundred bytes.
ncclResult_t register_memory(const char* name, ncclComm_t comm, void* buffer, void** handle) {
  return nccl_call([&] {
    find(comm);
    require_not_null(name, buffer);
    require_not_null(name, handle);
    *handle = reinterpret_cast<void*>(fresh_handle());
  });
}

ncclResult_t deregister(ncclComm_t comm) {
  return nccl_call([&] { find(comm); });
}

ncclResult_t refuse_call(const char* name) {
  note_not_simulated(name);
  return ncclInvalidUsage;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = kNcclVersion;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_error(); }

void ncclResetDebugInit() {}

// ---- Making ---------------------------------------------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call([&] {
    require_not_null("ncclGetUniqueId", id);
    *id = new_unique_id();
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return nccl_call([&] {
    require_not_null("ncclCommInitRank", comm);
    *comm = join(id, ranks, rank, config);
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}

// Several ids are several roots, which NCCL shares the ranks among: the first is enough.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                                      ncclConfig_t* config) {
  if (!ids || id_count < 1) return remember({ncclInvalidArgument, "ncclCommInitRankScalable: there is no unique id"});
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* device_list) {
  return nccl_call([&] {
    require_not_null("ncclCommInitAll", comms);
    join_all(comms, devices, device_list);
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return nccl_call([&] {
    require_not_null("ncclCommSplit", child);
    split(find(comm), color, key, child, config);
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child, ncclConfig_t* config,
                            int) {
  return nccl_call([&] {
    require_not_null("ncclCommShrink", child);
    require_not_null("ncclCommShrink", excluded);
    *child = shrink(find(comm), {excluded, excluded + std::max(excluded_count, 0)}, config);
  });
}

// ---- Ending ---------------------------------------------------------------------------------------------------------

// Calls have done all they do when they return.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return nccl_call([&] { find(comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return nccl_call([&] { withdraw(comm); });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  return nccl_call([&] { withdraw(comm)->abort(); });
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  return nccl_call([&] { find(comm)->abort(); });
}

// ---- Questions ------------------------------------------------------------------------------------------------------

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return give_answer<ncclResult_t>(__func__, comm, error, [](Communicator& asked) { return asked.state(); });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return give_answer<int>(__func__, comm, count, [](Communicator& asked) { return asked.size(); });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return give_answer<int>(__func__, comm, device, [](Communicator& asked) { return asked.device(); });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return give_answer<int>(__func__, comm, rank, [](Communicator& asked) { return asked.rank(); });
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

// Nothing can be suspended here.
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, std::uint64_t* value) {
  return nccl_call([&] {
    require_not_null("ncclCommMemStats", value);
    if (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal)
      throw NcclError(ncclInvalidArgument, "ncclCommMemStats: there is no statistic " + std::to_string(stat));
    const bool counts = stat == ncclStatGpuMemPersist || stat == ncclStatGpuMemTotal;
    *value = counts ? find(comm)->memory().bytes() : (find(comm), 0);
  });
}

ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes) {
  return nccl_call([&] {
    require_not_null("ncclMemAlloc", pointer);
    require_cuda("ncclMemAlloc", guarded([&](Process& process) {
                   DeviceState& device = process.contexts().current();
                   *pointer = process.allocations().malloc_for_nccl(device, NcclMemory::asked, bytes);
                   return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
                 }));
  });
}

ncclResult_t ncclMemFree(void* pointer) {
  return nccl_call([&] {
    if (!pointer) return;
    on_process("ncclMemFree", [&](Process& process) {
      process.allocations().free_of_nccl(NcclMemory::asked, reinterpret_cast<Address>(pointer));
    });
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t, void** handle) {
  return register_memory(__func__, comm, buffer, handle);
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void*) { return deregister(comm); }

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t, ncclWindow_t* window, int) {
  return register_memory(__func__, comm, buffer, window);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) { return deregister(comm); }

ncclResult_t ncclDevCommCreate(ncclComm_t, const void*, void*) { return refuse_call("ncclDevCommCreate"); }

ncclResult_t ncclDevCommDestroy(ncclComm_t, const void*) { return refuse_call("ncclDevCommDestroy"); }

}  // extern "C"

}  // namespace cachalot::simulator::nccl
