// The simulated device's memory: physical units, handles to them, reserved addresses, and what is mapped where.
//
// Invariants: (1) used_units is the sum over our allocations and handles, and with driver_units never exceeds the
// capacity; (2) mappings do not overlap; (3) every mapping of a handle lies in one reservation; (4) a handle exists
// while it is not released or a mapping of it is left.
// Every byte has a physical number besides its address, so that the same byte at two addresses is recognized.
// Rules broken throw CudaError. Not thread-safe; the device's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cachalot/simulated_device.h"
#include "device/address_space.h"
#include "device/allocation_table.h"

CACHALOT_BEGIN

// A stretch of one mapping.
struct MemoryPiece {
  Address address = 0;
  std::size_t bytes = 0;
  std::uint64_t physical = 0;  // number of its first byte
  std::uint64_t mapping = 0;   // number of the mapping; never used again after unmap
};

class SimulatedMemory {
 public:
  explicit SimulatedMemory(std::size_t memory_bytes, MemoryAccount account = {})
      : capacity_units_(memory_bytes / kPhysicalUnit), account_(std::move(account)) {}

  std::optional<Address> malloc(std::size_t bytes);
  void free(Address address);
  // Bytes asked of malloc for the live `address`; throws in the name of `call` for any other address.
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
  void set_access(Address address, std::size_t bytes, const std::vector<int>& peers);

  // Everything goes: allocations, mappings, handles, reservations, what is open of other processes.
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
  std::size_t driver_bytes() const { return driver_units_ * kPhysicalUnit; }
  std::size_t peak_with_driver_bytes() const { return peak_with_driver_units_ * kPhysicalUnit; }

  std::size_t free_bytes() const { return account_.free_bytes ? account_.free_bytes() : free_units() * kPhysicalUnit; }
  std::size_t used_bytes() const { return used_units_ * kPhysicalUnit; }
  std::size_t peak_used_bytes() const { return peak_units_ * kPhysicalUnit; }
  std::size_t live_mappings() const { return handle_mappings_; }
  // Physical numbers freed since the last forget_freed.
  struct PhysicalRange {
    std::uint64_t first = 0;
    std::size_t bytes = 0;
  };
  const std::vector<PhysicalRange>& freed() const { return freed_; }
  void forget_freed() { freed_.clear(); }

 private:
  // Of a handle.
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

  // Not counting what other processes took.
  std::size_t free_units() const { return capacity_units_ - driver_units_ - used_units_; }
  bool take_from_account(std::size_t units);
  bool take_units(std::size_t units);
  void note_peak_with_driver();
  void give_units_back(std::size_t units);
  std::optional<Address> take_addresses(std::size_t bytes);
  Mappings::const_iterator mapping_at(Address address) const;
  Mappings::const_iterator end_of_tiling(const char* call, Address address, std::size_t bytes) const;
  bool is_reserved(Address address, std::size_t bytes) const;
  bool is_unmapped(Address address, std::size_t bytes) const;
  const Physical& live_handle(const char* call, MemoryHandle handle) const;
  void drop_if_unused(MemoryHandle handle);
  std::uint64_t take_physical(std::size_t bytes);

  const std::size_t capacity_units_;
  const MemoryAccount account_;
  std::size_t driver_units_ = 0;
  std::size_t used_units_ = 0;
  std::size_t peak_units_ = 0;
  std::size_t peak_with_driver_units_ = 0;  // of used_units and driver_units together
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

CACHALOT_END
