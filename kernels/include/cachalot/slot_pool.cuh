// A SlotPool in kernels: the threads of a warp that call together take and give as one (warp-aggregated atomics).
//
//   __global__ void build(cachalot::SlotPoolView pool) {
//     auto* node = static_cast<Node*>(pool.take());
//     if (node == nullptr) …  // the pool is exhausted, as its counters will say
//     …
//     pool.give(node);
//   }
//
// Needs compute capability 7.0 and -std=c++20. What the pool is on the host: slot_pool.h.
#pragma once

#include "cachalot/require_cpp17.h"

#ifndef __CUDACC__
#error "slot_pool.cuh is for nvcc; on the host include slot_pool.h"
#endif

#include "cachalot/slot_pool_view.h"
