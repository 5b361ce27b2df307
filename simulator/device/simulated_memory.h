// The simulated device's memory: physical units, handles to them, reserved addresses, and mappings.
//
// Invariants: (1) used units are the sum over our allocations and handles, less the managed memory on the host, and with
// those of the driver never exceed the capacity; (2) mappings do not overlap; (3) every mapping of a handle lies in one
// reservation; (4) a handle exists while it is not released or a mapping of it is left.
// Every byte has a physical number besides its address, so that the same byte at two addresses is recognized.
// Rules broken throw CudaError. Not thread-safe; the device's mutex guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cachalot/device.h"
#include "cachalot/simulated_device.h"
#include "simulator/device/address_space.h"

CACHALOT_BEGIN

struct Allocation {
  std::size_t bytes = 0;       // asked for; 0: none here
  std::uint64_t physical = 0;  // number of its first byte
  std::uint64_t mapping = 0;   // its number among mappings
  bool foreign = false;        // of another process
  bool managed = false;        // of malloc_managed
};

// Allocations by address, each beginning on a multiple of 2 MiB: a radix tree over the 47 bits of an address, so that
// neither insert, erase nor look-up depends on how many there are.
// Not thread-safe; the device's mutex guards it.
class AllocationTable {
 public:
  // `address`: a multiple of kPhysicalUnit in no allocation; `allocation.bytes` > 0.
  void insert(Address address, const Allocation& allocation);
  void erase(Address address);

  // The allocation that begins at the address; null if none does.
  const Allocation* find(Address address) const;

  struct Found {
    Address begin = 0;
    const Allocation* allocation = nullptr;  // null: no allocation holds the address
  };
  Found holding(Address address) const;

  // Calls visit(begin, allocation) in the order of addresses.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& branch : branches_) {
      for (std::size_t i = 0; branch && i < kBranchLeaves; ++i) {
        const Leaf* leaf = branch->leaves[i].get();
        for (std::size_t slot = 0; leaf && slot < kLeafSlots; ++slot) {
          if (leaf->allocations[slot].bytes > 0) visit(leaf->begin + slot * kPhysicalUnit, leaf->allocations[slot]);
        }
      }
    }
  }

 private:
  // 2^47 bytes = 256 branches of 512 leaves of 512 slots of 2 MiB.
  static constexpr std::size_t kBranches = 256;
  static constexpr std::size_t kBranchLeaves = 512;
  static constexpr std::size_t kLeafSlots = 512;
  static constexpr std::size_t kLeafBytes = kLeafSlots * kPhysicalUnit;
  static constexpr std::size_t kBranchBytes = kBranchLeaves * kLeafBytes;
  static_assert(kBranches * kBranchBytes == std::size_t{1} << 47);

  struct Leaf {
    Address begin = 0;
    Address held_by = 0;    // beginning of an allocation that reaches in here from a lower leaf; 0: none
    std::size_t users = 0;  // allocations that begin here or reach in here
    std::array<Allocation, kLeafSlots> allocations;
  };
  struct Branch {
    std::array<std::unique_ptr<Leaf>, kBranchLeaves> leaves;
  };

  static std::size_t slot_of(Address address) { return address % kLeafBytes / kPhysicalUnit; }
  Leaf* leaf_of(Address address) const;
  Leaf& make_leaf(Address address);
  void leave(Leaf& leaf);

  std::array<std::unique_ptr<Branch>, kBranches> branches_;
  Leaf* idle_ = nullptr;  // empty, but kept: new addresses ascend, so that it is likely to be used again
};

// A stretch of one mapping.
struct MemoryPiece {
  Address address = 0;
  std::size_t bytes = 0;
  std::uint64_t physical = 0;  // number of its first byte
  std::uint64_t mapping = 0;   // number of the mapping; never used again after unmap
};

// PhysicalUnits count the units of 2 MiB of a device by their use, and the units of managed memory that lie on the host.
class PhysicalUnits {
 public:
  PhysicalUnits(std::size_t memory_bytes, std::size_t host_bytes, MemoryAccount account)
      : capacity_(memory_bytes / kPhysicalUnit),
        host_capacity_(host_bytes / kPhysicalUnit),
        account_(std::move(account)) {}

  // Each returns false, and takes nothing, if there is no room. Managed memory makes room for the others.
  bool take(std::size_t units);
  bool take_for_driver(std::size_t units);
  bool take_managed(std::size_t units);
  void give_back(std::size_t units);
  void give_back_for_driver(std::size_t units);
  void give_managed_back(std::size_t units);

  // Refuses the units from now on, although free() counts them.
  void withhold(std::size_t units) { withheld_ = units; }
  // Returns what no process has taken.
  std::size_t free() const;
  std::size_t used() const { return used_; }
  std::size_t driver() const { return driver_; }
  std::size_t on_host() const { return on_host_; }
  std::size_t peak_used() const { return peak_used_; }
  std::size_t peak_with_driver() const { return peak_with_driver_; }
  std::size_t managed() const { return resident_ + on_host_; }
  std::size_t peak_managed() const { return peak_managed_; }
  std::size_t resident_at_peak() const { return resident_at_peak_; }
  std::size_t peak_on_host() const { return peak_on_host_; }

 private:
  bool take_from_account(std::size_t units);
  void count(std::size_t& what, std::size_t units);
  void count_managed();
  // Moves managed memory to the host until `units` are free, if it has that much and the host has room for it.
  void make_room(std::size_t units);

  const std::size_t capacity_;
  const std::size_t host_capacity_;
  const MemoryAccount account_;
  std::size_t used_ = 0;
  std::size_t driver_ = 0;
  std::size_t resident_ = 0;  // of used_: managed memory
  std::size_t on_host_ = 0;   // managed memory
  std::size_t withheld_ = 0;
  std::size_t peak_used_ = 0;
  std::size_t peak_with_driver_ = 0;  // of used_ and driver_ together
  std::size_t peak_managed_ = 0;
  std::size_t resident_at_peak_ = 0;  // managed memory on the device when peak_used_ was reached
  std::size_t peak_on_host_ = 0;
};

class SimulatedMemory {
 public:
  SimulatedMemory(std::size_t memory_bytes, std::size_t host_bytes, MemoryAccount account)
      : units_(memory_bytes, host_bytes, std::move(account)) {}

  void plan_addresses(const std::vector<AddressRange>& mallocs) { addresses_.plan(mallocs); }
  std::optional<Address> malloc(std::size_t bytes);
  std::optional<Address> malloc_managed(std::size_t bytes);
  void free(Address address);
  // Requires that malloc or malloc_managed returned the live `address`.
  bool is_managed(Address address) const { return allocations_.find(address)->managed; }
  // Bytes asked of malloc or malloc_managed for the live `address`; throws in the name of `call` for any other address.
  std::size_t allocation_bytes(const char* call, Address address) const;

  std::optional<Address> reserve(std::size_t bytes);
  void unreserve(Address address, std::size_t bytes);
  std::optional<MemoryHandle> create(std::size_t bytes);
  void release(MemoryHandle handle);
  void retain(MemoryHandle handle);
  MemoryHandle adopt(std::size_t bytes);  // of another process: not on our account
  HandleInfo handle_info(MemoryHandle handle) const;
  void map(Address address, std::size_t bytes, MemoryHandle handle);
  // The mappings that unmap(address, bytes) would drop; throws as unmap does.
  std::vector<MemoryPiece> whole_mappings(Address address, std::size_t bytes) const;
  void unmap(Address address, std::size_t bytes);
  // Returns the number of mappings that it opened.
  std::size_t set_access(Address address, std::size_t bytes, const std::vector<int>& peers);

  // Releases everything: allocations, mappings, handles, reservations, open memory of other processes.
  void release_all();

  // Memory of another process: accessible, but not on our account.
  std::optional<Address> open_foreign(std::size_t bytes);
  void close_foreign(Address address);

  std::optional<MemoryAt> memory_at(Address address) const;
  // Appends the pieces of the range to `pieces`; false, with `pieces` in any state, if a byte is not accessible.
  bool locate(Address address, std::size_t bytes, std::vector<MemoryPiece>& pieces) const;

  // See SimulatedDevice::take_for_driver.
  bool take_for_driver(std::size_t bytes);
  void give_back_for_driver(std::size_t bytes);
  // See SimulatedDevice::take_managed.
  bool take_managed(std::size_t bytes);
  void give_managed_back(std::size_t bytes);
  ManagedMemory managed() const;
  std::size_t driver_bytes() const { return units_.driver() * kPhysicalUnit; }
  std::size_t peak_with_driver_bytes() const { return units_.peak_with_driver() * kPhysicalUnit; }

  std::size_t free_bytes() const { return units_.free() * kPhysicalUnit; }
  void withhold(std::size_t bytes) { units_.withhold(bytes / kPhysicalUnit); }
  std::size_t used_bytes() const { return units_.used() * kPhysicalUnit; }
  std::size_t host_bytes() const { return units_.on_host() * kPhysicalUnit; }
  std::size_t peak_used_bytes() const { return units_.peak_used() * kPhysicalUnit; }
  std::size_t live_mappings() const { return handle_mappings_; }
  // Physical numbers freed since the last forget_freed.
  struct PhysicalRange {
    std::uint64_t first = 0;
    std::size_t bytes = 0;
  };
  const std::vector<PhysicalRange>& freed() const { return freed_; }
  void forget_freed() { freed_.clear(); }

 private:
  // A Mapping belongs to a handle.
  struct Mapping {
    std::size_t bytes = 0;
    bool accessible = false;
    std::uint64_t peers = 0;  // as in MemoryAt
    MemoryHandle handle = 0;
    std::uint64_t physical = 0;
    std::uint64_t number = 0;
  };
  struct Physical {
    std::size_t bytes = 0;
    std::size_t mappings = 0;
    std::size_t references = 1;  // of create and retain, not released yet
    bool foreign = false;
    std::uint64_t first = 0;
  };
  using Mappings = std::map<Address, Mapping>;

  std::optional<Address> take_addresses(std::size_t bytes);
  Mappings::const_iterator mapping_at(Address address) const;
  Mappings::const_iterator end_of_tiling(const char* call, Address address, std::size_t bytes) const;
  bool is_reserved(Address address, std::size_t bytes) const;
  bool is_unmapped(Address address, std::size_t bytes) const;
  const Physical& live_handle(const char* call, MemoryHandle handle) const;
  void drop_if_unused(MemoryHandle handle);
  std::uint64_t take_physical(std::size_t bytes);

  PhysicalUnits units_;
  std::size_t managed_units_ = 0;  // of take_managed
  AddressSpace addresses_;
  AllocationTable allocations_;  // of malloc and of other processes; disjoint from the mappings
  Mappings mappings_;
  std::size_t handle_mappings_ = 0;
  std::map<Address, std::size_t> reservations_;
  std::unordered_map<MemoryHandle, Physical> handles_;
  MemoryHandle next_handle_ = 1;
  std::uint64_t next_physical_ = kPhysicalUnit;
  std::uint64_t next_mapping_ = 1;
  std::vector<PhysicalRange> freed_;
};

// The content of the simulated device's memory, sparsely: bytes copied in from the host or filled in, by physical number. All else
// reads as zeros, and zeros take no room. And the host memory it hands out. Not thread-safe; the device's mutex guards them.
class SimulatedContent {
 public:
  void write(std::uint64_t physical, const std::byte* from, std::size_t bytes);
  void fill(std::uint64_t physical, std::byte value, std::size_t bytes);
  // Host memory that is zero where zeros are to go is not written to, and so need not be there.
  void read(std::byte* to, std::uint64_t physical, std::size_t bytes) const;
  // Drops the content of released memory, which consists of whole chunks.
  void forget(std::uint64_t physical, std::size_t bytes);

 private:
  static constexpr std::size_t kChunkBytes = 4096;
  using Chunk = std::array<std::byte, kChunkBytes>;

  // Calls visit(number of the chunk, place in it, place in the range, bytes) for each chunk of a range.
  template <typename Visit>
  static void for_each_chunk(std::uint64_t physical, std::size_t bytes, Visit&& visit);

  std::map<std::uint64_t, Chunk> chunks_;  // by number; not all zeros
};

// Host memory like cuMemHostAlloc's, but not pinned: it takes room once written.
class SimulatedHostMemory {
 public:
  void* allocate(std::size_t bytes);            // pages of zeros; null when the host has not that much
  std::size_t bytes(const void* memory) const;  // 0: not allocated here
  bool holds(const void* memory) const;         // somewhere in an allocation
  bool free(void* memory);                      // false if not allocated here
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
