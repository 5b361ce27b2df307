// The adapter for torch 2.13.
#include "adapter/exports.h"
#include "adapter/since.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::AllocatorSince2_13, 13)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
