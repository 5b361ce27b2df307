// The simulated device's own rules: addresses, capacity, the driver's virtual-memory rules, time, capture, faults, log.
#include "cachalot/simulated_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "simulator/device/ipc_registry.h"
#include "tests/device/units.h"

namespace cachalot {
namespace {

// A device on which calls take no time.
SimulatedDevice::Config timeless(std::size_t memory_bytes = kGiB) {
  return {.memory_bytes = memory_bytes, .latency = LatencyModel::none()};
}

int code_of(const std::function<void()>& call) {
  try {
    call();
    return 0;
  } catch (const CudaError& error) {
    return error.code();
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const CudaError& error) {
    return error.what();
  }
}

// ---- Addresses and capacity ----

TEST(SimulatedMemory, AddressesAscendAndAreNeverUsedTwice) {
  SimulatedDevice device(timeless());
  Address last = 0;
  for (int i = 0; i < 2000; ++i) {
    const Address address = i % 3 == 0 ? device.reserve(kPage).value() : device.malloc(kMiB).value();
    EXPECT_GT(address, last);
    EXPECT_EQ(address % kPage, 0u);
    if (i % 3 == 0)
      device.unreserve(address, kPage);
    else
      device.free(address);
    last = address;
  }
}

TEST(SimulatedMemory, DevicesHaveAddressesOfTheirOwn) {
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  std::vector<AddressRange> ranges;
  for (int i = 0; i < 50; ++i) {
    devices.push_back(std::make_unique<SimulatedDevice>(timeless(8 * kGiB)));
    for (const std::size_t bytes : {kPage, 3 * kGiB, kPage})
      ranges.push_back({devices.back()->malloc(bytes).value(), bytes});
  }
  std::sort(ranges.begin(), ranges.end(), [](auto& a, auto& b) { return a.address < b.address; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_GE(ranges[i].address, ranges[i - 1].address + ranges[i - 1].bytes);
  }
  EXPECT_LT(ranges.back().address, Address{1} << 47);
}

TEST(SimulatedMemory, AHundredThousandDevicesDoNotUseUpTheAddresses) {
  for (int i = 0; i < 100'000; ++i) {
    SimulatedDevice device(timeless(16 * kGiB));
    ASSERT_TRUE(device.malloc(8 * kGiB));
  }
}

TEST(SimulatedMemory, CapacityIsUsedInUnitsOfTwoMiB) {
  SimulatedDevice device(timeless(10 * kMiB + 1));  // five units; the last byte is not used
  std::vector<Address> addresses;
  for (int i = 0; i < 5; ++i) addresses.push_back(device.malloc(1).value());
  EXPECT_EQ(device.used_bytes(), 10 * kMiB);
  EXPECT_EQ(device.malloc(1), std::nullopt);
  EXPECT_EQ(device.create(kPage), std::nullopt);
  device.free(addresses[2]);
  EXPECT_EQ(device.malloc(kPage + 1), std::nullopt);
  EXPECT_TRUE(device.create(kPage));
  EXPECT_EQ(device.memory_info().free_bytes, 0u);
  EXPECT_EQ(device.memory_info().total_bytes, 10 * kMiB + 1);
}

TEST(SimulatedMemory, AnAbsurdSizeIsOutOfMemoryAndNotAnOverflow) {
  SimulatedDevice device;
  EXPECT_EQ(device.malloc(SIZE_MAX), std::nullopt);
  EXPECT_EQ(device.malloc(SIZE_MAX - kMiB), std::nullopt);
  EXPECT_EQ(device.create(round_down(SIZE_MAX, kPage)), std::nullopt);
  EXPECT_EQ(device.reserve(round_down(SIZE_MAX, kPage)), std::nullopt);
  EXPECT_EQ(device.used_bytes(), 0u);
  EXPECT_TRUE(device.malloc(kPage));
}

TEST(SimulatedMemory, ThePeakOfUsedMemoryStays) {
  SimulatedDevice device(timeless());
  const Address address = device.malloc(3 * kMiB).value();
  EXPECT_EQ(device.used_bytes(), 4 * kMiB);
  device.free(address);
  EXPECT_EQ(device.used_bytes(), 0u);
  EXPECT_EQ(device.peak_used_bytes(), 4 * kMiB);
}

TEST(SimulatedMemory, ABadFreeNamesCallCodeAndReason) {
  SimulatedDevice device(timeless());
  EXPECT_EQ(
      error_of([&] { device.free(12345); }),
      "CUDA error in cuMemFree: CUDA_ERROR_INVALID_VALUE: not an address that cuMemAlloc returned, or freed already "
      "(code 1)");
}

// ---- Virtual memory ----

class SimulatedVirtualMemory : public testing::Test {
 protected:
  SimulatedDevice device_{timeless(16 * kMiB)};
  const Address range_ = device_.reserve(64 * kMiB).value();
};

TEST_F(SimulatedVirtualMemory, SizesAndAddressesAreMultiplesOfAPage) {
  EXPECT_EQ(code_of([&] { device_.reserve(kPage + 512); }), 1);
  EXPECT_EQ(code_of([&] { device_.reserve(0); }), 1);
  EXPECT_EQ(code_of([&] { device_.create(kMiB); }), 1);
  EXPECT_EQ(code_of([&] { device_.create(0); }), 1);
  const MemoryHandle handle = device_.create(kPage).value();
  EXPECT_EQ(code_of([&] { device_.map(range_ + kMiB, kPage, handle); }), 1);
  EXPECT_EQ(code_of([&] { device_.set_access(range_, 0, {}); }), 1);
  EXPECT_EQ(code_of([&] { device_.unmap(range_, kMiB); }), 1);
}

TEST_F(SimulatedVirtualMemory, ReservingUsesNoMemory) {
  EXPECT_TRUE(device_.reserve(std::size_t{1} << 40));
  EXPECT_EQ(device_.used_bytes(), 0u);
}

TEST_F(SimulatedVirtualMemory, AHandleIsMappedWhole) {
  const MemoryHandle handle = device_.create(2 * kPage).value();
  EXPECT_EQ(code_of([&] { device_.map(range_, kPage, handle); }), 1);
  EXPECT_EQ(code_of([&] { device_.map(range_, 3 * kPage, handle); }), 1);
  device_.map(range_, 2 * kPage, handle);
  EXPECT_EQ(device_.live_mappings(), 1u);
}

TEST_F(SimulatedVirtualMemory, OnlyReservedAndUnmappedRangesAreMapped) {
  const MemoryHandle handle = device_.create(2 * kPage).value();
  EXPECT_EQ(code_of([&] { device_.map(range_ + 63 * kMiB + kMiB - kPage, 2 * kPage, handle); }), 1);  // half outside
  EXPECT_EQ(code_of([&] { device_.map(device_.malloc(kPage).value(), 2 * kPage, handle); }), 1);
  device_.map(range_ + 2 * kPage, 2 * kPage, handle);
  EXPECT_EQ(code_of([&] { device_.map(range_ + kPage, 2 * kPage, handle); }), 1);
  EXPECT_EQ(code_of([&] { device_.map(range_ + 3 * kPage, 2 * kPage, handle); }), 1);
  device_.map(range_, 2 * kPage, handle);
  device_.map(range_ + 4 * kPage, 2 * kPage, handle);
  EXPECT_EQ(device_.live_mappings(), 3u);
  EXPECT_EQ(device_.used_bytes(), kPage * 3);  // one handle and the malloc
}

TEST_F(SimulatedVirtualMemory, AReleasedHandleIsNoLongerAHandle) {
  const MemoryHandle handle = device_.create(kPage).value();
  device_.map(range_, kPage, handle);
  device_.release(handle);
  EXPECT_EQ(code_of([&] { device_.release(handle); }), 1);
  EXPECT_EQ(code_of([&] { device_.map(range_ + kPage, kPage, handle); }), 1);
  EXPECT_EQ(device_.used_bytes(), kPage);
  device_.unmap(range_, kPage);
  EXPECT_EQ(device_.used_bytes(), 0u);
  EXPECT_EQ(code_of([&] { device_.release(handle); }), 1);
}

TEST_F(SimulatedVirtualMemory, PhysicalMemoryIsFreedAfterTheLastOfSeveralMappings) {
  const MemoryHandle handle = device_.create(kPage).value();
  device_.map(range_, kPage, handle);
  device_.map(range_ + kPage, kPage, handle);
  device_.release(handle);
  device_.unmap(range_, kPage);
  EXPECT_EQ(device_.used_bytes(), kPage);
  device_.unmap(range_ + kPage, kPage);
  EXPECT_EQ(device_.used_bytes(), 0u);
  EXPECT_EQ(device_.live_mappings(), 0u);
}

TEST_F(SimulatedVirtualMemory, UnmapTakesWholeMappingsOnly) {
  const MemoryHandle handle = device_.create(2 * kPage).value();
  device_.map(range_, 2 * kPage, handle);
  EXPECT_EQ(code_of([&] { device_.unmap(range_, kPage); }), 1);
  EXPECT_EQ(code_of([&] { device_.unmap(range_ + kPage, kPage); }), 1);
  EXPECT_EQ(code_of([&] { device_.unmap(range_, 3 * kPage); }), 1);
  device_.map(range_ + 2 * kPage, 2 * kPage, handle);
  device_.unmap(range_, 4 * kPage);
  EXPECT_EQ(device_.live_mappings(), 0u);
}

TEST_F(SimulatedVirtualMemory, MallocedMemoryIsNotUnmapped) {
  const Address address = device_.malloc(kPage).value();
  EXPECT_EQ(code_of([&] { device_.unmap(address, kPage); }), 1);
  EXPECT_EQ(code_of([&] { device_.set_access(address, kPage, {}); }), 1);
}

TEST_F(SimulatedVirtualMemory, UnreserveTakesAWholeRangeWithNothingMapped) {
  EXPECT_EQ(code_of([&] { device_.unreserve(range_, kPage); }), 1);
  EXPECT_EQ(code_of([&] { device_.unreserve(range_ + kPage, kPage); }), 1);
  const MemoryHandle handle = device_.create(kPage).value();
  device_.map(range_ + 62 * kMiB, kPage, handle);
  EXPECT_EQ(code_of([&] { device_.unreserve(range_, 64 * kMiB); }), 1);
  device_.unmap(range_ + 62 * kMiB, kPage);
  device_.unreserve(range_, 64 * kMiB);
  EXPECT_EQ(code_of([&] { device_.unreserve(range_, 64 * kMiB); }), 1);
}

TEST_F(SimulatedVirtualMemory, WorkReachesMemoryOnlyAfterSetAccess) {
  const Stream stream = device_.new_stream();
  const MemoryHandle first = device_.create(kPage).value();
  const MemoryHandle second = device_.create(kPage).value();
  EXPECT_EQ(code_of([&] { device_.launch(stream, 1, {{range_, 1}}); }), 700);
  device_.map(range_, kPage, first);
  device_.map(range_ + kPage, kPage, second);
  device_.set_access(range_, kPage, {});
  device_.launch(stream, 1, {{range_, kPage}});
  EXPECT_EQ(code_of([&] { device_.launch(stream, 1, {{range_ + kPage - 1, 2}}); }), 700);
  device_.set_access(range_, 2 * kPage, {});
  device_.launch(stream, 1, {{range_, 2 * kPage}});
  EXPECT_EQ(code_of([&] { device_.launch(stream, 1, {{range_, 2 * kPage + 1}}); }), 700);
  device_.unmap(range_, kPage);
  EXPECT_EQ(code_of([&] { device_.launch(stream, 1, {{range_, 1}}); }), 700);
  device_.map(range_, kPage, first);  // access is a mapping's, not an address's
  EXPECT_EQ(code_of([&] { device_.launch(stream, 1, {{range_, 1}}); }), 700);
}

TEST_F(SimulatedVirtualMemory, AFailedSetAccessChangesNothing) {
  const MemoryHandle handle = device_.create(kPage).value();
  device_.map(range_, kPage, handle);
  EXPECT_EQ(code_of([&] { device_.set_access(range_, 2 * kPage, {}); }), 1);
  EXPECT_EQ(code_of([&] { device_.launch(device_.new_stream(), 1, {{range_, 1}}); }), 700);
}

TEST(SimulatedMemory, AnAccountLimitsAndCountsEveryWayToTakeMemory) {
  std::size_t taken = kGiB - 3 * kPage;  // by other processes
  SimulatedDevice::Config config = timeless();
  config.account = {[&](std::size_t bytes) {
                      if (taken + bytes > kGiB) return false;
                      taken += bytes;
                      return true;
                    },
                    [&](std::size_t bytes) { taken -= bytes; }, [&] { return kGiB - taken; }};
  SimulatedDevice device(config);
  EXPECT_EQ(device.memory_info().free_bytes, 3 * kPage);
  const Address address = device.malloc(kPage + 1).value();
  const MemoryHandle handle = device.create(kPage).value();
  EXPECT_EQ(device.free_bytes(), 0U);
  EXPECT_EQ(device.malloc(1), std::nullopt);
  EXPECT_EQ(device.create(kPage), std::nullopt);
  device.release(handle);
  EXPECT_EQ(device.memory_info().free_bytes, kPage);
  device.free(address);
  EXPECT_TRUE(device.malloc(3 * kPage));
  device.reset();
  EXPECT_EQ(taken, kGiB - 3 * kPage);
}

TEST(SimulatedDeviceWithoutVirtualMemory, RefusesItsCalls) {
  SimulatedDevice::Config config = timeless();
  config.virtual_memory = false;
  SimulatedDevice device(config);
  EXPECT_FALSE(device.properties().virtual_memory);
  EXPECT_EQ(device.properties().page_bytes, 0u);
  EXPECT_EQ(code_of([&] { device.reserve(kPage); }), 801);
  EXPECT_EQ(code_of([&] { device.create(kPage); }), 801);
  EXPECT_EQ(code_of([&] { device.map(0, kPage, 1); }), 801);
  EXPECT_TRUE(device.malloc(kPage));
}

TEST(SimulatedMemory, WorkOnMallocedMemoryMustStayWithinIt) {
  SimulatedDevice device(timeless());
  const Stream stream = device.new_stream();
  const Address address = device.malloc(kMiB).value();
  device.launch(stream, 1, {{address, kMiB}, {address + kMiB - 1, 1}});
  EXPECT_EQ(code_of([&] { device.launch(stream, 1, {{address, kMiB + 1}}); }), 700);
  EXPECT_EQ(code_of([&] { device.launch(stream, 1, {{address - 1, 2}}); }), 700);
  device.free(address);
  EXPECT_EQ(code_of([&] { device.launch(stream, 1, {{address, 1}}); }), 700);
}

// ---- Time ----

TEST(SimulatedTime, EachCallTakesItsLatency) {
  SimulatedDevice device;
  device.malloc(2 * kMiB);
  EXPECT_EQ(device.clock_ns(), 100'100);  // 100 us, and 0.05 us per MiB
  const Event event = device.event_create();
  const std::int64_t before = device.clock_ns();
  device.event_record(event, device.new_stream());
  EXPECT_EQ(device.clock_ns() - before, 800);
  device.event_query(event);
  EXPECT_EQ(device.clock_ns() - before, 1200);
  EXPECT_EQ(device.clock_us(), device.clock_ns() / 1000);
  EXPECT_DOUBLE_EQ(device.driver_us(), static_cast<double>(device.clock_ns()) / 1000);
}

TEST(SimulatedTime, ThePublishedLatenciesAreTheDesigns) {
  const LatencyModel model = LatencyModel::published();
  EXPECT_DOUBLE_EQ(model[DeviceCall::malloc], 100);
  EXPECT_DOUBLE_EQ(model.per_mib(DeviceCall::malloc), 0.05);
  EXPECT_DOUBLE_EQ(model[DeviceCall::free], 150);
  EXPECT_DOUBLE_EQ(model[DeviceCall::create], 29);
  EXPECT_DOUBLE_EQ(model[DeviceCall::map], 2);
  EXPECT_DOUBLE_EQ(model[DeviceCall::set_access], 38);
  EXPECT_DOUBLE_EQ(model[DeviceCall::unmap], 34);
  EXPECT_DOUBLE_EQ(model[DeviceCall::release], 23);
  EXPECT_DOUBLE_EQ(model[DeviceCall::reserve], 2);
  EXPECT_DOUBLE_EQ(model[DeviceCall::event_record], 0.8);
  EXPECT_DOUBLE_EQ(model[DeviceCall::event_query], 0.4);
  EXPECT_DOUBLE_EQ(model[DeviceCall::stream_wait], 0.8);
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    EXPECT_GT(model.call_us[i], 0) << to_string(static_cast<DeviceCall>(i));
  }
}

TEST(SimulatedTime, HostMemoryAndCopiesCostByTheirSize) {
  SimulatedDevice device;
  const LatencyModel model = LatencyModel::published();
  const Address memory = device.malloc(4 * kMiB).value();
  const auto cost_us = [&](const std::function<void()>& call) {
    const double before = device.driver_us();
    call();
    return device.driver_us() - before;
  };
  void* host = nullptr;
  const auto whole = [&](DeviceCall call) { return model[call] + 4 * model.per_mib(call); };
  EXPECT_NEAR(cost_us([&] { host = device.host_malloc(4 * kMiB); }), whole(DeviceCall::host_malloc), 1e-3);
  EXPECT_NEAR(cost_us([&] { device.copy_to_host(host, memory, 4 * kMiB); }), whole(DeviceCall::copy_to_host), 1e-3);
  EXPECT_NEAR(cost_us([&] { device.copy_from_host(memory, host, 4 * kMiB); }), whole(DeviceCall::copy_from_host), 1e-3);
  EXPECT_NEAR(cost_us([&] { device.host_free(host); }), whole(DeviceCall::host_free), 1e-3);
}

TEST(SimulatedContent, IsTheSameThroughEveryMappingAndGoneWithItsMemory) {
  SimulatedDevice device(timeless());
  const Address range = device.reserve(2 * kPage).value();
  const MemoryHandle handle = device.create(kPage).value();
  device.map(range, kPage, handle);
  device.map(range + kPage, kPage, handle);
  device.set_access(range, 2 * kPage, {});
  const auto text_at = [&](Address address) {
    std::string text = "?????";
    device.copy_to_host(text.data(), address, text.size());
    return text;
  };
  EXPECT_EQ(text_at(range), std::string(5, '\0'));
  device.copy_from_host(range + 4094, "bytes", 5);  // across the end of a chunk
  EXPECT_EQ(text_at(range + kPage + 4094), "bytes");
  device.copy_from_host(range + 4096, std::string(3, '\0').data(), 3);
  EXPECT_EQ(text_at(range + 4094), std::string("by\0\0\0", 5));
  device.unmap(range, kPage);
  EXPECT_EQ(text_at(range + kPage + 4094), std::string("by\0\0\0", 5));
  device.unmap(range + kPage, kPage);
  device.release(handle);
  const MemoryHandle next = device.create(kPage).value();
  device.map(range, kPage, next);
  EXPECT_EQ(code_of([&] { text_at(range); }), 1);  // not accessible yet
  device.set_access(range, kPage, {});
  EXPECT_EQ(text_at(range + 4094), std::string(5, '\0'));
}

TEST(SimulatedTime, SetAccessCostsOneCallAndNotOneAPageUnlessItIsToldTo) {
  for (const double us_per_mapping : {0.0, 96.0}) {
    SimulatedDevice::Config config;
    config.latency.set_access_us_per_mapping = us_per_mapping;
    SimulatedDevice device(config);
    const Address range = device.reserve(64 * kMiB).value();
    for (std::size_t i = 0; i < 32; ++i) device.map(range + i * kPage, kPage, device.create(kPage).value());
    const double before_us = device.driver_us();
    const std::int64_t before_ns = device.clock_ns();
    device.set_access(range, 64 * kMiB, {});
    EXPECT_DOUBLE_EQ(device.driver_us() - before_us, 38 + 32 * us_per_mapping);
    EXPECT_EQ(device.clock_ns() - before_ns, std::llround(1000 * (38 + 32 * us_per_mapping)));
  }
}

TEST(SimulatedTime, WaitingAdvancesTheClockButIsNoDriverTime) {
  SimulatedDevice device;
  const Stream stream = device.new_stream();
  const Event event = device.event_create();
  const double driver_us = device.driver_us();
  device.launch(stream, 1'000'000);
  device.event_record(event, stream);
  const std::int64_t done_ns = device.clock_ns() - 800 + 1'000'000;
  device.event_synchronize(event);
  EXPECT_EQ(device.clock_ns(), done_ns);
  EXPECT_LT(device.driver_us() - driver_us, 10);
}

TEST(SimulatedTime, WorkOfAStreamQueuesUpAndStreamsOverlap) {
  SimulatedDevice device(timeless());
  const Stream first = device.new_stream();
  const Stream second = device.new_stream();
  device.launch(first, 100 * kMicrosecond);
  device.launch(first, 100 * kMicrosecond);
  device.launch(second, 50 * kMicrosecond);
  EXPECT_EQ(device.clock_ns(), 0);
  device.stream_synchronize(second);
  EXPECT_EQ(device.clock_ns(), 50 * kMicrosecond);
  device.synchronize();
  EXPECT_EQ(device.clock_ns(), 200 * kMicrosecond);
  device.advance(kMicrosecond);
  device.launch(first, 10);  // an idle stream starts now
  device.stream_synchronize(first);
  EXPECT_EQ(device.clock_ns(), 201 * kMicrosecond + 10);
}

TEST(SimulatedTime, FreeWaitsForEveryStream) {
  SimulatedDevice device(timeless());
  const Address address = device.malloc(kPage).value();
  device.launch(device.new_stream(), 70 * kMicrosecond);
  device.launch(device.new_stream(), 30 * kMicrosecond);
  device.free(address);
  EXPECT_EQ(device.clock_ns(), 70 * kMicrosecond);
}

TEST(SimulatedTime, AnEventIsDoneExactlyWhenItsWorkEnds) {
  SimulatedDevice device(timeless());
  const Stream stream = device.new_stream();
  const Event event = device.event_create();
  device.launch(stream, 100);
  device.event_record(event, stream);
  device.launch(stream, 1000);  // later work does not delay it
  device.advance(99);
  EXPECT_FALSE(device.event_query(event));
  device.advance(1);
  EXPECT_TRUE(device.event_query(event));
}

TEST(SimulatedTime, AWaitTakesTheEventAsItIsNow) {
  SimulatedDevice device(timeless());
  const Stream first = device.new_stream();
  const Stream second = device.new_stream();
  const Event event = device.event_create();
  device.stream_wait(second, event);  // never recorded: nothing to wait for
  device.launch(first, 100);
  device.event_record(event, first);
  device.stream_wait(second, event);
  device.launch(first, 1000);
  device.event_record(event, first);  // does not concern the wait queued already
  device.stream_synchronize(second);
  EXPECT_EQ(device.clock_ns(), 100);
}

TEST(SimulatedTime, NegativeTimeIsRefused) {
  SimulatedDevice device(timeless());
  EXPECT_THROW(device.advance(-1), InvalidArgument);
  EXPECT_THROW(device.launch(device.new_stream(), -1), InvalidArgument);
  EXPECT_EQ(device.clock_ns(), 0);
}

TEST(SimulatedTime, TheCompletionHintCountsCompletedEventsAndIsNoCall) {
  SimulatedDevice device(timeless());
  const Stream stream = device.new_stream();
  const Event first = device.event_create();
  const Event second = device.event_create();
  EXPECT_EQ(device.completion_hint(stream), 0u);
  device.launch(stream, 100);
  device.event_record(first, stream);
  device.event_record(second, stream);
  device.launch(stream, 100);
  device.event_record(first, stream);
  EXPECT_EQ(device.completion_hint(stream), 0u);
  device.advance(100);
  EXPECT_EQ(device.completion_hint(stream), 2u);
  device.advance(100);
  EXPECT_EQ(device.completion_hint(stream), 3u);
  device.event_record(first, stream);  // the stream is idle: done at once
  EXPECT_EQ(device.completion_hint(stream), 4u);
  EXPECT_EQ(device.completion_hint(device.new_stream()), 0u);
  EXPECT_EQ(device.count(DeviceCall::event_query), 0u);
}

TEST(SimulatedTime, ADeviceMayBeWithoutCompletionHints) {
  SimulatedDevice::Config config = timeless();
  config.completion_hints = false;
  SimulatedDevice device(config);
  EXPECT_EQ(device.completion_hint(device.new_stream()), std::nullopt);
}

// ---- Events ----

TEST(SimulatedEvents, ADestroyedEventIsRecognizedEvenWhenItsPlaceIsUsedAgain) {
  SimulatedDevice device(timeless());
  const Event old_event = device.event_create();
  device.event_destroy(old_event);
  const Event new_event = device.event_create();
  EXPECT_NE(old_event, new_event);
  EXPECT_EQ(code_of([&] { device.event_query(old_event); }), 400);
  EXPECT_EQ(code_of([&] { device.event_record(old_event, nullptr); }), 400);
  EXPECT_EQ(code_of([&] { device.event_destroy(old_event); }), 400);
  EXPECT_EQ(code_of([&] { device.event_query(nullptr); }), 400);
  EXPECT_TRUE(device.event_query(new_event));
}

TEST(SimulatedEvents, AnEventOfAnotherDeviceIsRefused) {
  SimulatedDevice device(timeless());
  SimulatedDevice other(timeless());
  const Event foreign = other.event_create();
  device.event_create();
  EXPECT_EQ(code_of([&] { device.event_query(foreign); }), 400);
}

TEST(SimulatedEvents, AReusedPlaceForgetsTheOldEventsWork) {
  SimulatedDevice device(timeless());
  const Stream stream = device.new_stream();
  const Event event = device.event_create();
  device.launch(stream, 100);
  device.event_record(event, stream);
  device.event_destroy(event);
  EXPECT_TRUE(device.event_query(device.event_create()));
}

TEST(SimulatedEvents, StreamsAreNamedByAnyPointerAndFreshOnesDiffer) {
  SimulatedDevice device(timeless());
  const Stream named = reinterpret_cast<Stream>(std::uintptr_t{7});
  device.launch(named, 100);
  device.launch(nullptr, 50);
  device.stream_synchronize(nullptr);
  EXPECT_EQ(device.clock_ns(), 50);
  device.stream_synchronize(named);
  EXPECT_EQ(device.clock_ns(), 100);
  EXPECT_NE(device.new_stream(), device.new_stream());
}

TEST(SimulatedEvents, AStreamOfAnotherDeviceIsRefused) {
  SimulatedDevice device(timeless());
  SimulatedDevice other(timeless());
  const Stream foreign = other.new_stream();
  const Event event = device.event_create();
  EXPECT_EQ(code_of([&] { device.launch(foreign, 1); }), 400);
  EXPECT_EQ(code_of([&] { device.event_record(event, foreign); }), 400);
  EXPECT_EQ(code_of([&] { device.stream_wait(foreign, event); }), 400);
  EXPECT_EQ(code_of([&] { device.stream_id(foreign); }), 400);
  EXPECT_FALSE(device.has_stream(foreign));
  EXPECT_TRUE(other.has_stream(foreign));
  other.launch(foreign, 1);
}

TEST(SimulatedMemoryOfTheDriver, IsNeitherFreeNorUsedUntilAReset) {
  SimulatedDevice device({.memory_bytes = 64 * kMiB});
  EXPECT_TRUE(device.take_for_driver(11 * kMiB));
  EXPECT_EQ(device.driver_bytes(), 12 * kMiB) << "in units";
  EXPECT_EQ(device.used_bytes(), 0);
  EXPECT_EQ(device.memory_info().free_bytes, 52 * kMiB);
  EXPECT_EQ(device.memory_info().total_bytes, 64 * kMiB);
  EXPECT_FALSE(device.malloc(54 * kMiB));
  EXPECT_FALSE(device.create(54 * kMiB));
  EXPECT_FALSE(device.take_for_driver(54 * kMiB));
  EXPECT_TRUE(device.malloc(50 * kMiB));
  EXPECT_TRUE(device.take_for_driver(2 * kMiB)) << "the last unit";
  EXPECT_EQ(device.peak_with_driver_bytes(), 64 * kMiB);
  device.give_back_for_driver(3 * kMiB);
  EXPECT_EQ(device.driver_bytes(), 10 * kMiB);
  EXPECT_EQ(device.memory_info().free_bytes, 4 * kMiB);
  EXPECT_EQ(device.peak_with_driver_bytes(), 64 * kMiB);
  device.reset();
  EXPECT_EQ(device.driver_bytes(), 0);
  EXPECT_TRUE(device.malloc(64 * kMiB));
}

TEST(SimulatedEvents, AResetLeavesNoStream) {
  SimulatedDevice device(timeless());
  const Stream stream = device.new_stream();
  device.reset();
  EXPECT_EQ(code_of([&] { device.launch(stream, 1); }), 400);
}

// ---- Capture ----

class SimulatedCapture : public testing::Test {
 protected:
  SimulatedDevice device_{timeless()};
  const Stream stream_ = device_.new_stream();
  const Stream other_ = device_.new_stream();
  const Event event_ = device_.event_create();
};

TEST_F(SimulatedCapture, CapturedWorkIsNotQueued) {
  device_.begin_capture(stream_);
  device_.launch(stream_, 1000);
  device_.end_capture(stream_);
  device_.synchronize();
  EXPECT_EQ(device_.clock_ns(), 0);
}

TEST_F(SimulatedCapture, CallsThatNeedNoWorkStayLegal) {
  device_.begin_capture(stream_);
  const Address address = device_.malloc(kPage).value();
  const Address range = device_.reserve(kPage).value();
  const MemoryHandle handle = device_.create(kPage).value();
  device_.map(range, kPage, handle);
  device_.set_access(range, kPage, {});
  device_.memory_info();
  device_.launch(other_, 100);
  device_.event_record(event_, other_);
  device_.event_query(event_);
  device_.event_destroy(device_.event_create());
  device_.end_capture(stream_);
  device_.free(address);
}

TEST_F(SimulatedCapture, CallsThatWaitAreRefusedForEveryoneAndSpoilTheCapture) {
  const Address address = device_.malloc(kPage).value();
  device_.event_record(event_, other_);
  const std::vector<std::function<void()>> illegal = {
      [&] { device_.event_synchronize(event_); },
      [&] { device_.synchronize(); },
      [&] { device_.stream_synchronize(other_); },
      [&] { device_.free(address); },
  };
  for (const auto& call : illegal) {
    device_.begin_capture(stream_);
    EXPECT_EQ(code_of(call), 900);
    EXPECT_EQ(code_of([&] { device_.launch(stream_, 1); }), 901);
    EXPECT_EQ(code_of([&] { device_.event_record(event_, stream_); }), 901);
    EXPECT_TRUE(device_.capture_status(stream_).capturing);
    EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
    EXPECT_FALSE(device_.capture_status(stream_).capturing);
    EXPECT_EQ(device_.used_bytes(), kPage);
  }
  EXPECT_EQ(code_of(illegal.back()), 0);
}

TEST_F(SimulatedCapture, AStreamThatWaitsForACapturedEventJoinsTheCapture) {
  const std::uint64_t id = device_.begin_capture(stream_);
  device_.event_record(event_, stream_);
  device_.stream_wait(other_, event_);
  EXPECT_EQ(device_.capture_status(other_).id, id);
  device_.launch(other_, 1000);
  device_.event_record(event_, other_);
  device_.stream_wait(stream_, event_);
  EXPECT_EQ(code_of([&] { device_.end_capture(other_); }), 903);
  device_.end_capture(stream_);
  EXPECT_FALSE(device_.capture_status(other_).capturing);
  device_.synchronize();
  EXPECT_EQ(device_.clock_ns(), 0);
}

TEST_F(SimulatedCapture, AnEventOfTheCaptureCannotBeAskedOrAwaitedEver) {
  device_.begin_capture(stream_);
  device_.event_record(event_, stream_);
  EXPECT_EQ(code_of([&] { device_.event_query(event_); }), 907);
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
  EXPECT_EQ(code_of([&] { device_.event_query(event_); }), 907);
  EXPECT_EQ(code_of([&] { device_.event_synchronize(event_); }), 907);
  EXPECT_EQ(code_of([&] { device_.stream_wait(other_, event_); }), 907);
  device_.event_record(event_, other_);
  EXPECT_TRUE(device_.event_query(event_));
}

TEST_F(SimulatedCapture, ACapturedStreamCannotWaitForWorkOutside) {
  device_.launch(other_, 100);
  device_.event_record(event_, other_);
  device_.begin_capture(stream_);
  EXPECT_EQ(code_of([&] { device_.stream_wait(stream_, event_); }), 905);
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
}

TEST_F(SimulatedCapture, TwoCapturesCannotBeJoined) {
  device_.begin_capture(stream_);
  device_.begin_capture(other_);
  device_.event_record(event_, stream_);
  EXPECT_EQ(code_of([&] { device_.stream_wait(other_, event_); }), 902);
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
  EXPECT_EQ(code_of([&] { device_.end_capture(other_); }), 901);
}

TEST_F(SimulatedCapture, BeginAndEndMustMatch) {
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 401);
  EXPECT_EQ(code_of([&] { device_.begin_capture(nullptr); }), 900);
  device_.begin_capture(stream_);
  EXPECT_EQ(code_of([&] { device_.begin_capture(stream_); }), 401);
  device_.end_capture(stream_);
}

TEST_F(SimulatedCapture, ACapturedEventDoesNotMoveTheCompletionHint) {
  const auto before = device_.completion_hint(stream_);
  device_.begin_capture(stream_);
  device_.event_record(event_, stream_);
  device_.end_capture(stream_);
  device_.advance(1000);
  EXPECT_EQ(device_.completion_hint(stream_), before);
}

// ---- Blocking streams ----

class BlockingStreams : public testing::Test {
 protected:
  BlockingStreams() {
    for (const Stream blocking : {first_, second_}) device_.set_blocking(blocking);
  }
  SimulatedDevice device_{timeless()};
  const Stream first_ = device_.new_stream();
  const Stream second_ = device_.new_stream();
  const Stream free_ = device_.new_stream();
  const Event event_ = device_.event_create();
};

TEST_F(BlockingStreams, AndTheLegacyStreamWaitForEachOther) {
  EXPECT_EQ(device_.launch(first_, 100), 100);
  EXPECT_EQ(device_.launch(second_, 50), 50) << "they do not wait for one another";
  EXPECT_EQ(device_.launch(free_, 10), 10);
  EXPECT_EQ(device_.launch(nullptr, 1), 101) << "it waits for every blocking stream";
  EXPECT_EQ(device_.launch(second_, 1), 102) << "and they for it";
  EXPECT_EQ(device_.launch(free_, 1), 11);
}

TEST_F(BlockingStreams, AreBeforeAnEventAndASynchronizationOfTheLegacyStream) {
  device_.launch(first_, 100);
  device_.event_record(event_, nullptr);
  EXPECT_EQ(device_.event_done_ns(event_), 100);
  device_.launch(first_, 100);
  EXPECT_FALSE(device_.stream_query(nullptr));
  device_.stream_synchronize(nullptr);
  EXPECT_EQ(device_.clock_ns(), 200);
}

TEST_F(BlockingStreams, CountForTheLegacyStreamWhenTheyAreDestroyed) {
  device_.launch(first_, 100);
  device_.stream_destroy(first_);
  EXPECT_EQ(device_.launch(second_, 1), 1);
  EXPECT_EQ(device_.launch(nullptr, 1), 101);
  device_.launch(device_.new_stream(), 1000);  // of the same name, and non-blocking
  EXPECT_EQ(device_.launch(nullptr, 1), 102);
}

TEST_F(BlockingStreams, ThatCaptureForbidTheLegacyStream) {
  device_.begin_capture(free_);
  EXPECT_EQ(device_.launch(nullptr, 1), 1) << "a non-blocking stream does not";
  device_.end_capture(free_);
  device_.begin_capture(first_);
  EXPECT_EQ(code_of([&] { device_.capture_status(nullptr); }), 906);
  EXPECT_FALSE(device_.is_capture_spoilt(first_)) << "asking spoils nothing";
  EXPECT_EQ(code_of([&] { device_.launch(nullptr, 1); }), 906);
  EXPECT_EQ(code_of([&] { device_.end_capture(first_); }), 901);
  device_.launch(nullptr, 1);
}

TEST_F(SimulatedCapture, IsNotJoinedByANewStreamOfTheNameOfADestroyedOne) {
  device_.begin_capture(stream_);
  device_.event_record(event_, stream_);
  device_.stream_wait(other_, event_);
  device_.stream_destroy(other_);
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
  ASSERT_EQ(device_.new_stream(), other_);
  EXPECT_FALSE(device_.capture_status(other_).capturing);
  device_.launch(other_, 1);
}

TEST_F(SimulatedCapture, MayBeSpoiltForOneStream) {
  device_.begin_capture(stream_);
  device_.begin_capture(other_);
  device_.spoil_capture(stream_);
  EXPECT_TRUE(device_.is_capture_spoilt(stream_));
  EXPECT_EQ(code_of([&] { device_.end_capture(stream_); }), 901);
  device_.end_capture(other_);
  device_.spoil_capture(stream_);  // it does not capture
}

// ---- Mapping ----

TEST(SimulatedTime, MappingMayWaitForAllWork) {
  for (const bool waits : {false, true}) {
    SimulatedDevice::Config config = timeless();
    config.mapping_waits = waits;
    SimulatedDevice device(config);
    const Address range = device.reserve(kPage).value();
    const MemoryHandle handle = device.create(kPage).value();
    const std::vector<std::function<void()>> mappings = {[&] { device.map(range, kPage, handle); },
                                                         [&] { device.set_access(range, kPage, {}); },
                                                         [&] { device.unmap(range, kPage); }};
    for (const auto& call : mappings) {
      const std::int64_t done_ns = device.launch(nullptr, 100);
      call();
      EXPECT_EQ(device.clock_ns() == done_ns, waits);
      device.synchronize();
    }
  }
}

// ---- Faults, counts, log ----

TEST(SimulatedFaults, TheNthCallOfAKindFailsAndChangesNothing) {
  SimulatedDevice device(timeless());
  device.malloc(kPage);
  device.set_faults({{.call = DeviceCall::malloc, .nth = 2}});
  EXPECT_TRUE(device.malloc(kPage));
  EXPECT_TRUE(device.create(kPage));  // another kind does not count
  EXPECT_EQ(device.malloc(kPage), std::nullopt);
  EXPECT_TRUE(device.malloc(kPage));
  EXPECT_EQ(device.used_bytes(), 4 * kPage);
  EXPECT_EQ(device.faults_injected(), 1u);
  EXPECT_EQ(device.count(DeviceCall::malloc), 4u);
}

TEST(SimulatedFaults, AFaultMayRepeat) {
  SimulatedDevice device(timeless());
  device.set_faults({{.call = DeviceCall::create, .nth = 2, .repeat = true}});
  EXPECT_TRUE(device.create(kPage));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(device.create(kPage), std::nullopt);
  device.set_faults({});
  EXPECT_TRUE(device.create(kPage));
  EXPECT_EQ(device.faults_injected(), 3u);
}

TEST(SimulatedFaults, ACodeIsThrownAsItself) {
  SimulatedDevice device(timeless());
  device.set_faults({{.call = DeviceCall::malloc, .out_of_memory = false, .code = 700},
                     {.call = DeviceCall::event_query, .out_of_memory = false, .code = 4321}});
  EXPECT_EQ(error_of([&] { device.malloc(kPage); }), "CUDA error in cuMemAlloc: CUDA_ERROR_ILLEGAL_ADDRESS (code 700)");
  const Event event = device.event_create();
  EXPECT_EQ(error_of([&] { device.event_query(event); }), "CUDA error in cuEventQuery: an injected error (code 4321)");
  EXPECT_TRUE(device.malloc(kPage));
  EXPECT_EQ(device.used_bytes(), kPage);
}

TEST(SimulatedFaults, OutOfMemoryOfACallWithoutThatValueIsThrown) {
  SimulatedDevice device(timeless());
  const Address range = device.reserve(kPage).value();
  const MemoryHandle handle = device.create(kPage).value();
  device.set_faults({{.call = DeviceCall::map}});
  EXPECT_EQ(code_of([&] { device.map(range, kPage, handle); }), 2);
  EXPECT_EQ(device.live_mappings(), 0u);
  device.map(range, kPage, handle);
}

TEST(SimulatedFaults, AFaultOfAnyKindCountsEveryCall) {
  SimulatedDevice device(timeless());
  device.set_faults({{.nth = 3, .out_of_memory = false, .code = 999}});
  const Event event = device.event_create();
  device.event_record(event, nullptr);
  EXPECT_EQ(code_of([&] { device.event_query(event); }), 999);
  EXPECT_TRUE(device.event_query(event));
}

TEST(SimulatedFaults, EveryKindOfCallCanFail) {
  SimulatedDevice device(timeless());
  for (std::size_t i = 0; i < kDeviceCallCount; ++i) {
    const auto kind = static_cast<DeviceCall>(i);
    SCOPED_TRACE(to_string(kind));
    device.set_faults({{.call = kind, .out_of_memory = false, .code = 999, .repeat = true}});
    const std::uint64_t before = device.count(kind);
    const std::vector<std::function<void()>> calls = {
        [&] { device.malloc(kPage); },
        [&] { device.free(1); },
        [&] { device.reserve(kPage); },
        [&] { device.unreserve(1, kPage); },
        [&] { device.create(kPage); },
        [&] { device.release(0); },
        [&] { device.map(1, kPage, 0); },
        [&] { device.unmap(1, kPage); },
        [&] { device.set_access(1, kPage, {}); },
        [&] { device.host_malloc(1); },
        [&] { device.host_free({}); },
        [&] { device.copy_to_host({}, 1, 1); },
        [&] { device.copy_from_host(1, {}, 1); },
        [&] { device.fill(1, 0, 1, {}); },
        [&] { device.event_create(); },
        [&] { device.event_destroy({}); },
        [&] { device.event_record({}, {}); },
        [&] { device.event_query({}); },
        [&] { device.event_synchronize({}); },
        [&] { device.stream_wait({}, {}); },
        [&] { device.capture_status({}); },
        [&] { device.synchronize(); },
        [&] { device.memory_info(); },
        [&] { device.ipc_export(1); },
        [&] { device.ipc_import({}); },
        [&] { device.ipc_close(1); },
        [&] { device.export_handle(0); },
        [&] { device.import_handle({}); },
        [&] { device.enable_peer_access(1); },
        [&] { device.malloc_async(kPage, {}); },
        [&] { device.free_async(1, {}); },
        [&] { device.copy(CopyKind::within_device, 1, 2, 1, {}); },
        [&] { device.malloc_managed(kPage); },
    };
    ASSERT_EQ(calls.size(), kDeviceCallCount);
    EXPECT_EQ(code_of(calls[i]), 999);
    EXPECT_EQ(device.count(kind), before + 1);
  }
}

// A device of 8 MiB with a host that has room for 6 MiB of managed memory.
SimulatedDevice::Config config_of_managed_memory() {
  SimulatedDevice::Config config;
  config.memory_bytes = 8 * kMiB;
  config.managed_host_bytes = 6 * kMiB;
  return config;
}

TEST(SimulatedManagedMemory, LiesOnTheHostWhereTheDeviceHasNoRoom) {
  SimulatedDevice device(config_of_managed_memory());
  const Address first = device.malloc_managed(4 * kMiB).value();
  EXPECT_EQ(device.free_bytes(), 4 * kMiB);
  const Address second = device.malloc_managed(10 * kMiB).value();
  EXPECT_EQ(device.free_bytes(), 0u);
  EXPECT_EQ(device.used_bytes(), 8 * kMiB);
  EXPECT_EQ(device.managed_host_bytes(), 6 * kMiB);
  EXPECT_EQ(device.malloc_managed(1), std::nullopt) << "neither has room";
  EXPECT_EQ(device.malloc(1), std::nullopt);
  device.free(first);
  EXPECT_EQ(device.used_bytes(), 8 * kMiB) << "what lay on the host is used on the device now";
  EXPECT_EQ(device.managed_host_bytes(), 2 * kMiB);
  device.free(second);
  EXPECT_EQ(device.used_bytes() + device.managed_host_bytes(), 0u);
}

TEST(SimulatedManagedMemory, MakesRoomForOtherMemory) {
  SimulatedDevice device(config_of_managed_memory());
  const Address managed = device.malloc_managed(8 * kMiB).value();
  const Address plain = device.malloc(4 * kMiB).value();
  EXPECT_EQ(device.managed_host_bytes(), 4 * kMiB);
  const MemoryHandle handle = device.create(2 * kMiB).value();
  EXPECT_EQ(device.managed_host_bytes(), 6 * kMiB);
  EXPECT_EQ(device.malloc(2 * kMiB), std::nullopt) << "the host has no room for the rest";
  EXPECT_EQ(device.used_bytes(), 8 * kMiB);
  device.release(handle);
  device.free(plain);
  device.free(managed);
  EXPECT_EQ(device.used_bytes() + device.managed_host_bytes(), 0u);
}

TEST(SimulatedManagedMemory, IsRefusedByADeviceWithout) {
  SimulatedDevice::Config config;
  config.managed_memory = false;
  SimulatedDevice device(config);
  EXPECT_EQ(device.properties().managed_bytes, 0u);
  EXPECT_EQ(code_of([&] { device.malloc_managed(kMiB); }), 801);
}

TEST(SimulatedManagedMemory, IsGoneAfterAReset) {
  SimulatedDevice device(config_of_managed_memory());
  static_cast<void>(device.malloc_managed(12 * kMiB).value());
  device.reset();
  EXPECT_EQ(device.used_bytes() + device.managed_host_bytes(), 0u);
}

TEST(SimulatedManagedMemory, OfAnAccountTakesOnlyWhatTheDevicesProcessesLeave) {
  std::size_t free_bytes = 4 * kMiB;
  SimulatedDevice::Config config = config_of_managed_memory();
  config.account = {.take =
                        [&](std::size_t bytes) {
                          if (bytes > free_bytes) return false;
                          free_bytes -= bytes;
                          return true;
                        },
                    .give_back = [&](std::size_t bytes) { free_bytes += bytes; },
                    .free_bytes = [&] { return free_bytes; }};
  SimulatedDevice device(config);
  const Address address = device.malloc_managed(8 * kMiB).value();
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(device.managed_host_bytes(), 4 * kMiB);
  EXPECT_EQ(device.malloc_managed(4 * kMiB), std::nullopt);
  EXPECT_EQ(free_bytes, 0u);
  device.free(address);
  EXPECT_EQ(free_bytes, 4 * kMiB);
}

TEST(SimulatedLog, TellsEachCallWithArgumentSizeTimeAndOutcome) {
  SimulatedDevice::Config config;
  config.memory_bytes = 4 * kMiB;
  config.log_calls = true;
  SimulatedDevice device(config);
  const Address address = device.malloc(3 * kMiB).value();
  EXPECT_EQ(device.malloc(kPage), std::nullopt);
  EXPECT_EQ(code_of([&] { device.free(address + 512); }), 1);
  device.free(address);
  const auto log = device.take_log();
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[0].call, DeviceCall::malloc);
  EXPECT_EQ(log[0].argument, address);
  EXPECT_EQ(log[0].bytes, 3 * kMiB);
  EXPECT_FALSE(log[0].failed);
  EXPECT_EQ(log[0].clock_ns, 0);
  EXPECT_TRUE(log[1].failed);
  EXPECT_EQ(log[1].clock_ns, 100'150);
  EXPECT_TRUE(log[2].failed);
  EXPECT_EQ(log[2].argument, address + 512);
  EXPECT_EQ(log[3].call, DeviceCall::free);
  EXPECT_FALSE(log[3].failed);
  EXPECT_TRUE(device.take_log().empty());
}

TEST(SimulatedLog, IsEmptyUnlessAskedFor) {
  SimulatedDevice device(timeless());
  device.malloc(kPage);
  EXPECT_TRUE(device.take_log().empty());
}

// ---- Sharing ----

TEST(SimulatedIpc, AnotherDeviceObjectOpensExportedMemoryWithoutUsingItsOwn) {
  SimulatedDevice exporter(timeless());
  SimulatedDevice importer(timeless());
  const Address address = exporter.malloc(3 * kMiB).value();
  const IpcHandle handle = exporter.ipc_export(address);
  const Address opened = importer.ipc_import(handle);
  EXPECT_EQ(importer.used_bytes(), 0u);
  importer.launch(importer.new_stream(), 1, {{opened, 3 * kMiB}});
  EXPECT_EQ(code_of([&] { importer.free(opened); }), 1);
  EXPECT_EQ(importer.ipc_import(handle), opened);  // opened twice: the same address
  importer.ipc_close(opened);
  importer.launch(importer.new_stream(), 1, {{opened, 1}});
  importer.ipc_close(opened);
  EXPECT_EQ(code_of([&] { importer.launch(importer.new_stream(), 1, {{opened, 1}}); }), 700);
  EXPECT_EQ(code_of([&] { importer.ipc_close(opened); }), 1);
}

TEST(SimulatedIpc, AHandleMustBeOfLiveMemoryOfAnother) {
  auto exporter = std::make_unique<SimulatedDevice>(timeless());
  SimulatedDevice importer(timeless());
  const Address address = exporter->malloc(kPage).value();
  const IpcHandle handle = exporter->ipc_export(address);
  EXPECT_EQ(code_of([&] { exporter->ipc_import(handle); }), 201);
  EXPECT_EQ(code_of([&] { exporter->ipc_export(address + 512); }), 1);
  EXPECT_EQ(code_of([&] { importer.ipc_import(IpcHandle{}); }), 1);
  for (std::size_t i = 0; i < sizeof(ExportedMemory); ++i) {
    IpcHandle damaged = handle;
    damaged.bytes[i] ^= 0x40;
    EXPECT_EQ(code_of([&] { importer.ipc_import(damaged); }), 1) << "byte " << i;
  }
  exporter->free(address);
  EXPECT_EQ(code_of([&] { importer.ipc_import(handle); }), 1);
  const IpcHandle second = exporter->ipc_export(exporter->malloc(kPage).value());
  exporter.reset();
  EXPECT_EQ(code_of([&] { importer.ipc_import(second); }), 1);
}

TEST(SimulatedSharing, AnotherDeviceObjectMapsAnExportedHandleWithoutUsingItsOwn) {
  SimulatedDevice exporter(timeless());
  SimulatedDevice importer(timeless());
  const ShareableHandle shared = exporter.export_handle(exporter.create(2 * kPage).value());
  const MemoryHandle handle = importer.import_handle(shared);
  EXPECT_EQ(close(shared.descriptor), 0);
  const Address range = importer.reserve(2 * kPage).value();
  importer.map(range, 2 * kPage, handle);
  importer.set_access(range, 2 * kPage, {});
  importer.launch(importer.new_stream(), 1, {{range, 2 * kPage}});
  EXPECT_EQ(importer.used_bytes(), 0u);
  importer.unmap(range, 2 * kPage);
  importer.release(handle);
}

TEST(SimulatedSharing, ADescriptorIsOneThatADeviceExported) {
  SimulatedDevice device(timeless());
  const int other = memfd_create("something else", MFD_CLOEXEC);
  EXPECT_EQ(code_of([&] { device.import_handle({.descriptor = other}); }), 1);
  EXPECT_EQ(code_of([&] { device.import_handle({.kind = ShareableHandle::Kind::fabric}); }), 1);
  close(other);
}

// ---- Peers ----

TEST(SimulatedPeers, AccessIsOfTheMappingsItWasSetFor) {
  SimulatedDevice device(timeless());
  const Address range = device.reserve(2 * kPage).value();
  for (const Address at : {range, range + kPage}) device.map(at, kPage, device.create(kPage).value());
  device.set_access(range, 2 * kPage, {});
  device.set_access(range, kPage, {1, 3});
  EXPECT_EQ(device.memory_at(range)->peers, 10u);
  EXPECT_EQ(device.memory_at(range + kPage)->peers, 0u);
  device.set_access(range, kPage, {});  // devices with access keep it
  EXPECT_EQ(device.memory_at(range)->peers, 10u);
  EXPECT_EQ(code_of([&] { device.set_access(range, kPage, {64}); }), 101);
}

TEST(SimulatedPeers, AreOtherDevices) {
  SimulatedDevice device(timeless());
  EXPECT_FALSE(device.may_access(1));
  device.enable_peer_access(1);
  device.enable_peer_access(1);
  EXPECT_TRUE(device.may_access(1));
  EXPECT_EQ(code_of([&] { device.enable_peer_access(0); }), 101);
}

// ---- Threads ----

TEST(SimulatedThreads, CallsFromManyThreadsLoseNothing) {
  SimulatedDevice device(timeless(64 * kGiB));
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const Stream stream = device.new_stream();
      const Event event = device.event_create();
      for (int i = 0; i < kRounds; ++i) {
        const Address address = device.malloc(kPage).value();
        device.launch(stream, 10, {{address, kPage}});
        device.event_record(event, stream);
        device.event_synchronize(event);
        if (!device.event_query(event)) ++wrong;
        if (!device.completion_hint(stream)) ++wrong;
        device.free(address);
      }
      device.event_destroy(event);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(device.used_bytes(), 0u);
  EXPECT_EQ(device.count(DeviceCall::malloc), std::uint64_t{kThreads * kRounds});
  EXPECT_EQ(device.count(DeviceCall::free), std::uint64_t{kThreads * kRounds});
}

}  // namespace
}  // namespace cachalot
