// The adapter for torch 2.12.
#include "adapter/exports.h"
#include "adapter/since.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::AllocatorSince2_12, 12)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
