/// @file
/// The kernels' side of a SlotPool (slot_pool.h): threads of a warp that call together take and
/// give as one, by warp-aggregated atomics.
///
///     __global__ void build(cachalot::SlotPoolView pool) {
///       auto* node = static_cast<Node*>(pool.take());
///       if (node == nullptr) return;  // the pool is exhausted, and counts it
///       ...
///       pool.give(node);
///     }
///
/// Requires: nvcc, compute capability 7.0 or later, -std=c++17 or later.
#pragma once

#include "cachalot/require_cpp17.h"

#ifndef __CUDACC__
#error "slot_pool.cuh is for nvcc; on the host include slot_pool.h"
#endif

#include "cachalot/slot_pool_view.h"
