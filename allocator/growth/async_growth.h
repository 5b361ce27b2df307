// AsyncGrowth gets segments from CUDA's own stream-ordered pool, cudaMallocAsync: the baseline that others are compared with.
// A segment goes back in stream order, without a wait for the device.
#pragma once

#include <set>

#include "growth/segment_growth.h"

CACHALOT_BEGIN

class AsyncGrowth final : public SegmentGrowth {
 public:
  using SegmentGrowth::SegmentGrowth;

  // Throws InvalidArgument: other processes cannot open memory of CUDA's pool.
  SharedMemory share(const Block& block, Address base, Growing& growing) override CACHALOT_GROWING;

 protected:
  std::optional<Address> malloc(std::size_t bytes, const KnownStream& stream) override CACHALOT_REQUIRES(growth_lock);
  void free(const Departing& segment) override CACHALOT_REQUIRES(growth_lock);

 private:
  bool captures(Stream stream);

  // Segments of the device's malloc: a stream that captures takes none of the pool.
  std::set<Address> plain_ CACHALOT_GUARDED_BY(growth_lock);
};

CACHALOT_END
