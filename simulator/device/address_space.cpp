#include "simulator/device/address_space.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/locks.h"

CACHALOT_BEGIN
namespace {

constexpr Address kFirstAddress = Address{1} << 40;  // far above what a small integer, cast in error, would name
constexpr Address kEndAddress = Address{1} << 47;    // user addresses of x86-64, and of CUDA on it
constexpr std::size_t kChunkBytes = kGiB;            // small, so that tens of thousands of devices fit

// The process's free address numbers, by address; neighbours are merged.
class FreeAddresses {
 public:
  // The lowest free range of `bytes` at or above `above`.
  std::optional<Address> allocate(std::size_t bytes, Address above) {
    const Lock lock(mutex_);
    for (auto range = free_.lower_bound(above); range != free_.end(); ++range) {
      if (range->second >= bytes) return cut(range, bytes);
    }
    return std::nullopt;
  }

  void limit(const AddressRange& range) {
    const Lock lock(mutex_);
    free_ = {{range.address, range.bytes}};
  }

  void free(const AddressRange& range) {
    const Lock lock(mutex_);
    auto at = free_.emplace(range.address, range.bytes).first;
    if (at != free_.begin()) {
      auto before = std::prev(at);
      if (before->first + before->second == at->first) at = join(before, at);
    }
    auto after = std::next(at);
    if (after != free_.end() && at->first + at->second == after->first) join(at, after);
  }

 private:
  using Ranges = std::map<Address, std::size_t>;

  Address cut(Ranges::iterator range, std::size_t bytes) CACHALOT_REQUIRES(mutex_) {
    const Address address = range->first;
    const std::size_t rest = range->second - bytes;
    const auto hint = free_.erase(range);
    if (rest > 0) free_.emplace_hint(hint, address + bytes, rest);
    return address;
  }

  Ranges::iterator join(Ranges::iterator low, Ranges::iterator high) CACHALOT_REQUIRES(mutex_) {
    low->second += high->second;
    free_.erase(high);
    return low;
  }

  Mutex mutex_;
  Ranges free_ CACHALOT_GUARDED_BY(mutex_){{kFirstAddress, kEndAddress - kFirstAddress}};
};

// Never destroyed: devices may outlive static objects.
FreeAddresses& free_addresses() {
  static auto& addresses = *new FreeAddresses;
  return addresses;
}

}  // namespace

void limit_addresses(const AddressRange& range) { free_addresses().limit(range); }

AddressSpace::~AddressSpace() {
  for (const AddressRange& chunk : chunks_) free_addresses().free(chunk);
}

std::optional<Address> AddressSpace::allocate(std::size_t bytes) {
  if (const auto plan = planned_.find(bytes); plan != planned_.end() && !plan->second.empty()) {
    const Address address = plan->second.front();
    plan->second.pop_front();
    return address;
  }
  if (bytes > end_ - next_ && !refill(bytes)) return std::nullopt;
  const Address address = next_;
  next_ += bytes;
  return address;
}

void AddressSpace::plan(const std::vector<AddressRange>& ranges) {
  std::vector<std::size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ranges[i].address; });
  std::vector<Address> addresses(ranges.size());
  for (const std::size_t i : order) {
    const auto address = allocate(round_up(ranges[i].bytes, kPhysicalUnit));
    if (!address) return;
    addresses[i] = *address;
  }
  for (std::size_t i = 0; i < ranges.size(); ++i)
    planned_[round_up(ranges[i].bytes, kPhysicalUnit)].push_back(addresses[i]);
}

void AddressSpace::recycle(std::vector<AddressRange> live) {
  planned_.clear();
  const auto lower = [](const AddressRange& one, const AddressRange& other) { return one.address < other.address; };
  std::sort(live.begin(), live.end(), lower);
  std::sort(chunks_.begin(), chunks_.end(), lower);
  auto next = live.begin();
  for (const AddressRange& chunk : chunks_) {
    Address begin = chunk.address;
    const Address end = chunk.address + chunk.bytes;
    for (; next != live.end() && next->address < end; ++next) {
      if (next->address > begin) free_addresses().free({begin, next->address - begin});
      begin = next->address + next->bytes;
    }
    if (end > begin) free_addresses().free({begin, end - begin});
  }
  chunks_ = std::move(live);
  next_ = end_ = 0;
}

// Takes a new chunk. The rest of the old one is too small and stays unused.
bool AddressSpace::refill(std::size_t bytes) {
  std::size_t chunk_bytes = std::max(bytes, kChunkBytes);
  auto chunk = free_addresses().allocate(chunk_bytes, end_);
  if (!chunk) chunk = free_addresses().allocate(chunk_bytes = bytes, end_);
  if (!chunk) return false;
  if (!chunks_.empty() && chunks_.back().address + chunks_.back().bytes == *chunk) {
    chunks_.back().bytes += chunk_bytes;  // the rule: so the list is as short as the process's devices are few
  } else {
    chunks_.push_back({*chunk, chunk_bytes});
  }
  next_ = *chunk;
  end_ = *chunk + chunk_bytes;
  return true;
}

CACHALOT_END
