#include "simulator/device/simulated_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "cachalot/simulated_device.h"

namespace cachalot {
namespace {

constexpr Address kStart = Address{1} << 40;

TEST(AllocationTable, FindsByBeginningAndByAnyByte) {
  AllocationTable table;
  table.insert(kStart, {.bytes = 5, .physical = 77});
  ASSERT_NE(table.find(kStart), nullptr);
  EXPECT_EQ(table.find(kStart)->physical, 77);
  EXPECT_EQ(table.find(kStart + 1), nullptr);
  EXPECT_EQ(table.find(kStart + kPhysicalUnit), nullptr);
  EXPECT_EQ(table.holding(kStart + 4).begin, kStart);
  EXPECT_EQ(table.holding(kStart + 5).allocation, nullptr);
  EXPECT_EQ(table.holding(kStart - 1).allocation, nullptr);
  table.erase(kStart);
  EXPECT_EQ(table.find(kStart), nullptr);
  EXPECT_EQ(table.holding(kStart).allocation, nullptr);
}

TEST(AllocationTable, AnAllocationOfManyGigabytesIsHeldToItsLastByte) {
  AllocationTable table;
  const Address begin = kStart + 3 * kPhysicalUnit;
  table.insert(begin, {.bytes = 80 * kGiB});
  table.insert(begin + 80 * kGiB, {.bytes = 1});
  EXPECT_EQ(table.holding(begin + 80 * kGiB - 1).begin, begin);
  EXPECT_EQ(table.holding(begin + 33 * kGiB).begin, begin);
  EXPECT_EQ(table.holding(begin + 80 * kGiB).begin, begin + 80 * kGiB);
  table.erase(begin);
  EXPECT_EQ(table.holding(begin + 33 * kGiB).allocation, nullptr);
  EXPECT_EQ(table.holding(begin + 80 * kGiB).begin, begin + 80 * kGiB);
}

TEST(AllocationTable, AddressesBeyond47BitsAreNotThere) {
  const AllocationTable table;
  EXPECT_EQ(table.find(~Address{0} - kPhysicalUnit + 1), nullptr);
  EXPECT_EQ(table.holding(~Address{0}).allocation, nullptr);
}

TEST(AllocationTable, AgreesWithAMapOnARandomProgram) {
  constexpr int kOperations = 20'000;
  constexpr std::size_t kUnits = 4096;  // eight leaves
  std::mt19937 random(1);
  AllocationTable table;
  std::map<Address, std::size_t> reference;
  const auto holder = [&](Address address) {
    auto after = reference.upper_bound(address);
    if (after == reference.begin()) return reference.end();
    --after;
    return address - after->first < after->second ? after : reference.end();
  };
  for (int i = 0; i < kOperations; ++i) {
    const Address address = kStart + random() % kUnits * kPhysicalUnit;
    const std::size_t bytes = (1 + random() % 700) * kPhysicalUnit - random() % kPhysicalUnit;
    const auto next = reference.lower_bound(address);
    const bool is_free = holder(address) == reference.end() &&
                         (next == reference.end() || next->first >= address + round_up(bytes, kPhysicalUnit));
    if (is_free) {
      table.insert(address, {.bytes = bytes});
      reference[address] = bytes;
    } else if (const auto at = holder(address); at != reference.end()) {
      table.erase(at->first);
      reference.erase(at);
    }
    const Address asked = kStart + random() % (kUnits * kPhysicalUnit);
    const auto expected = holder(asked);
    const auto found = table.holding(asked);
    ASSERT_EQ(found.allocation != nullptr, expected != reference.end()) << "operation " << i;
    if (found.allocation) {
      ASSERT_EQ(found.begin, expected->first) << "operation " << i;
    }
  }
  std::map<Address, std::size_t> listed;
  table.for_each([&](Address begin, const Allocation& allocation) { listed[begin] = allocation.bytes; });
  EXPECT_EQ(listed, reference);
}

TEST(AddressSpace, WhatIsRecycledIsHandedOutAgainButNotWhatLives) {
  AddressSpace space;
  std::vector<Address> taken;
  for (int i = 0; i < 10; ++i) taken.push_back(*space.allocate(kPhysicalUnit));
  EXPECT_GT(*space.allocate(kPhysicalUnit), taken[9]);
  space.recycle({{taken[4], kPhysicalUnit}});
  EXPECT_EQ(space.allocate(kPhysicalUnit), taken[5]);  // the lowest chunk's worth that is free lies behind what lives
}

TEST(AddressSpace, TheAddressesOfADeviceDoNotRunOut) {
  limit_addresses({kStart, 8 * kPhysicalUnit});
  {
    SimulatedDevice device;
    const Address kept = *device.malloc(kPhysicalUnit);
    for (int i = 0; i < 100; ++i) {
      const Address address = *device.malloc(2 * kPhysicalUnit);
      EXPECT_TRUE(address + 2 * kPhysicalUnit <= kept || address >= kept + kPhysicalUnit);
      device.free(address);
    }
    EXPECT_THROW(device.malloc(16 * kPhysicalUnit), CudaError);
  }
  limit_addresses({kStart, (Address{1} << 47) - kStart});
}

TEST(SimulatedDevice, TellsWhatIsAtAnAddress) {
  SimulatedDevice device;
  const Address allocation = *device.malloc(100);
  const auto found = device.memory_at(allocation + 99);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->range.address, allocation);
  EXPECT_EQ(found->range.bytes, 100);
  EXPECT_EQ(found->handle, 0);
  EXPECT_FALSE(device.memory_at(allocation + 100).has_value());

  const Address range = *device.reserve(2 * kPhysicalUnit);
  EXPECT_FALSE(device.memory_at(range).has_value());
  const MemoryHandle handle = *device.create(kPhysicalUnit);
  for (const Address place : {range, range + kPhysicalUnit}) device.map(place, kPhysicalUnit, handle);
  EXPECT_FALSE(device.memory_at(range)->accessible);
  device.set_access(range, 2 * kPhysicalUnit, {});
  EXPECT_TRUE(device.memory_at(range)->accessible);
  EXPECT_EQ(device.memory_at(range + 7)->physical, device.memory_at(range + kPhysicalUnit + 7)->physical);
  EXPECT_EQ(device.memory_at(range)->physical, device.handle_info(handle).physical);
}

TEST(SimulatedDevice, ARetainedHandleIsReleasedTwice) {
  SimulatedDevice device;
  const MemoryHandle handle = *device.create(kPhysicalUnit);
  device.retain(handle);
  device.release(handle);
  EXPECT_EQ(device.used_bytes(), kPhysicalUnit);
  device.release(handle);
  EXPECT_EQ(device.used_bytes(), 0);
}

TEST(SimulatedDevice, AdoptedMemoryIsNotOnItsAccount) {
  SimulatedDevice device;
  const MemoryHandle handle = device.adopt(kPhysicalUnit);
  EXPECT_EQ(device.used_bytes(), 0);
  const Address range = *device.reserve(kPhysicalUnit);
  device.map(range, kPhysicalUnit, handle);
  device.unmap(range, kPhysicalUnit);
  device.release(handle);
  EXPECT_EQ(device.used_bytes(), 0);
}

TEST(SimulatedDevice, TellsWhichMemoryIsGone) {
  std::vector<std::uint64_t> gone;
  SimulatedDevice::Config config;
  config.memory_freed = [&](std::uint64_t first, std::size_t) { gone.push_back(first); };
  SimulatedDevice device(config);
  const Address address = *device.malloc(1);
  const std::uint64_t physical = device.memory_at(address)->physical;
  EXPECT_TRUE(gone.empty());
  device.free(address);
  EXPECT_EQ(gone, std::vector<std::uint64_t>{physical});
}

TEST(SimulatedDevice, KnowsTheTimesOfStreamsAndEvents) {
  SimulatedDevice first;
  SimulatedDevice second;
  const Stream stream = first.new_stream();
  first.launch(stream, 5000);
  EXPECT_FALSE(first.stream_query(stream));
  const Event event = first.event_create();
  first.event_record(event, stream);
  EXPECT_EQ(first.event_done_ns(event), first.stream_ready_ns(stream));
  const Stream other = second.new_stream();
  second.stream_wait_until(other, first.event_done_ns(event));
  EXPECT_FALSE(second.stream_query(other));
  second.advance(first.event_done_ns(event));
  EXPECT_TRUE(second.stream_query(other));
  first.event_destroy(event);
}

TEST(SimulatedDevice, MayLeaveTheRulesOfCaptureToItsOwner) {
  SimulatedDevice::Config config;
  config.captures_refuse = false;
  SimulatedDevice device(config);
  const Stream stream = device.new_stream();
  device.begin_capture(stream);
  device.synchronize();
  EXPECT_FALSE(device.is_capture_spoilt(stream));
  EXPECT_THROW(device.refuse_while_capturing("a call"), CudaError);
  EXPECT_TRUE(device.is_capture_spoilt(stream));
  EXPECT_THROW(device.end_capture(stream), CudaError);
}

}  // namespace
}  // namespace cachalot
