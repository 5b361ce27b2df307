// NCCL's functions about communicators, and about memory that is registered with them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/format.h"
#include "simulator/base/registry.h"
#include "simulator/base/report.h"
#include "simulator/nccl/communicator.h"
#include "simulator/nccl/nccl_calls.h"

namespace cachalot::simulator::nccl {
namespace {

// Makes communicators: of an id that the ranks share, and of another communicator. Each function throws NcclError; in a group
// the communicator is usable when the group has ended.

UniqueId new_id() {
  UniqueId id;
  id.root = Connections::get().endpoint();
  id.number = random_number();
  return id;
}

UniqueId unpacked(const ncclUniqueId& id) {
  UniqueId own;
  const UniqueId expected;
  std::memcpy(static_cast<void*>(&own), id.internal, sizeof(own));
  if (std::memcmp(own.magic, expected.magic, sizeof(own.magic)) != 0)
    throw NcclError(ncclInvalidArgument, "the unique id is none that ncclGetUniqueId of the simulator made");
  return own;
}

// The number of a child, the same at all its ranks (the finalizer of splitmix64).
std::uint64_t mixed(std::uint64_t number, std::uint64_t with) {
  number += (with + 1) * 0x9e3779b97f4a7c15;
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
  number = (number ^ number >> 27) * 0x94d049bb133111eb;
  return number ^ number >> 31;
}

// The data that each rank sends the others in a split.
struct Choice {
  int color = 0;
  int key = 0;
};

// The ranks of the parent that have this color, as the child orders them.
std::vector<int> ranks_of_color(const std::vector<Choice>& choices, int color) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(ranks, {}, [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
  return ranks;
}

// Makes the child of these ranks of the parent.
std::shared_ptr<Communicator> child_of(const Communicator& parent, const std::vector<int>& ranks, std::uint64_t id,
                                       const ncclConfig_t* config) {
  std::vector<Member> members;
  members.reserve(ranks.size());
  for (const int rank : ranks) members.push_back(parent.members()[static_cast<std::size_t>(rank)]);
  const auto own = std::ranges::find(ranks, parent.rank()) - ranks.begin();
  auto child = std::make_shared<Communicator>(static_cast<int>(ranks.size()), static_cast<int>(own), config);
  child->open(id, std::move(members));
  return child;
}

// A split underway.
struct Splitting {
  std::shared_ptr<Communicator> parent;
  Choice own;
  ncclComm_t* child;
  std::vector<ncclConfig_t> config;  // one, or none
  std::uint64_t number = 0;

  void start() {
    number = parent->next_collective();
    const char* const bytes = reinterpret_cast<const char*>(&own);
    for (int peer = 0; peer < parent->size(); ++peer) {
      if (peer != parent->rank())
        parent->send(peer, Channel::collectives, number, kCall, {{bytes, bytes + sizeof(own)}});
    }
  }
  void finish() {
    std::vector<Choice> choices(static_cast<std::size_t>(parent->size()), own);
    for (int peer = 0; peer < parent->size(); ++peer) {
      if (peer == parent->rank() || parent->is_absent(peer)) continue;
      const std::vector<char> content = parent->receive(peer, Channel::collectives, number, kCall).content;
      std::memcpy(&choices[static_cast<std::size_t>(peer)], content.data(), std::min(content.size(), sizeof(Choice)));
    }
    *child = nullptr;
    if (own.color == kNcclNoColor) return;
    const std::uint64_t id = mixed(mixed(parent->id(), number), static_cast<std::uint64_t>(own.color));
    *child =
        publish(child_of(*parent, ranks_of_color(choices, own.color), id, config.empty() ? nullptr : config.data()));
  }

  static constexpr CallId kCall{CallKind::split, sizeof(Choice)};
};

ncclUniqueId new_unique_id() {
  const UniqueId own = new_id();
  ncclUniqueId id{};
  static_assert(sizeof(own) <= sizeof(id));
  std::memcpy(id.internal, &own, sizeof(own));
  return id;
}

// Blocks until all ranks have come.
ncclComm_t join(const ncclUniqueId& id, int ranks, int rank, const ncclConfig_t* config) {
  const auto made = std::make_shared<Communicator>(ranks, rank, config);
  const UniqueId own = made->are_others_absent() ? new_id() : unpacked(id);
  const ncclComm_t handle = publish(made);
  submit({[=] {
            try {
              made->join(own);
            } catch (const NcclError&) {
              withdraw(handle);
              throw;
            }
          },
          [=] {
            try {
              made->open(own.number, made->receive_members(own.root, own.number));
            } catch (const NcclError&) {
              withdraw(handle);
              throw;
            }
          }});
  return handle;
}

// One communicator for each device of the list (null: the first ones) in this process, in their order.
void join_all(ncclComm_t* comms, int devices, const int* device_list) {
  int before = 0;
  require_cuda("cudaGetDevice", cudaGetDevice(&before));
  const ncclUniqueId id = new_unique_id();
  begin_group();
  try {
    for (int rank = 0; rank < devices; ++rank) {
      require_cuda("cudaSetDevice", cudaSetDevice(device_list ? device_list[rank] : rank));
      comms[rank] = join(id, devices, rank, nullptr);
    }
  } catch (const NcclError&) {
    drop_group();
    cudaSetDevice(before);
    throw;
  }
  require_cuda("cudaSetDevice", cudaSetDevice(before));
  end_group();
}

// Blocks until all ranks of the parent have come. Writes a null pointer to `child` if the color is kNcclNoColor. Absent ranks
// count as ranks of the same color.
void split(std::shared_ptr<Communicator> parent, int color, int key, ncclComm_t* child, const ncclConfig_t* config) {
  if (color < 0 && color != kNcclNoColor)
    throw NcclError(ncclInvalidArgument, formatted("ncclCommSplit: the color {} is neither from 0 on nor "
                                                   "NCCL_SPLIT_NOCOLOR",
                                                   color));
  auto splitting = std::make_shared<Splitting>(Splitting{std::move(parent), {color, key}, child, {}});
  if (config) splitting->config.push_back(*config);
  submit({[splitting] { splitting->start(); }, [splitting] { splitting->finish(); }});
}

// Shrinks without waiting for other ranks.
ncclComm_t shrink(const std::shared_ptr<Communicator>& parent, std::vector<int> excluded, const ncclConfig_t* config) {
  std::ranges::sort(excluded);
  std::uint64_t id = mixed(parent->id(), parent->next_child());
  for (const int rank : excluded) id = mixed(id, static_cast<std::uint64_t>(rank));
  std::vector<int> ranks;
  for (int rank = 0; rank < parent->size(); ++rank) {
    if (!std::ranges::binary_search(excluded, rank)) ranks.push_back(rank);
  }
  if (!std::ranges::binary_search(ranks, parent->rank()))
    throw NcclError(ncclInvalidArgument, "ncclCommShrink: an excluded rank must not call it");
  return publish(child_of(*parent, ranks, id, config));
}

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

// Registered memory takes no other memory of the device: for a symmetric window, NCCL 2.28.9 maps the
// memory of all ranks that is there already into one range of addresses (src/dev_runtime.cc, symMemoryMapLsaTeam), and what
// it keeps of a window is some hundred bytes.
ncclResult_t register_memory(const char* name, ncclComm_t comm, void* buffer, std::size_t bytes, void** handle) {
  return nccl_call([&] {
    const std::shared_ptr<Communicator> communicator = find(comm);
    require_not_null(name, buffer);
    require_not_null(name, handle);
    *handle = communicator->registered().add(buffer, bytes);
  });
}

ncclResult_t deregister(ncclComm_t comm, const void* handle) {
  return nccl_call([&] { find(comm)->registered().remove(handle); });
}

// Calls `change` with the memory of the communicator, on its device.
void change_memory(ncclComm_t comm, void (ChannelMemory::*change)()) {
  const std::shared_ptr<Communicator> communicator = find(comm);
  int before = 0;
  require_cuda("cudaGetDevice", cudaGetDevice(&before));
  require_cuda("cudaSetDevice", cudaSetDevice(communicator->device()));
  const cudaError_t error = cudaDeviceSynchronize();
  cudaSetDevice(before);
  require_cuda("cudaDeviceSynchronize", error);
  (communicator->memory().*change)();
}

// All ranks that reach each other's memory: of one machine, all. An invalid handle gives an empty team, as in NCCL.
ncclTeam_t team_of(ncclComm_t comm, ncclTeam_t (*team)(const Communicator&)) noexcept {
  ncclTeam_t found{};
  nccl_call([&] { found = team(*find(comm)); });
  return found;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (!version) return ncclInvalidArgument;
  *version = kNcclVersion;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {
      // by the number
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress",
  };
  const auto number = static_cast<std::size_t>(result);
  return number < std::size(kTexts) ? kTexts[number] : "unknown result code";
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

// Symmetric memory of kernels is not simulated, nor is a network.
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  return nccl_call([&] {
    require_not_null("ncclCommQueryProperties", properties);
    constexpr unsigned int kFirstWithGin = 22904;
    const std::shared_ptr<Communicator> communicator = find(comm);
    if (properties->magic != kNcclConfigMagic)
      throw NcclError(ncclInvalidUsage,
                      "the ncclCommProperties_t was not initialized with NCCL_COMM_PROPERTIES_INITIALIZER");
    properties->rank = communicator->rank();
    properties->nRanks = communicator->size();
    properties->cudaDev = communicator->device();
    properties->nvmlDev = communicator->own_member().device;
    properties->deviceApiSupport = properties->multimemSupport = false;
    if (properties->version < kFirstWithGin) return;
    properties->ginType = properties->railedGinType = 0;
    properties->hostRmaSupport = false;
    properties->nLsaTeams = 1;
  });
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
  return team_of(comm, [](const Communicator& asked) -> ncclTeam_t { return {asked.size(), asked.rank(), 1}; });
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm) { return ncclTeamWorld(comm); }

// The ranks of the same place on all machines: this one.
ncclTeam_t ncclTeamRail(ncclComm_t comm) {
  return team_of(comm, [](const Communicator& asked) -> ncclTeam_t { return {1, 0, asked.size()}; });
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return ncclTeamWorld(comm).rank + (rank - team.rank) * team.stride;
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) { return ncclTeamRankToWorld(comm, team, rank); }

// ---- Memory ---------------------------------------------------------------------------------------------------------

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, std::uint64_t* value) {
  return nccl_call([&] {
    require_not_null("ncclCommMemStats", value);
    if (stat < ncclStatGpuMemSuspend || stat > ncclStatGpuMemTotal)
      throw NcclError(ncclInvalidArgument, "ncclCommMemStats: there is no statistic " + std::to_string(stat));
    const std::shared_ptr<Communicator> communicator = find(comm);
    const ChannelMemory& memory = communicator->memory();
    if (stat == ncclStatGpuMemSuspended)
      *value = memory.is_suspended() ? 1 : 0;
    else
      *value = (stat == ncclStatGpuMemSuspend ? 0 : memory.lasting_bytes()) +
               (stat == ncclStatGpuMemPersist ? 0 : memory.buffer_bytes());
  });
}

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  return nccl_call([&] {
    if ((flags & kNcclSuspendMemory) != 0) change_memory(comm, &ChannelMemory::suspend);
  });
}

ncclResult_t ncclCommResume(ncclComm_t comm) {
  return nccl_call([&] { change_memory(comm, &ChannelMemory::resume); });
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

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, std::size_t bytes, void** handle) {
  return register_memory(__func__, comm, buffer, bytes, handle);
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) { return deregister(comm, handle); }

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes, ncclWindow_t* window, int) {
  return register_memory(__func__, comm, buffer, bytes, window);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) { return deregister(comm, window); }

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer) {
  return nccl_call([&] {
    require_not_null("ncclWinGetUserPtr", pointer);
    *pointer = find(comm)->registered().begin_of(window);
  });
}

}  // extern "C"

CACHALOT_PROFILED(ncclGetVersion)
CACHALOT_PROFILED(ncclGetErrorString)
CACHALOT_PROFILED(ncclGetLastError)
CACHALOT_PROFILED(ncclResetDebugInit)
CACHALOT_PROFILED(ncclGetUniqueId)
CACHALOT_PROFILED(ncclCommInitRankConfig)
CACHALOT_PROFILED(ncclCommInitRank)
CACHALOT_PROFILED(ncclCommInitRankScalable)
CACHALOT_PROFILED(ncclCommInitAll)
CACHALOT_PROFILED(ncclCommSplit)
CACHALOT_PROFILED(ncclCommShrink)
CACHALOT_PROFILED(ncclCommFinalize)
CACHALOT_PROFILED(ncclCommDestroy)
CACHALOT_PROFILED(ncclCommAbort)
CACHALOT_PROFILED(ncclCommRevoke)
CACHALOT_PROFILED(ncclCommGetAsyncError)
CACHALOT_PROFILED(ncclCommCount)
CACHALOT_PROFILED(ncclCommCuDevice)
CACHALOT_PROFILED(ncclCommUserRank)
CACHALOT_PROFILED(ncclCommQueryProperties)
CACHALOT_PROFILED(ncclTeamWorld)
CACHALOT_PROFILED(ncclTeamLsa)
CACHALOT_PROFILED(ncclTeamRail)
CACHALOT_PROFILED(ncclTeamRankToWorld)
CACHALOT_PROFILED(ncclTeamRankToLsa)
CACHALOT_PROFILED(ncclCommMemStats)
CACHALOT_PROFILED(ncclCommSuspend)
CACHALOT_PROFILED(ncclCommResume)
CACHALOT_PROFILED(ncclMemAlloc)
CACHALOT_PROFILED(ncclMemFree)
CACHALOT_PROFILED(ncclCommRegister)
CACHALOT_PROFILED(ncclCommDeregister)
CACHALOT_PROFILED(ncclCommWindowRegister)
CACHALOT_PROFILED(ncclCommWindowDeregister)
CACHALOT_PROFILED(ncclWinGetUserPtr)

}  // namespace cachalot::simulator::nccl

// Their arguments are not read.
#define NCCL_FUNCTION(name)                                                                    \
  extern "C" __attribute__((visibility("default"))) int not_simulated_##name() __asm__(#name); \
  int not_simulated_##name() {                                                                 \
    cachalot::simulator::note_not_simulated(#name);                                            \
    return cachalot::simulator::nccl::ncclInvalidUsage;                                        \
  }                                                                                            \
  extern "C" __attribute__((visibility("default"),                                             \
                            alias(#name))) decltype(not_simulated_##name) not_simulated_p##name __asm__("p" #name);
#include "simulator/nccl/nccl_unsupported.inc"
#undef NCCL_FUNCTION
