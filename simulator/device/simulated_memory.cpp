#include "simulator/device/simulated_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/bytes.h"
#include "device/cuda_codes.h"

CACHALOT_BEGIN

AllocationTable::Leaf* AllocationTable::leaf_of(Address address) const {
  const std::size_t branch = address / kBranchBytes;
  if (branch >= kBranches || !branches_[branch]) return nullptr;
  return branches_[branch]->leaves[address % kBranchBytes / kLeafBytes].get();
}

AllocationTable::Leaf& AllocationTable::make_leaf(Address address) {
  auto& branch = branches_[address / kBranchBytes];
  if (!branch) branch = std::make_unique<Branch>();
  auto& leaf = branch->leaves[address % kBranchBytes / kLeafBytes];
  if (!leaf) {
    leaf = std::make_unique<Leaf>();
    leaf->begin = address - address % kLeafBytes;
  }
  if (leaf.get() == idle_) idle_ = nullptr;
  return *leaf;
}

void AllocationTable::leave(Leaf& leaf) {
  if (--leaf.users > 0) return;
  if (idle_) branches_[idle_->begin / kBranchBytes]->leaves[idle_->begin % kBranchBytes / kLeafBytes].reset();
  idle_ = &leaf;
}

void AllocationTable::insert(Address address, const Allocation& allocation) {
  Leaf& first = make_leaf(address);
  first.allocations[slot_of(address)] = allocation;
  ++first.users;
  for (Address begin = first.begin + kLeafBytes; begin < address + allocation.bytes; begin += kLeafBytes) {
    Leaf& leaf = make_leaf(begin);
    leaf.held_by = address;
    ++leaf.users;
  }
}

void AllocationTable::erase(Address address) {
  Leaf& first = *leaf_of(address);
  const Address end = address + first.allocations[slot_of(address)].bytes;
  first.allocations[slot_of(address)] = {};
  for (Address begin = first.begin + kLeafBytes; begin < end; begin += kLeafBytes) {
    Leaf& leaf = *leaf_of(begin);
    leaf.held_by = 0;
    leave(leaf);
  }
  leave(first);
}

const Allocation* AllocationTable::find(Address address) const {
  const Leaf* leaf = leaf_of(address);
  if (!leaf || address % kPhysicalUnit != 0) return nullptr;
  const Allocation& allocation = leaf->allocations[slot_of(address)];
  return allocation.bytes > 0 ? &allocation : nullptr;
}

AllocationTable::Found AllocationTable::holding(Address address) const {
  const Leaf* leaf = leaf_of(address);
  if (!leaf) return {};
  Found found;
  std::size_t slot = slot_of(address) + 1;
  while (slot > 0 && leaf->allocations[slot - 1].bytes == 0) --slot;
  if (slot > 0) {
    found = {leaf->begin + (slot - 1) * kPhysicalUnit, &leaf->allocations[slot - 1]};
  } else if (leaf->held_by != 0) {
    found = {leaf->held_by, find(leaf->held_by)};
  }
  return found.allocation && address - found.begin < found.allocation->bytes ? found : Found{};
}

namespace {

constexpr int kMaxDevices = 64;                                // bits of MemoryAt::peers
constexpr std::size_t kLargestRequest = std::size_t{1} << 62;  // above it rounding up could overflow

bool is_page_multiple(std::size_t value) { return value % kPhysicalUnit == 0; }

void require_page_range(const char* call, Address address, std::size_t bytes) {
  if (bytes == 0 || !is_page_multiple(bytes))
    fail(call, CudaCode::invalid_value, "the size is not a positive multiple of 2 MiB");
  if (!is_page_multiple(address)) fail(call, CudaCode::invalid_value, "the address is not a multiple of 2 MiB");
}

std::size_t units_of(std::size_t bytes) { return round_up(bytes, kPhysicalUnit) / kPhysicalUnit; }

}  // namespace

// An account counts in bytes.
std::size_t PhysicalUnits::free() const {
  const std::size_t ours = capacity_ - driver_ - used_;
  return account_.free_bytes ? std::min(ours, account_.free_bytes() / kPhysicalUnit) : ours;
}

bool PhysicalUnits::take_from_account(std::size_t units) {
  return units + withheld_ <= capacity_ - driver_ - used_ && (!account_.take || account_.take(units * kPhysicalUnit));
}

void PhysicalUnits::count(std::size_t& what, std::size_t units) {
  what += units;
  if (used_ > peak_used_) resident_at_peak_ = resident_;
  peak_used_ = std::max(peak_used_, used_);
  peak_with_driver_ = std::max(peak_with_driver_, used_ + driver_);
}

void PhysicalUnits::make_room(std::size_t units) {
  if (resident_ == 0) return;
  const std::size_t missing = units - std::min(units, free());
  if (missing > resident_ || missing > host_capacity_ - on_host_) return;
  give_back(missing);
  resident_ -= missing;
  on_host_ += missing;
  count_managed();
}

void PhysicalUnits::count_managed() {
  peak_managed_ = std::max(peak_managed_, managed());
  peak_on_host_ = std::max(peak_on_host_, on_host_);
}

bool PhysicalUnits::take(std::size_t units) {
  make_room(units);
  if (!take_from_account(units)) return false;
  count(used_, units);
  return true;
}

bool PhysicalUnits::take_for_driver(std::size_t units) {
  make_room(units);
  if (!take_from_account(units)) return false;
  count(driver_, units);
  return true;
}

bool PhysicalUnits::take_managed(std::size_t units) {
  std::size_t on_device = std::min(units, free());
  if (!take_from_account(on_device)) on_device = 0;  // another process was faster
  if (units - on_device > host_capacity_ - on_host_) {
    if (account_.give_back) account_.give_back(on_device * kPhysicalUnit);
    return false;
  }
  resident_ += on_device;
  on_host_ += units - on_device;
  count(used_, on_device);
  count_managed();
  return true;
}

void PhysicalUnits::give_back(std::size_t units) {
  used_ -= units;
  if (account_.give_back) account_.give_back(units * kPhysicalUnit);
}

void PhysicalUnits::give_back_for_driver(std::size_t units) {
  driver_ -= units;
  if (account_.give_back) account_.give_back(units * kPhysicalUnit);
}

// The host's part goes first: other managed memory moves from there to the device when it is used.
void PhysicalUnits::give_managed_back(std::size_t units) {
  const std::size_t from_host = std::min(units, on_host_);
  on_host_ -= from_host;
  resident_ -= units - from_host;
  give_back(units - from_host);
}

bool SimulatedMemory::take_for_driver(std::size_t bytes) { return units_.take_for_driver(units_of(bytes)); }

void SimulatedMemory::give_back_for_driver(std::size_t bytes) { units_.give_back_for_driver(units_of(bytes)); }

bool SimulatedMemory::take_managed(std::size_t bytes) {
  if (bytes > kLargestRequest || !units_.take_managed(units_of(bytes))) return false;
  managed_units_ += units_of(bytes);
  return true;
}

void SimulatedMemory::give_managed_back(std::size_t bytes) {
  managed_units_ -= units_of(bytes);
  units_.give_managed_back(units_of(bytes));
}

ManagedMemory SimulatedMemory::managed() const {
  return {.used_bytes = units_.managed() * kPhysicalUnit,
          .peak_used_bytes = units_.peak_managed() * kPhysicalUnit,
          .at_peak_bytes = units_.resident_at_peak() * kPhysicalUnit,
          .peak_host_bytes = units_.peak_on_host() * kPhysicalUnit};
}

std::uint64_t SimulatedMemory::take_physical(std::size_t bytes) {
  const std::uint64_t first = next_physical_;
  next_physical_ += bytes;
  return first;
}

// New addresses ascend. Only when there are none above, those that are free below are used again.
std::optional<Address> SimulatedMemory::take_addresses(std::size_t bytes) {
  const auto address = addresses_.allocate(bytes);
  if (address) return address;
  std::vector<AddressRange> live;
  allocations_.for_each([&](Address begin, const Allocation& allocation) {
    live.push_back({begin, round_up(allocation.bytes, kPhysicalUnit)});
  });
  for (const auto& [begin, size] : reservations_) live.push_back({begin, size});
  addresses_.recycle(std::move(live));
  return addresses_.allocate(bytes);
}

std::optional<Address> SimulatedMemory::malloc(std::size_t bytes) {
  if (bytes == 0) fail("cuMemAlloc", CudaCode::invalid_value, "a size of 0");
  if (bytes > kLargestRequest) return std::nullopt;
  const std::size_t rounded = round_up(bytes, kPhysicalUnit);
  if (!units_.take(rounded / kPhysicalUnit)) return std::nullopt;
  const auto address = take_addresses(rounded);
  if (!address) {
    units_.give_back(rounded / kPhysicalUnit);
    fail("cuMemAlloc", CudaCode::unknown, "the process has used up the simulated addresses");
  }
  allocations_.insert(*address, {.bytes = bytes, .physical = take_physical(rounded), .mapping = next_mapping_++});
  return address;
}

std::optional<Address> SimulatedMemory::malloc_managed(std::size_t bytes) {
  constexpr auto kCall = "cuMemAllocManaged";
  if (bytes == 0) fail(kCall, CudaCode::invalid_value, "a size of 0");
  if (bytes > kLargestRequest) return std::nullopt;
  const std::size_t rounded = round_up(bytes, kPhysicalUnit);
  if (!units_.take_managed(rounded / kPhysicalUnit)) return std::nullopt;
  const auto address = take_addresses(rounded);
  if (!address) {
    units_.give_managed_back(rounded / kPhysicalUnit);
    fail(kCall, CudaCode::unknown, "the process has used up the simulated addresses");
  }
  allocations_.insert(
      *address, {.bytes = bytes, .physical = take_physical(rounded), .mapping = next_mapping_++, .managed = true});
  return address;
}

std::size_t SimulatedMemory::allocation_bytes(const char* call, Address address) const {
  const Allocation* allocation = allocations_.find(address);
  if (!allocation || allocation->foreign) {
    fail(call, CudaCode::invalid_value, "not an address that cuMemAlloc returned, or freed already");
  }
  return allocation->bytes;
}

void SimulatedMemory::free(Address address) {
  const std::size_t rounded = round_up(allocation_bytes("cuMemFree", address), kPhysicalUnit);
  const Allocation& allocation = *allocations_.find(address);
  if (allocation.managed) {
    units_.give_managed_back(rounded / kPhysicalUnit);
  } else {
    units_.give_back(rounded / kPhysicalUnit);
  }
  freed_.push_back({allocation.physical, rounded});
  allocations_.erase(address);
}

std::optional<Address> SimulatedMemory::reserve(std::size_t bytes) {
  require_page_range("cuMemAddressReserve", 0, bytes);
  const auto address = take_addresses(bytes);
  if (address) reservations_.emplace_hint(reservations_.end(), *address, bytes);
  return address;
}

void SimulatedMemory::unreserve(Address address, std::size_t bytes) {
  const auto at = reservations_.find(address);
  if (at == reservations_.end() || at->second != bytes) {
    fail("cuMemAddressFree", CudaCode::invalid_value, "not a whole reserved range");
  }
  if (!is_unmapped(address, bytes))
    fail("cuMemAddressFree", CudaCode::invalid_value, "memory is still mapped in the range");
  reservations_.erase(at);
}

std::optional<MemoryHandle> SimulatedMemory::create(std::size_t bytes) {
  require_page_range("cuMemCreate", 0, bytes);
  if (!units_.take(bytes / kPhysicalUnit)) return std::nullopt;
  handles_.emplace(next_handle_, Physical{.bytes = bytes, .first = take_physical(bytes)});
  return next_handle_++;
}

void SimulatedMemory::release(MemoryHandle handle) {
  live_handle("cuMemRelease", handle);
  --handles_.at(handle).references;
  drop_if_unused(handle);
}

void SimulatedMemory::retain(MemoryHandle handle) {
  const auto at = handles_.find(handle);
  if (at == handles_.end()) fail("cuMemRetainAllocationHandle", CudaCode::invalid_value, "not a handle");
  ++at->second.references;
}

MemoryHandle SimulatedMemory::adopt(std::size_t bytes) {
  require_page_range("cuMemImportFromShareableHandle", 0, bytes);
  handles_.emplace(next_handle_, Physical{.bytes = bytes, .foreign = true, .first = take_physical(bytes)});
  return next_handle_++;
}

HandleInfo SimulatedMemory::handle_info(MemoryHandle handle) const {
  const Physical& memory = live_handle("cuMemExportToShareableHandle", handle);
  return {memory.bytes, memory.first};
}

// A handle that only mappings keep alive is no longer owned, until retain.
const SimulatedMemory::Physical& SimulatedMemory::live_handle(const char* call, MemoryHandle handle) const {
  const auto at = handles_.find(handle);
  if (at == handles_.end() || at->second.references == 0)
    fail(call, CudaCode::invalid_value, "not a handle, or released already");
  return at->second;
}

void SimulatedMemory::drop_if_unused(MemoryHandle handle) {
  const auto at = handles_.find(handle);
  if (at->second.references > 0 || at->second.mappings > 0) return;
  if (!at->second.foreign) units_.give_back(at->second.bytes / kPhysicalUnit);
  freed_.push_back({at->second.first, at->second.bytes});
  handles_.erase(at);
}

bool SimulatedMemory::is_reserved(Address address, std::size_t bytes) const {
  auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return bytes <= size && address - begin <= size - bytes;
}

bool SimulatedMemory::is_unmapped(Address address, std::size_t bytes) const {
  if (mapping_at(address) != mappings_.end()) return false;
  const auto next = mappings_.lower_bound(address);
  return next == mappings_.end() || next->first - address >= bytes;
}

SimulatedMemory::Mappings::const_iterator SimulatedMemory::mapping_at(Address address) const {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return mappings_.end();
  const auto at = std::prev(after);
  return address - at->first < at->second.bytes ? at : mappings_.end();
}

void SimulatedMemory::map(Address address, std::size_t bytes, MemoryHandle handle) {
  require_page_range("cuMemMap", address, bytes);
  live_handle("cuMemMap", handle);
  Physical& memory = handles_.at(handle);
  if (bytes != memory.bytes) fail("cuMemMap", CudaCode::invalid_value, "a handle must be mapped whole");
  if (!is_reserved(address, bytes)) fail("cuMemMap", CudaCode::invalid_value, "the range is not reserved");
  if (!is_unmapped(address, bytes)) fail("cuMemMap", CudaCode::invalid_value, "memory is already mapped in the range");
  mappings_.emplace(address,
                    Mapping{.bytes = bytes, .handle = handle, .physical = memory.first, .number = next_mapping_++});
  ++memory.mappings;
  ++handle_mappings_;
}

// The first mapping past a range that is tiled by whole mappings of handles; throws if it is not.
SimulatedMemory::Mappings::const_iterator SimulatedMemory::end_of_tiling(const char* call, Address address,
                                                                         std::size_t bytes) const {
  require_page_range(call, address, bytes);
  const Address end = address + bytes;
  auto at = mappings_.lower_bound(address);
  while (address != end) {
    const bool next_tile = at != mappings_.end() && at->first == address;
    if (!next_tile || at->second.bytes > end - address) {
      fail(call, CudaCode::invalid_value, "the range is not made of whole mappings");
    }
    address += at->second.bytes;
    ++at;
  }
  return at;
}

std::vector<MemoryPiece> SimulatedMemory::whole_mappings(Address address, std::size_t bytes) const {
  const auto end = end_of_tiling("cuMemUnmap", address, bytes);
  std::vector<MemoryPiece> mappings;
  for (auto at = mappings_.lower_bound(address); at != end; ++at) {
    mappings.push_back({at->first, at->second.bytes, at->second.physical, at->second.number});
  }
  return mappings;
}

void SimulatedMemory::unmap(Address address, std::size_t bytes) {
  const auto end = end_of_tiling("cuMemUnmap", address, bytes);
  for (auto at = mappings_.lower_bound(address); at != end; at = mappings_.erase(at)) {
    const MemoryHandle handle = at->second.handle;
    --handle_mappings_;
    --handles_.at(handle).mappings;
    drop_if_unused(handle);
  }
}

std::size_t SimulatedMemory::set_access(Address address, std::size_t bytes, const std::vector<int>& peers) {
  constexpr auto kCall = "cuMemSetAccess";
  std::uint64_t granted = 0;
  for (const int peer : peers) {
    if (peer < 0 || peer >= kMaxDevices) fail(kCall, CudaCode::invalid_device, "no such device");
    granted |= std::uint64_t{1} << peer;
  }
  const auto end = end_of_tiling(kCall, address, bytes);
  std::size_t opened = 0;
  for (auto at = mappings_.lower_bound(address); at != end; ++at, ++opened) {
    at->second.accessible = true;
    at->second.peers |= granted;
  }
  return opened;
}

std::optional<Address> SimulatedMemory::open_foreign(std::size_t bytes) {
  const std::size_t rounded = round_up(bytes, kPhysicalUnit);
  const auto address = take_addresses(rounded);
  if (!address) return std::nullopt;
  const std::uint64_t physical = take_physical(rounded);
  allocations_.insert(*address, {.bytes = bytes, .physical = physical, .mapping = next_mapping_++, .foreign = true});
  return address;
}

void SimulatedMemory::close_foreign(Address address) {
  const Allocation& allocation = *allocations_.find(address);
  freed_.push_back({allocation.physical, round_up(allocation.bytes, kPhysicalUnit)});
  allocations_.erase(address);
}

void SimulatedMemory::release_all() {
  std::vector<std::pair<Address, bool>> allocations;
  allocations_.for_each([&](Address begin, const Allocation& one) { allocations.emplace_back(begin, one.foreign); });
  for (const auto& [address, foreign] : allocations) foreign ? close_foreign(address) : free(address);
  while (!mappings_.empty()) unmap(mappings_.begin()->first, mappings_.begin()->second.bytes);
  while (!handles_.empty()) release(handles_.begin()->first);
  while (!reservations_.empty()) unreserve(reservations_.begin()->first, reservations_.begin()->second);
  give_managed_back(managed_units_ * kPhysicalUnit);
  give_back_for_driver(driver_bytes());
}

std::optional<MemoryAt> SimulatedMemory::memory_at(Address address) const {
  if (const auto [begin, allocation] = allocations_.holding(address); allocation) {
    return MemoryAt{.range = {begin, allocation->bytes},
                    .accessible = true,
                    .physical = allocation->physical + (address - begin),
                    .mapping = allocation->mapping};
  }
  const auto at = mapping_at(address);
  if (at == mappings_.end()) return std::nullopt;
  const Mapping& mapping = at->second;
  return MemoryAt{.range = {at->first, mapping.bytes},
                  .handle = mapping.handle,
                  .accessible = mapping.accessible,
                  .peers = mapping.peers,
                  .physical = mapping.physical + (address - at->first),
                  .mapping = mapping.number};
}

bool SimulatedMemory::locate(Address address, std::size_t bytes, std::vector<MemoryPiece>& pieces) const {
  while (bytes > 0) {
    const auto memory = memory_at(address);
    if (!memory || !memory->accessible) return false;
    const std::size_t part = std::min(bytes, memory->range.bytes - (address - memory->range.address));
    pieces.push_back({address, part, memory->physical, memory->mapping});
    address += part;
    bytes -= part;
  }
  return true;
}

namespace {

bool is_zero(const std::byte* bytes, std::size_t count) {
  return bytes[0] == std::byte{} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

}  // namespace

template <typename Visit>
void SimulatedContent::for_each_chunk(std::uint64_t physical, std::size_t bytes, Visit&& visit) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t place = (physical + done) % kChunkBytes;
    const std::size_t part = std::min(bytes - done, kChunkBytes - place);
    visit((physical + done) / kChunkBytes, place, done, part);
    done += part;
  }
}

void SimulatedContent::write(std::uint64_t physical, const std::byte* from, std::size_t bytes) {
  for_each_chunk(physical, bytes, [&](std::uint64_t number, std::size_t place, std::size_t done, std::size_t part) {
    const bool zeros = is_zero(from + done, part);
    if (zeros && !chunks_.contains(number)) return;
    Chunk& chunk = chunks_[number];
    std::memcpy(chunk.data() + place, from + done, part);
    if (zeros && is_zero(chunk.data(), kChunkBytes)) chunks_.erase(number);
  });
}

void SimulatedContent::fill(std::uint64_t physical, std::byte value, std::size_t bytes) {
  Chunk filled;
  filled.fill(value);
  for_each_chunk(physical, bytes, [&](std::uint64_t, std::size_t, std::size_t done, std::size_t part) {
    write(physical + done, filled.data(), part);
  });
}

void SimulatedContent::read(std::byte* to, std::uint64_t physical, std::size_t bytes) const {
  for_each_chunk(physical, bytes, [&](std::uint64_t number, std::size_t place, std::size_t done, std::size_t part) {
    const auto chunk = chunks_.find(number);
    if (chunk != chunks_.end()) {
      std::memcpy(to + done, chunk->second.data() + place, part);
    } else if (!is_zero(to + done, part)) {
      std::memset(to + done, 0, part);
    }
  });
}

void SimulatedContent::forget(std::uint64_t physical, std::size_t bytes) {
  chunks_.erase(chunks_.lower_bound(physical / kChunkBytes), chunks_.lower_bound((physical + bytes) / kChunkBytes));
}

void* SimulatedHostMemory::allocate(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  allocated_.emplace(memory, Mapping(memory, Unmap{bytes}));
  return memory;
}

std::size_t SimulatedHostMemory::bytes(const void* memory) const {
  const auto taken = allocated_.find(memory);
  return taken == allocated_.end() ? 0 : taken->second.get_deleter().bytes;
}

bool SimulatedHostMemory::holds(const void* memory) const {
  const auto above = allocated_.upper_bound(memory);
  if (above == allocated_.begin()) return false;
  const auto& [first, mapping] = *std::prev(above);
  return static_cast<const std::byte*>(memory) < static_cast<const std::byte*>(first) + mapping.get_deleter().bytes;
}

void SimulatedHostMemory::Unmap::operator()(void* memory) const { munmap(memory, bytes); }

bool SimulatedHostMemory::free(void* memory) { return allocated_.erase(memory) == 1; }

CACHALOT_END
