#include "pytorch/library_memory.h"

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "pytorch/process.h"

namespace cachalot {

namespace {

constexpr const char* kRemainder = "torch";

// Of the block, as statistics count it; 0 for memory that they do not count: with caching off.
std::int64_t block_bytes(CachingAllocator& allocator, void* ptr) {
  try {
    return static_cast<std::int64_t>(allocator.allocated_size(ptr));
  } catch (const InvalidArgument&) {
    if (allocator.device_of(ptr) < 0) throw;
    return 0;
  }
}

void raise_to(std::atomic<std::int64_t>& peak, std::int64_t value) {
  std::int64_t before = peak.load(std::memory_order_relaxed);
  while (before < value && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

// What others than the libraries have. Counts of both are read while other threads work: a difference is never below 0.
LibraryUsage remainder(const CachingAllocator& allocator, int device, const std::vector<LibraryUsage>& libraries) {
  const DeviceStats stats = allocator.memory_stats(device);
  LibraryUsage rest{kRemainder,
                    device,
                    stats.allocated_bytes.all.current,
                    stats.allocated_bytes.all.peak,
                    stats.allocation.all.allocated,
                    stats.allocation.all.freed};
  for (const LibraryUsage& usage : libraries) {
    if (usage.device != device) continue;
    rest.live_bytes -= usage.live_bytes;
    rest.allocations -= usage.allocations;
    rest.frees -= usage.frees;
  }
  for (std::int64_t* figure : {&rest.live_bytes, &rest.allocations, &rest.frees}) *figure = std::max(*figure, {});
  return rest;
}

}  // namespace

LibraryMemory& LibraryMemory::of(std::string_view library) {
  CACHALOT_REQUIRE(!library.empty() && library != kRemainder,
                   "library is '{}': it must be the name of a library other than torch, whose tensors need no account",
                   library);
  LibraryMemory* first = newest_.load(std::memory_order_acquire);
  if (LibraryMemory* const known = find(library, first)) return *known;
  std::unique_ptr<LibraryMemory> made(new LibraryMemory(library));
  do {
    if (LibraryMemory* const known = find(library, first)) return *known;
    made->before_ = first;
  } while (!newest_.compare_exchange_weak(first, made.get(), std::memory_order_acq_rel));
  return *made.release();
}

LibraryMemory* LibraryMemory::find(std::string_view name, LibraryMemory* first) {
  while (first != nullptr && first->name_ != name) first = first->before_;
  return first;
}

LibraryMemory::Counters& LibraryMemory::counters(int device) {
  Counters* all = counters_.load(std::memory_order_acquire);
  if (all == nullptr) {
    auto made = std::make_unique<Counters[]>(static_cast<std::size_t>(process_allocator().device_count()));
    if (counters_.compare_exchange_strong(all, made.get(), std::memory_order_acq_rel)) all = made.release();
  }
  return all[device];
}

void* LibraryMemory::allocate(std::size_t bytes, int device, Stream stream) {
  void* const ptr = Process::instance().allocate(bytes, device, stream);
  if (ptr == nullptr) return nullptr;
  try {
    count_allocation(ptr, device);
  } catch (...) {
    process_allocator().deallocate_when_possible(ptr);
    throw;
  }
  return ptr;
}

void LibraryMemory::count_allocation(void* ptr, int device) {
  const std::int64_t bytes = block_bytes(process_allocator(), ptr);
  Counters& mine = counters(device);
  mine.allocations.fetch_add(1, std::memory_order_relaxed);
  raise_to(mine.peak_bytes, mine.live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

void LibraryMemory::deallocate(void* ptr) {
  counted_free(ptr, [ptr](CachingAllocator& allocator) { allocator.deallocate(ptr); });
}

void LibraryMemory::deallocate(void* ptr, Stream stream) {
  counted_free(ptr, [ptr, stream](CachingAllocator& allocator) {
    allocator.record_stream(ptr, stream);
    allocator.deallocate(ptr);
  });
}

template <typename Free>
void LibraryMemory::counted_free(void* ptr, Free free) {
  CachingAllocator& allocator = process_allocator();
  if (ptr == nullptr || allocator.is_inherited()) return;
  const std::int64_t bytes = block_bytes(allocator, ptr);
  Counters& mine = counters(allocator.device_of(ptr));
  mine.live_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  mine.frees.fetch_add(1, std::memory_order_relaxed);
  try {
    free(allocator);
  } catch (...) {
    mine.live_bytes.fetch_add(bytes, std::memory_order_relaxed);
    mine.frees.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
}

void LibraryMemory::add_usage(std::vector<LibraryUsage>& usage) const {
  const Counters* const all = counters_.load(std::memory_order_acquire);
  if (all == nullptr) return;
  for (int device = 0; device < process_allocator().device_count(); ++device) {
    const Counters& of_device = all[device];
    const LibraryUsage found{name_,
                             device,
                             of_device.live_bytes.load(std::memory_order_relaxed),
                             of_device.peak_bytes.load(std::memory_order_relaxed),
                             of_device.allocations.load(std::memory_order_relaxed),
                             of_device.frees.load(std::memory_order_relaxed)};
    if (found.allocations > 0) usage.push_back(found);
  }
}

std::vector<LibraryUsage> LibraryMemory::usage() {
  const CachingAllocator* const allocator = Process::instance().made();
  std::vector<LibraryUsage> usage;
  if (allocator == nullptr) return usage;
  const LibraryMemory* const first = newest_.load(std::memory_order_acquire);
  for (const LibraryMemory* one = first; one != nullptr; one = one->before_) one->add_usage(usage);
  std::sort(usage.begin(), usage.end(), [](const LibraryUsage& a, const LibraryUsage& b) {
    return a.library != b.library ? a.library < b.library : a.device < b.device;
  });
  std::vector<LibraryUsage> rest;
  for (int device = 0; device < allocator->device_count(); ++device) {
    const LibraryUsage of_device = remainder(*allocator, device, usage);
    if (of_device.allocations > 0 || of_device.live_bytes > 0) rest.push_back(of_device);
  }
  usage.insert(usage.end(), rest.begin(), rest.end());
  return usage;
}

}  // namespace cachalot
