// Calls between ncclGroupStart and ncclGroupEnd of a thread wait for the end: then all send, and only then do they wait for
// others. So a group is free of deadlocks whatever its order.
#pragma once

#include <functional>

namespace cachalot::simulator::nccl {

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
