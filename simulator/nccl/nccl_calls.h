// Calls of NCCL: what goes wrong in them, the edge of every such function, where exceptions become results, and groups of them.
#pragma once

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "simulator/nccl/nccl_abi.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator::nccl {

class NcclError : public std::runtime_error {
 public:
  NcclError(ncclResult_t code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ncclResult_t code() const { return code_; }

 private:
  ncclResult_t code_;
};

// Keeps the text for ncclGetLastError and returns the code.
ncclResult_t remember(const NcclError& error) noexcept;
// Returns the text that was kept last; it stays valid. "" if there is none.
const char* last_error() noexcept;

// Throws ncclUnhandledCudaError.
void require_cuda(const char* what, cudaError_t error);

// Runs `body(process)` under the process's lock. Throws ncclUnhandledCudaError.
template <typename Body>
void on_process(const char* what, Body&& body) {
  require_cuda(what, guarded([&](Process& process) { body(process); }));
}

template <typename Body>
ncclResult_t nccl_call(Body&& body) noexcept {
  try {
    on_process("cudaInit", [](Process&) {});  // not in a forked child, nor without a device
    body();
    return ncclSuccess;
  } catch (const NcclError& error) {
    return remember(error);
  } catch (const std::bad_alloc&) {
    return remember({ncclSystemError, "the host has no memory left"});
  } catch (const std::exception& error) {
    return remember({ncclInternalError, error.what()});
  }
}

// Calls between ncclGroupStart and ncclGroupEnd of a thread wait for the end: then all send, and only then do they wait for
// others. So a group is free of deadlocks whatever its order.
struct GroupedCall {
  std::function<void()> start;   // sends; never waits for another rank
  std::function<void()> finish;  // may wait for what other ranks send
};

void begin_group();
// Throws what a call of the group throws; the calls behind it are not made.
void end_group();
// Ends the group and makes none of its calls. Returns how many there were.
int drop_group();
// Makes the call, now or at the end of the thread's group.
void submit(GroupedCall call);

}  // namespace cachalot::simulator::nccl

// NCCL has each function under a second name, for tools that take the first one's place (PMPI's rule). Stands behind the function's
// definition, in its source.
#define CACHALOT_PROFILED(name) extern "C" __attribute__((visibility("default"), alias(#name))) decltype(name) p##name;
