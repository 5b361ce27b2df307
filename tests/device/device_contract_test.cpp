// Tests of the contract of Device against each implementation. They ask only for documented properties of CUDA; the
// simulated device's own rules are in simulated_device_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "device_subject.h"

namespace cachalot {
namespace {

using namespace std::chrono_literals;
constexpr auto kWork = 100ms;  // long enough for a query to come in between
constexpr auto kSurelyDone = 500ms;

using MakeSubject = std::unique_ptr<DeviceSubject> (*)();

class DeviceContract : public testing::TestWithParam<MakeSubject> {
 protected:
  void SetUp() override {
    subject_ = GetParam()();
    if (!subject_) GTEST_SKIP() << "no GPU here: CudaDevice is not tested";
    device_ = &subject_->device();
    page_ = device_->properties().page_bytes;
  }

  // Runs `call` and returns its error's code; 0 when nothing was thrown.
  static int code_of(const std::function<void()>& call) {
    try {
      call();
      return 0;
    } catch (const CudaError& error) {
      return error.code();
    }
  }

  std::unique_ptr<DeviceSubject> subject_;
  Device* device_ = nullptr;
  std::size_t page_ = 0;
};

class VirtualMemoryContract : public DeviceContract {
 protected:
  void SetUp() override {
    DeviceContract::SetUp();
    if (IsSkipped()) return;
    if (!device_->properties().virtual_memory) GTEST_SKIP() << "this device has no virtual memory management";
  }
};

class ManagedMemoryContract : public DeviceContract {
 protected:
  void SetUp() override {
    DeviceContract::SetUp();
    if (IsSkipped()) return;
    if (device_->properties().managed_bytes == 0) GTEST_SKIP() << "this device has no managed memory";
  }
};

INSTANTIATE_TEST_SUITE_P(Simulated, DeviceContract, testing::Values(&make_simulated_subject));
INSTANTIATE_TEST_SUITE_P(Simulated, VirtualMemoryContract, testing::Values(&make_simulated_subject));
INSTANTIATE_TEST_SUITE_P(Simulated, ManagedMemoryContract, testing::Values(&make_simulated_subject));
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(&make_cuda_subject));
INSTANTIATE_TEST_SUITE_P(Cuda, VirtualMemoryContract, testing::Values(&make_cuda_subject));
INSTANTIATE_TEST_SUITE_P(Cuda, ManagedMemoryContract, testing::Values(&make_cuda_subject));
INSTANTIATE_TEST_SUITE_P(CudaFromNewThreads, DeviceContract, testing::Values(&make_cuda_subject_for_new_threads));
INSTANTIATE_TEST_SUITE_P(CudaFromNewThreads, VirtualMemoryContract,
                         testing::Values(&make_cuda_subject_for_new_threads));
INSTANTIATE_TEST_SUITE_P(CudaFromNewThreads, ManagedMemoryContract,
                         testing::Values(&make_cuda_subject_for_new_threads));

TEST_P(DeviceContract, PropertiesAgreeWithMemoryInfo) {
  const DeviceProperties properties = device_->properties();
  const MemoryInfo info = device_->memory_info();
  EXPECT_FALSE(properties.name.empty());
  EXPECT_EQ(properties.virtual_memory, properties.page_bytes > 0);
  EXPECT_EQ(properties.total_bytes, info.total_bytes);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_EQ(device_->index(), 0);
}

TEST_P(DeviceContract, MallocTakesMemoryAndFreeGivesItBack) {
  const std::size_t before = device_->memory_info().free_bytes;
  const auto address = device_->malloc(64 * kMiB);
  ASSERT_TRUE(address);
  EXPECT_EQ(*address % 512, 0u);
  EXPECT_LE(device_->memory_info().free_bytes + 64 * kMiB, before);
  device_->free(*address);
  EXPECT_EQ(device_->memory_info().free_bytes, before);
}

TEST_P(DeviceContract, LiveAllocationsDoNotOverlap) {
  std::vector<Address> addresses;
  for (int i = 0; i < 16; ++i) addresses.push_back(device_->malloc(3 * kMiB).value());
  std::vector<Address> sorted = addresses;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) EXPECT_GE(sorted[i] - sorted[i - 1], 3 * kMiB);
  for (const Address address : addresses) device_->free(address);
}

TEST_P(DeviceContract, TooMuchMemoryIsNoValueAndLeavesNoErrorBehind) {
  EXPECT_EQ(device_->malloc(2 * device_->properties().total_bytes), std::nullopt);
  const auto address = device_->malloc(2 * kMiB);
  ASSERT_TRUE(address);
  device_->synchronize();
  device_->free(*address);
}

TEST_P(DeviceContract, MallocOfNothingIsAnError) {
  EXPECT_EQ(code_of([&] { device_->malloc(0); }), 1);
}

TEST_P(DeviceContract, FreeOfWhatMallocDidNotReturnIsAnError) {
  const Address address = device_->malloc(4 * kMiB).value();
  EXPECT_EQ(code_of([&] { device_->free(address + 2 * kMiB); }), 1);
  EXPECT_EQ(code_of([&] { device_->free(0); }), 1);
  device_->free(address);
  EXPECT_EQ(code_of([&] { device_->free(address); }), 1);
}

TEST_P(DeviceContract, FreeWaitsForAllWork) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  const Address address = device_->malloc(2 * kMiB).value();
  subject_->queue_work(stream, kWork);
  device_->event_record(event, stream);
  device_->free(address);
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
}

TEST_P(VirtualMemoryContract, VirtualMemoryRoundTripGivesEverythingBack) {
  const Address range = device_->reserve(64 * page_).value();
  const std::size_t before = device_->memory_info().free_bytes;
  const MemoryHandle handle = device_->create(32 * page_).value();
  EXPECT_LE(device_->memory_info().free_bytes + 32 * page_, before);
  device_->map(range + page_, 32 * page_, handle);
  device_->set_access(range + page_, 32 * page_, {});
  device_->unmap(range + page_, 32 * page_);
  device_->release(handle);
  EXPECT_EQ(device_->memory_info().free_bytes, before);
  device_->unreserve(range, 64 * page_);
}

TEST_P(VirtualMemoryContract, TooMuchPhysicalMemoryIsNoValue) {
  EXPECT_EQ(device_->create(round_up(2 * device_->properties().total_bytes, page_)), std::nullopt);
  const MemoryHandle handle = device_->create(page_).value();
  device_->release(handle);
}

TEST_P(VirtualMemoryContract, ReleasedMemoryLivesUntilItsLastMappingIsGone) {
  const Address range = device_->reserve(32 * page_).value();
  const std::size_t before = device_->memory_info().free_bytes;
  const MemoryHandle handle = device_->create(32 * page_).value();
  device_->map(range, 32 * page_, handle);
  device_->release(handle);
  EXPECT_LE(device_->memory_info().free_bytes + 32 * page_, before);
  device_->unmap(range, 32 * page_);
  EXPECT_EQ(device_->memory_info().free_bytes, before);
  device_->unreserve(range, 32 * page_);
}

TEST_P(VirtualMemoryContract, OneHandleMayBeMappedAtSeveralAddresses) {
  const Address range = device_->reserve(2 * page_).value();
  const MemoryHandle handle = device_->create(page_).value();
  device_->map(range, page_, handle);
  device_->map(range + page_, page_, handle);
  device_->set_access(range, 2 * page_, {});
  device_->unmap(range, page_);
  device_->set_access(range + page_, page_, {});
  device_->unmap(range + page_, page_);
  device_->release(handle);
  device_->unreserve(range, 2 * page_);
}

TEST_P(VirtualMemoryContract, OneSetAccessCoversManyMappings) {
  constexpr std::size_t kPages = 8;
  const Address range = device_->reserve(kPages * page_).value();
  std::vector<MemoryHandle> handles;
  for (std::size_t i = 0; i < kPages; ++i) {
    handles.push_back(device_->create(page_).value());
    device_->map(range + i * page_, page_, handles.back());
  }
  device_->set_access(range, kPages * page_, {});
  device_->unmap(range, kPages * page_);
  for (const MemoryHandle handle : handles) device_->release(handle);
  device_->unreserve(range, kPages * page_);
}

TEST_P(VirtualMemoryContract, ASharedHandleIsTheSameMemoryAndOutlivesTheRelease) {
  const Address range = device_->reserve(2 * page_).value();
  const std::size_t before = device_->memory_info().free_bytes;
  const MemoryHandle handle = device_->create(2 * page_).value();
  const ShareableHandle shared = device_->export_handle(handle);
  const MemoryHandle imported = device_->import_handle(shared);
  if (shared.kind == ShareableHandle::Kind::descriptor) close(shared.descriptor);
  EXPECT_LE(device_->memory_info().free_bytes + 2 * page_, before);  // no more is used by the import
  device_->release(handle);
  device_->map(range, 2 * page_, imported);
  device_->set_access(range, 2 * page_, {});
  device_->unmap(range, 2 * page_);
  device_->release(imported);
  EXPECT_EQ(device_->memory_info().free_bytes, before);
  device_->unreserve(range, 2 * page_);
}

TEST_P(VirtualMemoryContract, WhatIsNoSharedHandleIsNotImported) {
  EXPECT_THROW(device_->export_handle(0), CudaError);
  EXPECT_THROW(device_->import_handle({}), CudaError);
}

TEST_P(VirtualMemoryContract, SetAccessOverAHoleIsAnError) {
  const Address range = device_->reserve(2 * page_).value();
  const MemoryHandle handle = device_->create(page_).value();
  device_->map(range, page_, handle);
  EXPECT_THROW(device_->set_access(range, 2 * page_, {}), CudaError);
  device_->unmap(range, page_);
  device_->release(handle);
  device_->unreserve(range, 2 * page_);
}

TEST_P(VirtualMemoryContract, MappingOverAMappingIsAnError) {
  const Address range = device_->reserve(page_).value();
  const MemoryHandle handle = device_->create(page_).value();
  device_->map(range, page_, handle);
  EXPECT_THROW(device_->map(range, page_, handle), CudaError);
  device_->unmap(range, page_);
  device_->release(handle);
  device_->unreserve(range, page_);
}

TEST_P(DeviceContract, AnEventNeverRecordedIsDone) {
  const Event event = device_->event_create();
  EXPECT_TRUE(device_->event_query(event));
  device_->event_synchronize(event);
  device_->event_destroy(event);
}

TEST_P(DeviceContract, AnEventIsDoneWhenTheWorkBeforeItIs) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->queue_work(stream, kWork);
  device_->event_record(event, stream);
  EXPECT_FALSE(device_->event_query(event));
  subject_->pass(kSurelyDone);
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
}

TEST_P(DeviceContract, AnEventDoesNotWaitForLaterWork) {
  const Stream stream = subject_->new_stream();
  const Event first = device_->event_create();
  const Event second = device_->event_create();
  device_->event_record(first, stream);
  subject_->queue_work(stream, kWork);
  device_->event_record(second, stream);
  device_->event_synchronize(first);
  EXPECT_FALSE(device_->event_query(second));
  device_->event_synchronize(second);
  EXPECT_TRUE(device_->event_query(second));
  device_->event_destroy(first);
  device_->event_destroy(second);
}

TEST_P(DeviceContract, RecordingAnEventAgainMarksTheNewWork) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  device_->event_record(event, stream);
  device_->event_synchronize(event);
  subject_->queue_work(stream, kWork);
  device_->event_record(event, stream);
  EXPECT_FALSE(device_->event_query(event));
  device_->synchronize();
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
}

TEST_P(DeviceContract, AStreamThatWaitsIsNotDoneBeforeTheEvent) {
  const Stream first = subject_->new_stream();
  const Stream second = subject_->new_stream();
  const Event first_done = device_->event_create();
  const Event second_done = device_->event_create();
  subject_->queue_work(first, kWork);
  device_->event_record(first_done, first);
  device_->stream_wait(second, first_done);
  device_->event_record(second_done, second);
  EXPECT_FALSE(device_->event_query(second_done));
  device_->event_synchronize(second_done);
  EXPECT_TRUE(device_->event_query(first_done));
  device_->event_destroy(first_done);
  device_->event_destroy(second_done);
}

TEST_P(DeviceContract, TheCompletionHintChangesAfterAnEventCompletes) {
  const Stream stream = subject_->new_stream();
  if (!device_->completion_hint(stream)) GTEST_SKIP() << "this device has no completion hints";
  const Event event = device_->event_create();
  for (int round = 0; round < 3; ++round) {
    subject_->queue_work(stream, kWork);
    const auto before = device_->completion_hint(stream);
    device_->event_record(event, stream);
    EXPECT_FALSE(device_->event_query(event));
    EXPECT_EQ(device_->completion_hint(stream), before);
    subject_->pass(kSurelyDone);
    EXPECT_NE(device_->completion_hint(stream), before);
    EXPECT_TRUE(device_->event_query(event));
  }
  device_->event_destroy(event);
}

TEST_P(DeviceContract, TheCompletionHintOfAStreamAnswersForThatStreamAlone) {
  const Stream idle = subject_->new_stream();
  const Stream busy = subject_->new_stream();
  if (!device_->completion_hint(idle)) GTEST_SKIP() << "this device has no completion hints";
  const Event event = device_->event_create();
  const auto idle_hint = device_->completion_hint(idle);
  device_->event_record(event, busy);
  subject_->pass(kSurelyDone);
  EXPECT_EQ(device_->completion_hint(idle), idle_hint);
  device_->event_destroy(event);
}

TEST_P(DeviceContract, OnlyAStreamThatCapturesSaysSo) {
  const Stream captured = subject_->new_stream();
  const Stream other = subject_->new_stream();
  EXPECT_FALSE(device_->capture_status(captured).capturing);
  EXPECT_EQ(device_->capture_status(captured).id, 0u);
  subject_->begin_capture(captured);
  EXPECT_TRUE(device_->capture_status(captured).capturing);
  EXPECT_NE(device_->capture_status(captured).id, 0u);
  EXPECT_FALSE(device_->capture_status(other).capturing);
  EXPECT_FALSE(device_->capture_status(nullptr).capturing);
  EXPECT_EQ(subject_->end_capture(captured), 0);
  EXPECT_FALSE(device_->capture_status(captured).capturing);
}

TEST_P(DeviceContract, CapturesHaveDifferentIds) {
  const Stream stream = subject_->new_stream();
  subject_->begin_capture(stream);
  const auto first = device_->capture_status(stream).id;
  ASSERT_EQ(subject_->end_capture(stream), 0);
  subject_->begin_capture(stream);
  EXPECT_NE(device_->capture_status(stream).id, first);
  EXPECT_EQ(subject_->end_capture(stream), 0);
}

TEST_P(DeviceContract, MallocIsLegalDuringCapture) {
  const Stream stream = subject_->new_stream();
  subject_->begin_capture(stream);
  const auto address = device_->malloc(2 * kMiB);
  EXPECT_EQ(subject_->end_capture(stream), 0);
  ASSERT_TRUE(address);
  device_->free(*address);
}

TEST_P(DeviceContract, AskingAnEventDuringACaptureOfOthersIsLegal) {
  const Stream captured = subject_->new_stream();
  const Stream other = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->queue_work(other, kWork);
  device_->event_record(event, other);
  subject_->begin_capture(captured);
  EXPECT_FALSE(device_->event_query(event));
  const Event later = device_->event_create();
  subject_->pass(kSurelyDone);
  EXPECT_TRUE(device_->event_query(event));
  EXPECT_EQ(subject_->end_capture(captured), 0);
  device_->event_destroy(event);
  device_->event_destroy(later);
}

TEST_P(DeviceContract, SynchronizingDuringCaptureIsAnErrorAndSpoilsIt) {
  const Stream stream = subject_->new_stream();
  subject_->begin_capture(stream);
  EXPECT_EQ(code_of([&] { device_->synchronize(); }), 900);
  EXPECT_EQ(subject_->end_capture(stream), 901);
  device_->synchronize();
}

TEST_P(DeviceContract, AnEventRecordedInsideACaptureIsNotAnOrdinaryEvent) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->begin_capture(stream);
  device_->event_record(event, stream);
  EXPECT_EQ(subject_->end_capture(stream), 0);
  EXPECT_EQ(code_of([&] { device_->event_query(event); }), 907);
  device_->event_record(event, stream);
  device_->event_synchronize(event);
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
}

TEST_P(DeviceContract, WhatIsCopiedInCanBeCopiedOut) {
  constexpr std::size_t kBytes = 3 * kMiB;
  const Address address = device_->malloc(kBytes).value();
  auto* const host = static_cast<unsigned char*>(device_->host_malloc(kBytes));
  ASSERT_NE(host, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host) % 4096, 0u);
  for (std::size_t i = 0; i < kBytes; ++i) host[i] = static_cast<unsigned char>(i % 251);
  device_->copy_from_host(address, host, kBytes);
  std::fill_n(host, kBytes, static_cast<unsigned char>(1));
  device_->copy_to_host(host, address + kMiB, kMiB);
  EXPECT_EQ(host[0], kMiB % 251);
  EXPECT_EQ(host[kMiB - 1], (2 * kMiB - 1) % 251);
  EXPECT_EQ(host[kMiB], 1);
  device_->host_free(host);
  device_->free(address);
}

TEST_P(DeviceContract, FillWritesItsBytesAndNoOthersBehindWhatIsQueuedOnTheStream) {
  constexpr std::size_t kBytes = 3 * kMiB;
  const Address address = device_->malloc(kBytes).value();
  std::vector<unsigned char> host(kBytes, 1);
  device_->copy_from_host(address, host.data(), kBytes);
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->queue_work(stream, kWork);
  device_->fill(address + 5000, 0xA5, kMiB, stream);
  device_->event_record(event, stream);
  EXPECT_FALSE(device_->event_query(event));
  device_->event_synchronize(event);
  device_->copy_to_host(host.data(), address, kBytes);
  EXPECT_EQ(std::count(host.begin() + 5000, host.begin() + 5000 + kMiB, 0xA5), kMiB);
  EXPECT_EQ(std::count(host.begin(), host.end(), 1), kBytes - kMiB);
  device_->event_destroy(event);
  device_->free(address);
}

TEST_P(DeviceContract, FillOfNothingIsAnErrorAndWhileAStreamCapturesIsPartOfTheGraph) {
  const Address address = device_->malloc(2 * kMiB).value();
  const Stream stream = subject_->new_stream();
  EXPECT_EQ(code_of([&] { device_->fill(address, 0, 0, stream); }), 1);
  subject_->begin_capture(stream);
  device_->fill(address, 0, kMiB, stream);
  EXPECT_EQ(subject_->end_capture(stream), 0);
  device_->free(address);
}

TEST_P(DeviceContract, CopyMovesItsBytesBehindWhatIsQueuedOnTheStream) {
  constexpr std::size_t kBytes = 5 * kMiB;
  const Address first = device_->malloc(kBytes).value();
  const Address second = device_->malloc(kBytes).value();
  auto* const host = static_cast<unsigned char*>(device_->host_malloc(kBytes));
  for (std::size_t i = 0; i < kBytes; ++i) host[i] = static_cast<unsigned char>(i % 251);
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  subject_->queue_work(stream, kWork);
  device_->copy(CopyKind::from_host, first, reinterpret_cast<Address>(host), kBytes, stream);
  device_->copy(CopyKind::within_device, second + 1, first, kBytes - 1, stream);
  device_->event_record(event, stream);
  EXPECT_FALSE(device_->event_query(event));
  std::vector<unsigned char> seen(kBytes, 1);
  device_->copy(CopyKind::to_host, reinterpret_cast<Address>(seen.data()), second, kBytes, stream);
  EXPECT_EQ(seen[0], 0) << "a copy to pageable memory returned before it was done";
  EXPECT_TRUE(std::equal(seen.begin() + 1, seen.end(), host));
  device_->event_synchronize(event);
  device_->event_destroy(event);
  device_->host_free(host);
  device_->free(first);
  device_->free(second);
}

TEST_P(DeviceContract, CopyOfNothingIsAnErrorAndWhileAStreamCapturesIsPartOfTheGraph) {
  const Address address = device_->malloc(2 * kMiB).value();
  const Stream stream = subject_->new_stream();
  EXPECT_EQ(code_of([&] { device_->copy(CopyKind::within_device, address, address + kMiB, 0, stream); }), 1);
  const unsigned char one = 1;
  device_->copy_from_host(address + kMiB, &one, 1);
  subject_->begin_capture(stream);
  device_->copy(CopyKind::within_device, address, address + kMiB, kMiB, stream);
  EXPECT_EQ(subject_->end_capture(stream), 0);
  unsigned char seen = 2;
  device_->fill(address, 0, 1, stream);
  device_->synchronize();
  device_->copy_to_host(&seen, address, 1);
  EXPECT_EQ(seen, 0) << "a copy that was captured was done";
  device_->free(address);
}

TEST_P(DeviceContract, NewStreamsAreTheDevicesOwnAndWaitForNoOther) {
  const Stream busy = device_->new_stream();
  const Stream idle = device_->new_stream();
  EXPECT_NE(busy, idle);
  EXPECT_TRUE(device_->has_stream(busy));
  const std::uint64_t id = device_->stream_id(busy);
  EXPECT_TRUE(id == 0 || id != device_->stream_id(idle));
  subject_->queue_work(busy, kWork);
  const Event of_busy = device_->event_create();
  device_->event_record(of_busy, busy);
  for (const Stream other : {idle, Stream{nullptr}}) {
    const Event of_other = device_->event_create();
    device_->event_record(of_other, other);
    device_->event_synchronize(of_other);
    device_->event_destroy(of_other);
  }
  EXPECT_FALSE(device_->event_query(of_busy));
  device_->event_destroy(of_busy);
  device_->stream_destroy(busy);
  device_->stream_destroy(idle);
}

TEST_P(DeviceContract, WorkOfAStreamIsDoneAlthoughTheStreamIsDestroyed) {
  const Stream stream = device_->new_stream();
  const std::uint64_t id = device_->stream_id(stream);
  const Event event = device_->event_create();
  subject_->queue_work(stream, kWork);
  device_->event_record(event, stream);
  device_->stream_destroy(stream);
  EXPECT_FALSE(device_->event_query(event));
  device_->event_synchronize(event);
  device_->event_destroy(event);
  const Stream next = device_->new_stream();
  EXPECT_TRUE(id == 0 || id != device_->stream_id(next));
  device_->stream_destroy(next);
}

TEST_P(DeviceContract, StreamsThatCudaNamesForEachDeviceAreNotDestroyed) {
  for (const std::uintptr_t number : {0u, 1u, 2u}) {
    const auto named = reinterpret_cast<Stream>(number);  // null, cudaStreamLegacy, cudaStreamPerThread
    EXPECT_EQ(code_of([&] { device_->stream_destroy(named); }), 400);
    EXPECT_TRUE(device_->has_stream(named));
  }
}

TEST_P(DeviceContract, StreamsComeAndGoWhileAnotherCaptures) {
  const Stream capturing = subject_->new_stream();
  subject_->begin_capture(capturing);
  device_->stream_destroy(device_->new_stream());
  EXPECT_TRUE(device_->capture_status(capturing).capturing);
  EXPECT_EQ(subject_->end_capture(capturing), 0);
}

TEST_P(DeviceContract, ADeviceHasItsStreamsAndTheDefaultOne) {
  EXPECT_TRUE(device_->has_stream(subject_->new_stream()));
  EXPECT_TRUE(device_->has_stream(nullptr));
}

TEST_P(DeviceContract, HostMemoryOfNothingAndFreeOfWhatIsNoneAreErrors) {
  EXPECT_EQ(code_of([&] { device_->host_malloc(0); }), 1);
  EXPECT_EQ(code_of([&] { device_->host_free(nullptr); }), 1);
  int elsewhere = 0;
  EXPECT_NE(code_of([&] { device_->host_free(&elsewhere); }), 0);
}

TEST_P(VirtualMemoryContract, CopiesReachAcrossMappings) {
  const Address range = device_->reserve(2 * page_).value();
  const MemoryHandle handles[] = {device_->create(page_).value(), device_->create(page_).value()};
  for (std::size_t i = 0; i < 2; ++i) device_->map(range + i * page_, page_, handles[i]);
  device_->set_access(range, 2 * page_, {});
  char text[] = "side by side";
  device_->copy_from_host(range + page_ - 4, text, sizeof(text));
  std::fill(std::begin(text), std::end(text), '?');
  device_->copy_to_host(text, range + page_ - 4, sizeof(text));
  EXPECT_STREQ(text, "side by side");
  device_->unmap(range, 2 * page_);
  for (const MemoryHandle handle : handles) device_->release(handle);
  device_->unreserve(range, 2 * page_);
}

TEST_P(DeviceContract, ExportedMemoryHasAHandleThatItsOwnProcessCannotOpen) {
  const Address address = device_->malloc(2 * kMiB).value();
  const IpcHandle handle = device_->ipc_export(address);
  EXPECT_TRUE(
      std::any_of(std::begin(handle.bytes), std::end(handle.bytes), [](unsigned char byte) { return byte != 0; }));
  EXPECT_THROW(device_->ipc_import(handle), CudaError);
  device_->free(address);
}

TEST_P(ManagedMemoryContract, ManagedMemoryIsWrittenAndReadAndFreed) {
  const Address address = device_->malloc_managed(4 * kMiB).value();
  EXPECT_EQ(address % 512, 0u);
  const Stream stream = subject_->new_stream();
  device_->fill(address, 7, 4 * kMiB, stream);
  device_->synchronize();
  unsigned char seen = 0;
  device_->copy_to_host(&seen, address + 4 * kMiB - 1, 1);
  EXPECT_EQ(seen, 7);
  device_->free(address);
  EXPECT_NE(code_of([&] { device_->free(address); }), 0);
}

TEST_P(ManagedMemoryContract, ManagedMemoryOfNothingIsAnError) {
  EXPECT_EQ(code_of([&] { device_->malloc_managed(0); }), 1);
}

TEST_P(ManagedMemoryContract, TooMuchManagedMemoryIsNoValue) {
  EXPECT_GE(device_->properties().managed_bytes, device_->properties().total_bytes);
  EXPECT_EQ(device_->malloc_managed(2 * device_->properties().managed_bytes), std::nullopt);
}

TEST_P(ManagedMemoryContract, ManagedMemoryIsAllocatedWhileAStreamCaptures) {
  const Stream stream = subject_->new_stream();
  subject_->begin_capture(stream);
  const auto address = device_->malloc_managed(2 * kMiB);
  EXPECT_EQ(subject_->end_capture(stream), 0);
  ASSERT_TRUE(address);
  device_->free(*address);
}

TEST_P(ManagedMemoryContract, FreeOfManagedMemoryWaitsForAllWork) {
  const Stream stream = subject_->new_stream();
  const Event event = device_->event_create();
  const Address address = device_->malloc_managed(2 * kMiB).value();
  subject_->queue_work(stream, kWork);
  device_->event_record(event, stream);
  device_->free(address);
  EXPECT_TRUE(device_->event_query(event));
  device_->event_destroy(event);
}

TEST_P(ManagedMemoryContract, ManagedMemoryHasNoHandleForOtherProcesses) {
  const Address address = device_->malloc_managed(2 * kMiB).value();
  EXPECT_EQ(code_of([&] { device_->ipc_export(address); }), 1);
  device_->free(address);
}

TEST_P(DeviceContract, ClosingWhatWasNotImportedIsAnError) {
  const Address address = device_->malloc(2 * kMiB).value();
  EXPECT_THROW(device_->ipc_close(address), CudaError);
  device_->free(address);
}

TEST_P(DeviceContract, TheClockDoesNotRunBackwards) {
  const std::int64_t before = device_->clock_us();
  subject_->pass(2ms);
  EXPECT_GE(device_->clock_us(), before + 1000);
}

}  // namespace
}  // namespace cachalot
