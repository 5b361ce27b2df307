// The history in a snapshot as traces, which can be replayed.
//
// A history is the end of what happened: PyTorch keeps the last so many entries, and recording begins when it is asked to.
// So some memory was there before. What the history frees without having allocated it, and what lives in the snapshot and
// is not in the history, is allocated before the first event, in the order of addresses: where it lay, and what was freed
// before, is not known. The replay decides anew where everything goes; it need not come to the snapshot's own segments.
//
//   alloc            an allocation of the bytes that were asked for
//   free_requested   a free; at an address where nothing lives, of a block from before
//   free_completed   nothing, if the free was requested; else (a pool set back to a checkpoint, say) a free
//   others           nothing: segments come and go as the replay needs them, and a failed allocation left nothing behind
//
// An allocation at an address where a block lives: something ended it that is not in the history, and the replay frees it.
#pragma once

#include <vector>

#include "tools/snapshot_reader.h"
#include "tools/trace_reader.h"

namespace cachalot::tools {

// One for each device whose history has allocations or frees. Throws InvalidArgument when there is none.
std::vector<Trace> traces_of(const TorchSnapshot& snapshot);

}  // namespace cachalot::tools
