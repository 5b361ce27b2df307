// What other libraries of the process (CuPy, Numba, …) take from the heap that serves torch, counted by library and device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// A LibraryUsage is what one library has of one device's memory.
struct LibraryUsage {
  std::string library;
  int device = 0;
  std::int64_t live_bytes = 0;   // of the blocks of its live allocations: PyTorch's allocated_bytes
  std::int64_t peak_bytes = 0;   // the largest live_bytes
  std::int64_t allocations = 0;  // made since the process began
  std::int64_t frees = 0;        // of these
};

// A LibraryMemory is one library's account of the process's allocator. Invariants: (1) allocations - frees is the number of
// live allocations; (2) live_bytes is the sum of their blocks; (3) it is counted after an allocation and before a free, so
// that memory is never counted twice.
//
// Counted with atomics, under no lock. Never destroyed: memory is freed at the very end of the process.
// In a forked child of the process that made the allocator, frees do nothing and are not counted.
// Thread-safe.
class LibraryMemory {
 public:
  // Returns the account of the library, which is made at the first call with its name. Lives as long as the process.
  // Throws InvalidArgument for an empty name, and for "torch": the name of what no account has.
  static LibraryMemory& of(std::string_view library);
  // Returns the usage of each library and device that ever had memory, the libraries by name, then "torch": what remains of
  // the allocator's memory. Its peak is that of all memory together, and torch's reset_peak_memory_stats and
  // reset_accumulated_memory_stats apply to it. Empty while the process has no allocator, and in a forked child of the
  // process that made it.
  static std::vector<LibraryUsage> usage();

  // Returns memory for work on `stream`; null for 0 bytes. As CachingAllocator::allocate.
  void* allocate(std::size_t bytes, int device, Stream stream);
  // Frees what allocate returned; null is ignored. As CachingAllocator::deallocate.
  void deallocate(void* ptr);
  // The same after work on `stream`, which may be another than the allocation's.
  void deallocate(void* ptr, Stream stream);

  const std::string& name() const { return name_; }

 private:
  struct Counters {
    std::atomic<std::int64_t> live_bytes{0};
    std::atomic<std::int64_t> peak_bytes{0};
    std::atomic<std::int64_t> allocations{0};
    std::atomic<std::int64_t> frees{0};
  };

  explicit LibraryMemory(std::string_view name) : name_(name) {}
  static LibraryMemory* find(std::string_view name, LibraryMemory* first);
  Counters& counters(int device);
  void count_allocation(void* ptr, int device);
  template <typename Free>
  void counted_free(void* ptr, Free free);
  void add_usage(std::vector<LibraryUsage>& usage) const;

  static inline std::atomic<LibraryMemory*> newest_{nullptr};

  const std::string name_;
  LibraryMemory* before_ = nullptr;           // made earlier
  std::atomic<Counters*> counters_{nullptr};  // one for each device; made by the first allocation
};

}  // namespace cachalot
