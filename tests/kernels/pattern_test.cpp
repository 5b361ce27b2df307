// Tests of the contract of fill_pattern and verify_pattern against each implementation.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "kernels/pattern.h"
#include "tests/allocator/testing.h"
#include "tests/kernels/subject.h"

namespace cachalot {
namespace {

class PatternContract : public KernelsContract {
 protected:
  void flip_a_bit(Address address) { write(address, {static_cast<unsigned char>(read(address, 1)[0] ^ 1)}); }
  static Bytes pattern(Address address, std::size_t bytes, std::uint64_t seed) {
    Bytes expected(bytes);
    for (std::size_t i = 0; i < bytes; ++i) expected[i] = pattern_byte(address + i, seed);
    return expected;
  }
  std::optional<std::size_t> verify(const PatternSpan& span) { return kernels_->verify_pattern(nullptr, span); }
};

INSTANTIATE_TEST_SUITE_P(Simulated, PatternContract, testing::Values(&simulated_device));
INSTANTIATE_TEST_SUITE_P(Cuda, PatternContract, testing::Values(&gpu));

TEST_P(PatternContract, ASpanOfAnyAlignmentAndLengthIsFilledAndNothingBesideIt) {
  constexpr std::size_t kMargin = 40;
  for (std::size_t shift = 0; shift < 17; ++shift) {
    for (const std::size_t bytes : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 31u, 33u, 100u, 4099u}) {
      write(begin_, Bytes(bytes + shift + 2 * kMargin, 0xee));
      const PatternSpan span{begin_ + kMargin + shift, bytes, 7};
      kernels_->fill_pattern(nullptr, span);
      device_->synchronize();
      ASSERT_EQ(read(span.address, bytes + 1).back(), 0xee) << shift << " " << bytes;
      ASSERT_EQ(read(span.address - kMargin, kMargin), Bytes(kMargin, 0xee)) << shift << " " << bytes;
      Bytes held = read(span.address, bytes + 1);
      held.pop_back();
      ASSERT_EQ(held, pattern(span.address, bytes, 7)) << shift << " " << bytes;
      ASSERT_EQ(verify(span), std::nullopt) << shift << " " << bytes;
    }
  }
}

TEST_P(PatternContract, ASpanOfMegabytesIsFilledToTheLastByte) {
  const PatternSpan span{begin_ + 3, 3 * kMiB + 5, 1};
  kernels_->fill_pattern(nullptr, span);
  EXPECT_EQ(verify(span), std::nullopt);
  EXPECT_EQ(read(span.address, span.bytes), pattern(span.address, span.bytes, 1));
}

TEST_P(PatternContract, TheFirstByteThatDiffersIsFoundWhereverItIs) {
  const PatternSpan span{begin_ + 5, 100, 3};
  kernels_->fill_pattern(nullptr, span);
  for (std::size_t offset = span.bytes; offset-- > 0;) {  // those behind differ, too
    flip_a_bit(span.address + offset);
    ASSERT_EQ(verify(span), offset);
  }
}

TEST_P(PatternContract, TheFirstOfDifferencesMegabytesApartIsFound) {
  const PatternSpan span{begin_, kBytes, 3};
  kernels_->fill_pattern(nullptr, span);
  for (const std::size_t offset : {kBytes - 1, 3 * kMiB, 2 * kMiB + 1, kMiB + 77, std::size_t{4096}}) {
    flip_a_bit(span.address + offset);
    ASSERT_EQ(verify(span), offset);
  }
}

TEST_P(PatternContract, ABlockThatWasCopiedOrFilledWithAnotherSeedIsNoticed) {
  const PatternSpan span{begin_, 4096, 3};
  const PatternSpan copy{begin_ + 64 * kKiB, 4096, 3};
  const PatternSpan other_seed{begin_, 4096, 4};
  kernels_->fill_pattern(nullptr, span);
  EXPECT_NE(verify(other_seed), std::nullopt);
  write(copy.address, read(span.address, span.bytes));
  EXPECT_NE(verify(copy), std::nullopt);
}

TEST_P(PatternContract, ABlockThatWasShiftedIsNoticed) {
  const PatternSpan span{begin_, 4096, 3};
  for (const std::size_t shift : {1u, 8u, 16u, 512u}) {
    kernels_->fill_pattern(nullptr, span);
    device_->synchronize();
    write(begin_ + shift, read(begin_, span.bytes - shift));
    const auto offset = verify(span);
    ASSERT_TRUE(offset.has_value()) << shift;
    EXPECT_LT(*offset, shift + 8) << shift;  // within a byte or two of where it begins
    EXPECT_GE(*offset, shift);
  }
}

TEST_P(PatternContract, ThousandsOfSpansAreOneCallAndEachTellsItsOwnFirstDifference) {
  std::vector<PatternSpan> spans;
  for (std::size_t i = 0; i < 3000; ++i) spans.push_back({begin_ + 1024 * i + i % 16, i % 5 * 150, i});
  kernels_->fill_pattern(nullptr, spans);
  EXPECT_TRUE(kernels_->verify_pattern(nullptr, spans).empty());
  const std::vector<PatternMismatch> broken = {{1, 149}, {17, 0}, {1359, 20}, {1361, 1}, {2999, 599}};
  for (const PatternMismatch& mismatch : broken) flip_a_bit(spans[mismatch.span].address + mismatch.offset);
  EXPECT_EQ(kernels_->verify_pattern(nullptr, spans), broken);
}

TEST_P(PatternContract, NothingIsDoneForNoSpanAndForEmptyOnes) {
  const std::vector<PatternSpan> none;
  kernels_->fill_pattern(nullptr, none);
  EXPECT_TRUE(kernels_->verify_pattern(nullptr, none).empty());
  kernels_->fill_pattern(nullptr, PatternSpan{});
  EXPECT_EQ(verify(PatternSpan{}), std::nullopt);
}

TEST_P(PatternContract, ABadSpanIsNamedBeforeAnythingIsWritten) {
  write(begin_, Bytes(16, 0));
  const std::vector<PatternSpan> null = {{begin_, 16, 1}, {0, 16, 1}};
  EXPECT_EQ(refusal([&] { kernels_->fill_pattern(nullptr, null); }),
            "pattern span 1 has 16 bytes and begins at a null address");
  const std::vector<PatternSpan> endless = {{begin_, 16, 1}, {0x1000, ~std::size_t{0}, 1}};
  EXPECT_EQ(refusal([&] { kernels_->verify_pattern(nullptr, endless); }),
            "pattern span 1 begins at 0x1000 and has 18446744073709551615 bytes: more than there are addresses");
  EXPECT_EQ(read(begin_, 16), Bytes(16, 0));
}

// ---- The host twin -------------------------------------------------------------------------------------------------

TEST(HostKernels, KernelsForNoDeviceAreRefused) {
  EXPECT_EQ(refusal([] { kernels_for(nullptr); }), "kernels_for needs a device, not null");
  EXPECT_EQ(refusal([] { host_kernels(nullptr); }), "host_kernels needs a device, not null");
}

TEST(HostKernels, FillsAndVerifiesAfterTheWorkOfTheStream) {
  SimulatedDevice::Config config;
  config.latency = LatencyModel::none();
  const auto device = std::make_shared<SimulatedDevice>(config);
  const DeviceMemory memory(device, 4096);
  const auto kernels = kernels_for(device);
  const Stream stream = device->new_stream();
  for (const bool fill : {true, false}) {
    const std::int64_t done = device->launch(stream, 1'000'000);
    if (fill) {
      kernels->fill_pattern(stream, {memory.address(), 4096, 1});
    } else {
      kernels->verify_pattern(stream, {memory.address(), 4096, 1});
    }
    EXPECT_GE(device->clock_ns(), done);
  }
}

TEST(HostKernels, MemoryThatIsNotThereIsTheDevicesErrorAndEventsAreGivenBack) {
  SimulatedDevice::Config config;
  config.log_calls = true;
  const auto device = std::make_shared<SimulatedDevice>(config);
  const DeviceMemory memory(device, 4096);
  const auto kernels = kernels_for(device);
  EXPECT_THROW(kernels->fill_pattern(nullptr, PatternSpan{0x10, 16, 1}), CudaError);
  for (std::uint64_t nth = 1; nth <= 5; ++nth) {
    device->take_log();
    device->set_faults({Fault{.nth = nth, .out_of_memory = false, .code = 700}});
    const bool destroys_last = nth == 4;  // create, record, synchronize, destroy, copy
    EXPECT_THROW(kernels->verify_pattern(nullptr, PatternSpan{memory.address(), 4096, 1}), CudaError) << nth;
    int events = 0;
    for (const LoggedCall& call : device->take_log()) {
      if (call.failed) continue;
      events += call.call == DeviceCall::event_create ? 1 : call.call == DeviceCall::event_destroy ? -1 : 0;
    }
    EXPECT_EQ(events, destroys_last ? 1 : 0) << nth;
  }
  EXPECT_EQ(kernels->verify_pattern(nullptr, PatternSpan{memory.address(), 4096, 1}), 0u);
}

// ---- Launches: on a GPU, and on the simulated runtime, which checks that a device could run them -------------------

TEST(CudaKernels, LaunchesTakeAnyNumberOfSpansOfAnySize) {
  const auto devices = cuda_devices();
  if (devices.empty()) GTEST_SKIP() << "no GPU here";
  const DeviceMemory memory(devices.front(), 64 * kMiB);
  const auto kernels = kernels_for(devices.front());
  for (const std::size_t count : {0u, 1u, 16u, 17u, 1360u, 1361u, 5000u}) {
    std::vector<PatternSpan> spans;
    for (std::size_t i = 0; i < count; ++i) spans.push_back({memory.address() + i * 64, 64, i});
    kernels->fill_pattern(nullptr, spans);
    EXPECT_TRUE(kernels->verify_pattern(nullptr, spans).empty()) << count;
  }
  const PatternSpan all{memory.address(), 64 * kMiB, 1};
  kernels->fill_pattern(nullptr, all);
  EXPECT_EQ(kernels->verify_pattern(nullptr, all), std::nullopt);
}

}  // namespace
}  // namespace cachalot
