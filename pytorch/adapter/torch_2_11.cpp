// The adapter for torch 2.11.
#include "adapter/exports.h"
#include "adapter/since.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::AllocatorSince2_11, 11)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
