// NCCL's functions that move data, and groups of them.
#include <cstring>

#include "base/format.h"
#include "simulator/nccl/errors.h"
#include "simulator/nccl/exchanges.h"
#include "simulator/nccl/groups.h"

namespace cachalot::simulator::nccl {
namespace {

ncclResult_t call_on(ncclComm_t comm, const Exchange& call, cudaStream_t stream) {
  return nccl_call([&] { exchange(find(comm), call, stream); });
}

// With an operator, which is the communicator's.
ncclResult_t reduce_on(ncclComm_t comm, Exchange call, ncclRedOp_t op, cudaStream_t stream) {
  return nccl_call([&] {
    call.reduction = find(comm)->reduction(op);
    if (!call.reduction.factor.empty() && call.reduction.factor.size() != element_bytes(call.type))
      throw NcclError(ncclInvalidArgument, formatted("{}: the operator is one of another data type", call.name));
    exchange(find(comm), call, stream);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::all_reduce, from, to, count, type}, op, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::reduce, from, to, count, type, root}, op, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::reduce_scatter, from, to, count, type}, op, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::broadcast, from, to, count, type, root}, stream);
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::all_gather, from, to, count, type}, stream);
}

ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::all_to_all, from, to, count, type}, stream);
}

ncclResult_t ncclGather(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::gather, from, to, count, type, root}, stream);
}

ncclResult_t ncclScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::scatter, from, to, count, type, root}, stream);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::send_and_receive, from, nullptr, count, type, peer}, stream);
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::send_and_receive, nullptr, to, count, type, peer}, stream);
}

// ---- Groups ---------------------------------------------------------------------------------------------------------

ncclResult_t ncclGroupStart() {
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return nccl_call(end_group); }

// The time of the group's launches; nothing is launched.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return nccl_call([&] {
    const int calls = drop_group();
    if (!info) throw NcclError(ncclInvalidArgument, "ncclGroupSimulateEnd: the info is a null pointer");
    on_process("ncclGroupSimulateEnd", [&](Process& process) {
      info->estimatedTime = static_cast<float>(calls) * static_cast<float>(process.config().launch_ns) / 1000;
    });
  });
}

// ---- Operators ------------------------------------------------------------------------------------------------------

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return nccl_call([&] {
    std::vector<char> factor(element_bytes(type));
    if (!op || !scalar) throw NcclError(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: a null pointer");
    on_process("ncclRedOpCreatePreMulSum", [&](Process& process) {
      if (residence == ncclScalarHostImmediate)
        std::memcpy(factor.data(), scalar, factor.size());
      else
        process.copies().copy_now(factor.data(), scalar, factor.size());
    });
    *op = find(comm)->add_operator(std::move(factor));
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return nccl_call([&] { find(comm)->remove_operator(op); });
}

}  // extern "C"

}  // namespace cachalot::simulator::nccl
