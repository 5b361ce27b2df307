// Finds the break-even of pinning: its cost, and the time that each copy saves by it.
#pragma once

#include <cstddef>
#include <optional>

namespace async_transfer {

struct BreakEven {
  std::size_t bytes = 0;
  double pinning_us = 0;   // cudaHostAlloc and cudaFreeHost
  double pageable_us = 0;  // a copy to the GPU, with the wait for it
  double pinned_us = 0;    // the same

  double gain_us() const { return pageable_us - pinned_us; }
  // Copies from which on it pays; empty: it never does.
  std::optional<long> copies() const;
};

BreakEven measure_break_even(std::size_t bytes);

}  // namespace async_transfer
