#include "simulator/nccl/groups.h"

#include <utility>
#include <vector>

#include "simulator/nccl/errors.h"

namespace cachalot::simulator::nccl {
namespace {

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
