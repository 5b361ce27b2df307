// Annotations of allocations (PyTorch's annotate, since 2.14) beside what the allocation had before.
#pragma once

#include "tools/history/history.h"

namespace cachalot::tools {

// Gives each annotation the details that its allocation has from then on: those it had, with the new metadata. Takes time
// only where a history has annotations.
void complete_annotations(History& history, DeviceHistory& device);

}  // namespace cachalot::tools
