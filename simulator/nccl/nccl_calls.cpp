#include "simulator/nccl/nccl_calls.h"

#include <mutex>
#include <set>
#include <vector>

#include "base/format.h"

namespace cachalot::simulator::nccl {
namespace {

struct LastError {
  std::mutex mutex;
  std::set<std::string> texts;  // all texts so far: callers may keep theirs
  const char* last = "";
};

// Never destroyed: static destructors of the program still call.
LastError& kept() {
  static auto& kept = *new LastError;
  return kept;
}

struct Group {
  int depth = 0;
  std::vector<GroupedCall> calls;
};

Group& group() {
  thread_local Group group;
  return group;
}

// Returns the calls of the outermost group that ends, and none of an inner one.
std::vector<GroupedCall> leave_group() {
  if (group().depth == 0) throw NcclError(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  return --group().depth == 0 ? std::exchange(group().calls, {}) : std::vector<GroupedCall>{};
}

}  // namespace

ncclResult_t remember(const NcclError& error) noexcept {
  try {
    const std::lock_guard lock(kept().mutex);
    kept().last = kept().texts.insert(error.what()).first->c_str();
  } catch (const std::bad_alloc&) {  // the code alone is told
  }
  return error.code();
}

const char* last_error() noexcept {
  const std::lock_guard lock(kept().mutex);
  return kept().last;
}

void require_cuda(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw NcclError(ncclUnhandledCudaError, formatted("{}: {}", what, cudaGetErrorString(error)));
}

void begin_group() { ++group().depth; }

void end_group() {
  const std::vector<GroupedCall> calls = leave_group();
  for (const GroupedCall& call : calls) call.start();
  for (const GroupedCall& call : calls) call.finish();
}

int drop_group() { return static_cast<int>(leave_group().size()); }

void submit(GroupedCall call) {
  if (group().depth > 0) {
    group().calls.push_back(std::move(call));
    return;
  }
  call.start();
  call.finish();
}

}  // namespace cachalot::simulator::nccl
