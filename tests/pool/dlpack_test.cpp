// DLPack: pooled tensors for others, released in any thread and at any time; others' tensors as views.
#include "cachalot/dlpack.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "pool/dlpack_abi.h"
#include "tests/pool/testing.h"

namespace cachalot {
namespace {

using Shape = std::vector<std::int64_t>;

template <typename Managed>
void delete_by_deleter(Managed* managed) {
  managed->deleter(managed);
}

// Another library's tensor, [2, 3] of float32 unless changed, that counts the calls of its deleter.
struct Foreign {
  Foreign() {
    managed.version = {1, 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    managed.dl_tensor = describe();
    unversioned.dl_tensor = describe();
    unversioned.manager_ctx = this;
    unversioned.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;

  DLTensor describe() {
    return {memory.data(),
            {kDLCUDA, 1},
            static_cast<std::int32_t>(shape.size()),
            {kDLFloat, 32, 1},
            shape.data(),
            strides.data(),
            0};
  }
  // Returns the message of from_dlpack; the tensor stays the test's.
  std::string refused() {
    const std::string message = refusal([this] { from_dlpack(&managed); });
    EXPECT_EQ(deleted, 0);
    return message;
  }

  std::array<char, 64> memory = {};
  Shape shape = {2, 3};
  Shape strides = {3, 1};
  DLManagedTensorVersioned managed = {};
  DLManagedTensor unversioned = {};
  int deleted = 0;
};

// --- to_dlpack -------------------------------------------------------------------------------------------------------

TEST(DLPackExport, AnExportSaysWhatTheTensorIs) {
  PoolWorld world({}, {{2, 3, 5}, DType::float32});
  PooledTensor tensor = world.pool.acquire();
  void* const data = tensor.data();
  DLManagedTensorVersioned* managed = to_dlpack(std::move(tensor));
  EXPECT_FALSE(tensor);
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  const DLTensor& exported = managed->dl_tensor;
  EXPECT_EQ(exported.data, data);
  EXPECT_EQ(exported.byte_offset, 0u);
  EXPECT_EQ(exported.device.device_type, kDLCUDA);
  EXPECT_EQ(exported.device.device_id, 0);
  ASSERT_EQ(exported.ndim, 3);
  EXPECT_EQ(Shape(exported.shape, exported.shape + 3), (Shape{2, 3, 5}));
  EXPECT_EQ(Shape(exported.strides, exported.strides + 3), (Shape{15, 5, 1}));
  EXPECT_EQ(exported.dtype.code, kDLFloat);
  EXPECT_EQ(exported.dtype.bits, 32);
  EXPECT_EQ(exported.dtype.lanes, 1);
  EXPECT_EQ(world.pool.stats().live, 1u);
  delete_by_deleter(managed);
  EXPECT_EQ(world.pool.stats().live, 0u);
  EXPECT_EQ(world.pool.acquire().data(), data);
}

TEST(DLPackExport, EveryTypeComesBackAsWhatItWas) {
  World world(kGiB);
  for (const std::string_view name : dtype_names()) {
    const TensorSpec spec{{4, 2}, dtype_named(name)};
    TensorPool pool(world.allocator, spec);
    PooledTensor tensor = pool.acquire();
    void* const data = tensor.data();
    const ForeignTensor versioned = from_dlpack(to_dlpack(std::move(tensor)));
    EXPECT_EQ(versioned.spec(), spec) << name;
    EXPECT_EQ(versioned.data(), data);
    EXPECT_TRUE(versioned.is_contiguous());
    EXPECT_FALSE(versioned.is_read_only());
    EXPECT_EQ(from_dlpack(to_dlpack_unversioned(pool.acquire())).spec(), spec) << name;
    EXPECT_EQ(pool.stats().live, 1u);
  }
}

TEST(DLPackExport, ATensorOfOneElementHasNoDimensions) {
  PoolWorld world({}, {{}, DType::int64});
  DLManagedTensor* managed = to_dlpack_unversioned(world.pool.acquire());
  EXPECT_EQ(managed->dl_tensor.ndim, 0);
  EXPECT_EQ(from_dlpack(managed).spec(), (TensorSpec{{}, DType::int64}));
}

TEST(DLPackExport, AnEmptyTensorIsRefused) {
  PoolWorld world;
  PooledTensor tensor = world.pool.acquire();
  tensor.release();
  EXPECT_CONTAINS(refusal([&] { to_dlpack(std::move(tensor)); }), "empty");
  EXPECT_CONTAINS(refusal([&] { to_dlpack(std::shared_ptr<PooledTensor>()); }), "null");
  EXPECT_CONTAINS(refusal([&] { tensor.share_with(nullptr); }), "share_with of a tensor that is empty");
}

TEST(DLPackExport, TheLastOfSeveralConsumersGivesItBack) {
  PoolWorld world;
  auto tensor = std::make_shared<PooledTensor>(world.pool.acquire());
  DLManagedTensorVersioned* first = to_dlpack(tensor);
  DLManagedTensor* second = to_dlpack_unversioned(tensor);
  EXPECT_EQ(tensor.use_count(), 3);
  tensor.reset();
  delete_by_deleter(first);
  EXPECT_EQ(world.pool.stats().live, 1u);
  delete_by_deleter(second);
  EXPECT_EQ(world.pool.stats().live, 0u);
}

TEST(DLPackExport, ADeleterMayBeCalledInAnotherThread) {
  PoolWorld world;
  for (int i = 0; i < 3; ++i) {
    DLManagedTensorVersioned* managed = to_dlpack(world.pool.acquire());
    on_another_thread([&] { delete_by_deleter(managed); });
    EXPECT_EQ(world.pool.stats().live, 0u);
  }
  EXPECT_EQ(world.pool.stats().allocations, 1u);
}

TEST(DLPackExport, ManyThreadsExportAndLetGo) {
  PoolWorld world({.max_slots = 4, .when_empty = WhenEmpty::wait});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) {
        auto tensor = std::make_shared<PooledTensor>(world.pool.acquire());
        DLManagedTensorVersioned* first = to_dlpack(tensor);
        std::thread consumer([first] { delete_by_deleter(first); });
        delete_by_deleter(to_dlpack(std::move(tensor)));
        consumer.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.pool.stats().live, 0u);
  EXPECT_LE(world.pool.stats().slots, 4u);
}

TEST(DLPackExport, ADeleterOutlivesThePoolAndItsAllocator) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  auto allocator = std::make_unique<CachingAllocator>(std::vector<std::shared_ptr<Device>>{device});
  auto pool = std::make_unique<TensorPool>(*allocator, kSpec);
  DLManagedTensorVersioned* first = to_dlpack(pool->acquire());
  DLManagedTensorVersioned* second = to_dlpack(pool->acquire());
  pool.reset();
  delete_by_deleter(first);
  EXPECT_GT(allocator->memory_allocated(), 0u);
  allocator.reset();
  delete_by_deleter(second);
}

// --- streams ---------------------------------------------------------------------------------------------------------

TEST(DLPackStreams, TheConsumersStreamComesAfterTheProducersWorkAndBeforeTheNextUsers) {
  PoolWorld world({.max_slots = 1});
  const Stream producer = world.device->new_stream();
  const Stream consumer = world.device->new_stream();
  PooledTensor tensor = world.acquire_checked(producer);
  world.use(tensor);
  tensor.share_with(consumer);
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
  world.use(tensor, consumer);
  world.device->given_back(address(tensor.data()));
  delete_by_deleter(to_dlpack(std::move(tensor)));
  tensor = world.acquire_checked(producer);  // throws where the consumer may still use it
  EXPECT_EQ(world.pool.stats().stream_waits, 2u);
  world.release_checked(tensor);
}

TEST(DLPackStreams, TheOwnStreamNeedsNoSharing) {
  PoolWorld world;
  const Stream stream = world.device->new_stream();
  PooledTensor tensor = world.pool.acquire(stream);
  tensor.share_with(stream);
  tensor.release();
  world.pool.acquire(stream);
  EXPECT_EQ(world.count(DeviceCall::event_record), 0u);
  EXPECT_EQ(world.pool.stats().stream_waits, 0u);
}

TEST(DLPackStreams, ACaptureIsNotToBeJoined) {
  PoolWorld world;
  const Stream stream = world.device->new_stream();
  PooledTensor tensor = world.pool.acquire(stream);
  const Stream capturing = world.device->new_stream();
  world.device->begin_capture(capturing);
  EXPECT_CONTAINS(refusal([&] { tensor.share_with(capturing); }), "a stream captures");
  EXPECT_NO_THROW(world.device->end_capture(capturing));
  tensor.share_with(capturing);
  EXPECT_EQ(world.pool.stats().stream_waits, 1u);
}

// Every device call of sharing fails once, each in its turn: the tensor stays what it was.
TEST(DLPackStreams, ACallThatFailsLeavesTheTensorUnshared) {
  std::uint64_t nth = 0;
  bool struck = true;
  while (struck) {
    PoolWorld world;
    const Stream other = world.device->new_stream();
    PooledTensor tensor = world.pool.acquire(world.device->new_stream());
    world.device->set_faults({{.nth = ++nth, .out_of_memory = false, .code = 999}});
    try {
      tensor.share_with(other);
    } catch (const CudaError& error) {
      EXPECT_EQ(error.code(), 999);
      EXPECT_EQ(world.pool.stats().stream_waits, 0u);
    }
    struck = world.device->faults_injected() > 0;
    world.device->set_faults({});
    EXPECT_TRUE(tensor);
    tensor.share_with(other);
    delete_by_deleter(to_dlpack(std::move(tensor)));
    EXPECT_EQ(world.pool.stats().live, 0u);
  }
  EXPECT_GE(nth, 5u);  // two questions about captures, event_create, event_record, stream_wait; then none
}

// --- from_dlpack -----------------------------------------------------------------------------------------------------

TEST(DLPackImport, AForeignTensorIsSeenAndHandedBackOnce) {
  Foreign foreign;
  {
    ForeignTensor tensor = from_dlpack(&foreign.managed);
    EXPECT_TRUE(tensor);
    EXPECT_EQ(tensor.data(), foreign.memory.data());
    EXPECT_EQ(tensor.spec(), (TensorSpec{{2, 3}, DType::float32, 1}));
    const ForeignTensor moved = std::move(tensor);
    EXPECT_FALSE(tensor);
    EXPECT_EQ(tensor.data(), nullptr);
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPackImport, ItIsHandedBackTwiceByNobody) {
  Foreign foreign;
  ForeignTensor tensor = from_dlpack(&foreign.managed);
  tensor.release();
  EXPECT_EQ(foreign.deleted, 1);
  EXPECT_CONTAINS(refusal([&] { tensor.release(); }), "handed back already");
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPackImport, TheOldFormIsTakenToo) {
  Foreign foreign;
  EXPECT_EQ(from_dlpack(&foreign.unversioned).spec(), (TensorSpec{{2, 3}, DType::float32, 1}));
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPackImport, ADeleterThatIsNullIsNotCalled) {
  Foreign foreign;
  foreign.managed.deleter = nullptr;
  EXPECT_TRUE(from_dlpack(&foreign.managed));
}

TEST(DLPackImport, OffsetStridesAndFlagsAreSeen) {
  Foreign foreign;
  foreign.strides = {1, 2};
  foreign.managed.dl_tensor.byte_offset = 8;
  foreign.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  const ForeignTensor tensor = from_dlpack(&foreign.managed);
  EXPECT_EQ(tensor.data(), foreign.memory.data() + 8);
  EXPECT_EQ(tensor.strides(), (Shape{1, 2}));
  EXPECT_FALSE(tensor.is_contiguous());
  EXPECT_TRUE(tensor.is_read_only());
}

TEST(DLPackImport, NoStridesMeanRowMajorOrder) {
  Foreign foreign;
  foreign.managed.dl_tensor.strides = nullptr;
  const ForeignTensor tensor = from_dlpack(&foreign.managed);
  EXPECT_EQ(tensor.strides(), (Shape{3, 1}));
  EXPECT_TRUE(tensor.is_contiguous());
}

TEST(DLPackImport, TheStrideOfASingleElementSaysNothing) {
  Foreign foreign;
  foreign.shape = {1, 3};
  foreign.strides = {99, 1};
  EXPECT_TRUE(from_dlpack(&foreign.managed).is_contiguous());
}

TEST(DLPackImport, OtherDevicesAreRefusedByName) {
  Foreign foreign;
  DLDevice& device = foreign.managed.dl_tensor.device;
  device = {kDLCPU, 0};
  EXPECT_CONTAINS(foreign.refused(), "the tensor's device is kDLCPU: only memory of a CUDA device");
  device = {kDLCUDAHost, 0};
  EXPECT_CONTAINS(foreign.refused(), "kDLCUDAHost");
  device = {kDLCUDAManaged, 0};
  EXPECT_CONTAINS(foreign.refused(), "kDLCUDAManaged");
  device = {static_cast<DLDeviceType>(10), 0};
  EXPECT_CONTAINS(foreign.refused(), "DLPack's number 10");
  device = {kDLCUDA, -1};
  EXPECT_CONTAINS(foreign.refused(), "device is -1");
}

TEST(DLPackImport, OtherTypesAreRefused) {
  Foreign foreign;
  DLDataType& type = foreign.managed.dl_tensor.dtype;
  type = {kDLFloat, 32, 4};
  EXPECT_CONTAINS(foreign.refused(), "has 4 lanes");
  type = {17, 4, 1};  // float4_e2m1fn
  EXPECT_CONTAINS(foreign.refused(), "code 17 and 4 bits");
  type = {kDLFloat, 128, 1};
  EXPECT_CONTAINS(foreign.refused(), "code 2 and 128 bits");
}

TEST(DLPackImport, WhatIsNoTensorIsRefused) {
  EXPECT_CONTAINS(refusal([] { from_dlpack(static_cast<DLManagedTensor*>(nullptr)); }), "is null");
  EXPECT_CONTAINS(refusal([] { from_dlpack(static_cast<DLManagedTensorVersioned*>(nullptr)); }), "is null");
  Foreign foreign;
  foreign.managed.version = {2, 0};
  EXPECT_CONTAINS(foreign.refused(), "DLPack 2.0");
  foreign.managed.version = {1, 3};
  DLTensor& tensor = foreign.managed.dl_tensor;
  foreign.shape = {2, 0};
  EXPECT_CONTAINS(foreign.refused(), "an extent of 0");
  foreign.shape = {std::numeric_limits<std::int64_t>::max(), 16};
  EXPECT_CONTAINS(foreign.refused(), "1 EiB");
  tensor.ndim = -1;
  EXPECT_CONTAINS(foreign.refused(), "-1 dimensions");
  tensor = foreign.describe();
  tensor.shape = nullptr;
  EXPECT_CONTAINS(foreign.refused(), "a null shape");
  tensor = foreign.describe();
  tensor.data = nullptr;
  EXPECT_CONTAINS(foreign.refused(), "data is null");
}

}  // namespace
}  // namespace cachalot
