// The adapter for torch 2.9.
#include "adapter/exports.h"
#include "adapter/pinned_exports.h"
#include "adapter/until_2_10.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::AllocatorUntil2_10, 9)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
