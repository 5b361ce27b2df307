// CUB's sort, scan and reduce share one scratch, which allocates nothing after the first round. On a GPU, the results are
// checked, too; kernels of the simulated runtime compute nothing.
#include <cstdint>
#include <cstdio>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <numeric>
#include <vector>

#include "cachalot/caching_allocator.h"
#include "cachalot/cub_scratch.h"

namespace {

constexpr int kCount = 1 << 20;
constexpr int kRounds = 10;

struct Arrays {
  explicit Arrays(cachalot::CachingAllocator& allocator)
      : in(cachalot::allocate_owned(allocator, kCount * sizeof(std::uint32_t), 0, nullptr)),
        sorted(cachalot::allocate_owned(allocator, kCount * sizeof(std::uint32_t), 0, nullptr)),
        sums(cachalot::allocate_owned(allocator, kCount * sizeof(std::uint32_t), 0, nullptr)),
        total(cachalot::allocate_owned(allocator, sizeof(std::uint32_t), 0, nullptr)) {}
  static std::uint32_t* of(const cachalot::Allocation& memory) { return static_cast<std::uint32_t*>(memory.get()); }
  cachalot::Allocation in;
  cachalot::Allocation sorted;
  cachalot::Allocation sums;
  cachalot::Allocation total;
};

cachalot::Address address_of(const cachalot::Allocation& memory) {
  return reinterpret_cast<cachalot::Address>(memory.get());
}

// Sorts `in`, and computes the prefix sums and the total of the sorted values.
void round(cachalot::CubScratch& scratch, const Arrays& arrays) {
  std::uint32_t* const in = Arrays::of(arrays.in);
  std::uint32_t* const sorted = Arrays::of(arrays.sorted);
  std::uint32_t* const sums = Arrays::of(arrays.sums);
  std::uint32_t* const total = Arrays::of(arrays.total);
  scratch(
      [&](void* temp, std::size_t& bytes) { return cub::DeviceRadixSort::SortKeys(temp, bytes, in, sorted, kCount); });
  scratch(
      [&](void* temp, std::size_t& bytes) { return cub::DeviceScan::InclusiveSum(temp, bytes, sorted, sums, kCount); });
  scratch([&](void* temp, std::size_t& bytes) { return cub::DeviceReduce::Sum(temp, bytes, sorted, total, kCount); });
}

// Returns kCount - 1, …, 2, 1, 0.
std::vector<std::uint32_t> descending() {
  std::vector<std::uint32_t> values(kCount);
  std::iota(values.rbegin(), values.rend(), 0u);
  return values;
}

}  // namespace

int main() {
  cachalot::CachingAllocator allocator(cachalot::cuda_devices());
  if (allocator.device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  cachalot::Device& device = *allocator.device();
  const Arrays arrays(allocator);
  const std::vector<std::uint32_t> values = descending();
  const std::uint32_t zero = 0;
  device.copy_from_host(address_of(arrays.in), values.data(), kCount * sizeof(values[0]));
  device.copy_from_host(address_of(arrays.total), &zero, sizeof(zero));

  cachalot::CubScratch scratch(allocator);
  round(scratch, arrays);
  const auto first = allocator.memory_stats().allocation.all.allocated;
  for (int i = 1; i < kRounds; ++i) round(scratch, arrays);
  const auto later = allocator.memory_stats().allocation.all.allocated - first;

  std::uint32_t total = 0;
  device.synchronize();
  device.copy_to_host(&total, address_of(arrays.total), sizeof(total));
  const auto expected = std::accumulate(values.begin(), values.end(), std::uint32_t{0});
  std::printf("%zu bytes of scratch; allocations in rounds 2 to %d: %lld\n", scratch.bytes(), kRounds,
              static_cast<long long>(later));
  std::puts(total == expected ? "the sum is right" : total == 0 ? "kernels compute nothing here" : "the sum is WRONG");
  return later == 0 && (total == expected || total == 0) ? 0 : 1;
}
