// What the simulated device's memory holds, sparsely: what was copied in from the host or filled in, by physical number. All else reads as
// zeros, and zeros take no room. And the host memory it hands out. Not thread-safe; the device's mutex guards them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "cachalot/version.h"

CACHALOT_BEGIN

class SimulatedContent {
 public:
  void write(std::uint64_t physical, const std::byte* from, std::size_t bytes);
  void fill(std::uint64_t physical, std::byte value, std::size_t bytes);
  // Host memory that is zero where zeros are to go is not written to, and so need not be there.
  void read(std::byte* to, std::uint64_t physical, std::size_t bytes) const;
  // The memory is no more. It is made of whole chunks.
  void forget(std::uint64_t physical, std::size_t bytes);

 private:
  static constexpr std::size_t kChunkBytes = 4096;
  using Chunk = std::array<std::byte, kChunkBytes>;

  // Calls visit(number of the chunk, place in it, place in the range, bytes) for each chunk of a range.
  template <typename Visit>
  static void for_each_chunk(std::uint64_t physical, std::size_t bytes, Visit&& visit);

  std::map<std::uint64_t, Chunk> chunks_;  // by number; not all zeros
};

// As cuMemHostAlloc's, but not pinned: it takes room once written.
class SimulatedHostMemory {
 public:
  void* allocate(std::size_t bytes);            // pages of zeros; null when the host has not that much
  std::size_t bytes(const void* memory) const;  // 0: not allocated here
  bool holds(const void* memory) const;         // somewhere in an allocation
  bool free(void* memory);                      // false: not allocated here
  void free_all() { allocated_.clear(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(void* memory) const;
  };
  using Mapping = std::unique_ptr<void, Unmap>;
  std::map<const void*, Mapping> allocated_;
};

CACHALOT_END
