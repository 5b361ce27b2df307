// The adapter for torch 2.10.
#include "adapter/exports.h"
#include "adapter/pinned_exports.h"
#include "adapter/since_2_10.h"
#include "adapter/until_2_10.h"

CACHALOT_ADAPTER(cachalot::torch_adapter::Since2_10<cachalot::torch_adapter::AllocatorUntil2_10>, 10)
CACHALOT_PINNED_ADAPTER(PinnedAllocator)
