// Two fences that order like two full ones, of which the one on the frequent side costs nothing: whoever stores and then
// loads often pays with heavy_fence of whoever does so rarely, which makes every running thread of the process pass a
// full fence (Linux's membarrier, private expedited; about a microsecond).
//
//   often:  mine = 1; light_fence(); look at theirs        rarely:  theirs = 1; heavy_fence(); look at mine
//
// At least one of the two sees what the other stored. Thread safety: any thread.
#pragma once

#include <atomic>

#include "cachalot/version.h"

CACHALOT_BEGIN

// Whether the system has them (Linux 4.14); asked once. Where it has not, light_fence orders nothing.
bool has_asymmetric_fences();

inline void light_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
void heavy_fence();

// For tests: heavy_fence calls it first. nullptr: nothing is called. No thread calls heavy_fence meanwhile.
void set_heavy_fence_hook(void (*hook)());

CACHALOT_END
