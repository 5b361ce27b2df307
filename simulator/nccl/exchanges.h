// Collectives, sends and receives: what each rank gives to whom, and what becomes of it.
//
// The whole of a call's data is moved if no rank has more than `copy_bytes` of CACHALOT_SIM of it; the call then blocks the host
// until the ranks that this one receives from have made it. Of larger ones nothing is moved, and nobody waits. In a capture
// the stream gets a node, and nothing is moved, as with copies.
//
// Absent ranks count as ranks with this one's data. Where this one gives none, as in a broadcast of another root, memory keeps
// its content.
#pragma once

#include <cstddef>
#include <memory>

#include "simulator/nccl/communicator.h"

namespace cachalot::simulator::nccl {

struct Exchange {
  const char* name = "";
  CallKind kind = CallKind::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // of elements, as the caller counts
  ncclDataType_t type = ncclInt8;
  int root = 0;  // of those that have one; for ncclSend and ncclRecv the other rank
  Reduction reduction = {};
};

// Makes the call, or adds it to the thread's group. Throws ncclInvalidArgument for a bad root, type or null buffer.
void exchange(std::shared_ptr<Communicator> communicator, const Exchange& exchange, cudaStream_t stream);

}  // namespace cachalot::simulator::nccl
