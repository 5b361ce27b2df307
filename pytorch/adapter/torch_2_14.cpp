// The adapter for torch 2.14.
#include "adapter/exports.h"
#include "adapter/since.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::AllocatorSince2_14, 14)
CACHALOT_PINNED_ADAPTER(PinnedAllocatorSince2_14)
