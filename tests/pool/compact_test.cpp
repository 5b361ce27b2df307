// TensorPool with a mover: what compact moves and frees, what waits for what, and that a failing call loses nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cachalot/dlpack.h"
#include "cachalot/pool_set.h"
#include "pool/dlpack_abi.h"
#include "tests/allocator/moving_kernels.h"
#include "tests/pool/testing.h"

namespace cachalot {
namespace {

using Bytes = std::vector<unsigned char>;
constexpr std::size_t kFew = 1000;
const TensorSpec kFewBytes = {{kFew}, DType::int8};

// Slabs of four. The mover queues its copies and tells the hazard checker of them, as work of a GPU.
struct CompactWorld : World {
  explicit CompactWorld(TensorPoolOptions options = {.growth_step = 4})
      : World(PoolWorld::config()), mover(std::make_shared<MovingKernels>(device)), pool(make(options)) {}
  ~CompactWorld() { EXPECT_EQ(pool->validate(), ""); }

  std::unique_ptr<TensorPool> make(TensorPoolOptions options) {
    options.mover = mover;
    return std::make_unique<TensorPool>(allocator, kFewBytes, options);
  }
  PooledTensor acquire(Stream stream) {
    PooledTensor tensor = pool->acquire(stream);
    device->handed_out(address(tensor.data()), kFew, stream);
    use(tensor, stream);
    return tensor;
  }
  void use(const PooledTensor& tensor, Stream on) { device->launch(on, 1'000'000, {{address(tensor.data()), kFew}}); }
  void release(PooledTensor& tensor) {
    device->given_back(address(tensor.data()));
    tensor.release();
  }
  std::vector<PooledTensor> acquire_many(std::size_t count, Stream stream = nullptr) {
    std::vector<PooledTensor> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(acquire(stream));
    return tensors;
  }
  // Those that are left, before the device goes.
  void release(std::vector<PooledTensor>& tensors) {
    for (PooledTensor& tensor : tensors) {
      if (tensor) release(tensor);
    }
  }
  void write(const PooledTensor& tensor, unsigned char value) {
    const Bytes bytes(kFew, value);
    device->copy_from_host(address(tensor.data()), bytes.data(), kFew);
  }
  void expect_content(const PooledTensor& tensor, unsigned char value) {
    Bytes bytes(kFew);
    device->copy_to_host(bytes.data(), address(tensor.data()), kFew);
    EXPECT_EQ(bytes, Bytes(kFew, value));
  }
  // Leaves the tensors with these numbers, each full of its own.
  void keep_only(std::vector<PooledTensor>& tensors, const std::vector<std::size_t>& numbers) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      write(tensors[i], static_cast<unsigned char>(i + 1));
      if (!std::ranges::count(numbers, i)) release(tensors[i]);
    }
  }
  std::size_t slab_bytes() const { return pool->stats().bytes / (pool->stats().slots / 4); }

  std::shared_ptr<MovingKernels> mover;
  std::unique_ptr<TensorPool> pool;
};

TEST(PoolCompact, TensorsOfSparseSlabsMoveTogetherAndTheSlabsGoBack) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(16);
  const std::size_t slab_bytes = world.slab_bytes();
  world.keep_only(tensors, {0, 1, 2, 5, 10});  // three, one, one, none
  const void* const stays = tensors[0].data();
  const CompactReport report = world.pool->compact();
  EXPECT_EQ(report.blocks_moved, 1u);  // into the first slab; the other has a slab of its own
  EXPECT_EQ(report.bytes_moved, kFew);
  EXPECT_EQ(report.bytes_freed, 2 * slab_bytes);
  EXPECT_EQ(world.pool->stats().slots, 8u);
  EXPECT_EQ(world.pool->stats().live, 5u);
  EXPECT_EQ(tensors[0].data(), stays);
  for (const std::size_t i : {0u, 1u, 2u, 5u, 10u}) world.expect_content(tensors[i], static_cast<unsigned char>(i + 1));
  EXPECT_EQ(world.pool->validate(), "");
  world.release(tensors);
  EXPECT_EQ(world.pool->compact().bytes_freed, 2 * slab_bytes);
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(PoolCompact, TrimOfAPoolWithAMoverMovesTensorsAndKeepsAsManyFreeSlotsAsAskedFor) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(16);
  const std::size_t slab_bytes = world.slab_bytes();
  world.keep_only(tensors, {0, 4, 8, 12});
  EXPECT_EQ(world.pool->trim(9), 0u);
  EXPECT_EQ(world.mover->moved(), 0u);
  EXPECT_EQ(world.pool->trim(5), slab_bytes);
  EXPECT_EQ(world.mover->moved(), 1u);
  EXPECT_EQ(world.pool->trim(), 2 * slab_bytes);
  EXPECT_EQ(world.pool->stats().slots, 4u);
  for (const std::size_t i : {0u, 4u, 8u, 12u}) world.expect_content(tensors[i], static_cast<unsigned char>(i + 1));
  world.release(tensors);
}

TEST(PoolCompact, AHandleIsFoundWhereverItWasMovedTo) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 4});
  const PooledTensor constant = std::move(tensors[4]);
  const void* const before = constant.data();
  tensors.erase(tensors.begin() + 2, tensors.end());
  tensors.shrink_to_fit();
  auto held = std::make_unique<PooledTensor>(std::move(tensors[0]));
  tensors[0] = std::move(tensors[1]);
  EXPECT_EQ(world.pool->compact().blocks_moved, 1u);
  EXPECT_NE(constant.data(), before);
  world.expect_content(*held, 1);
  world.expect_content(tensors[0], 2);
  world.expect_content(constant, 5);
  for (const void* data : {held->data(), tensors[0].data(), constant.data()}) world.device->given_back(address(data));
}

// An empty tensor still names the slot that it had, which is another's now.
TEST(PoolCompact, ATensorThatIsEmptyIsInNoSlot) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 2, 4});
  PooledTensor empty = std::move(tensors[4]);
  world.release(empty);
  PooledTensor tensor = world.acquire(nullptr);
  world.write(tensor, 5);
  PooledTensor elsewhere = std::move(empty);
  empty = std::move(elsewhere);
  EXPECT_EQ(empty.fixed_data(), nullptr);
  elsewhere = PooledTensor();
  EXPECT_EQ(world.pool->validate(), "");
  EXPECT_EQ(world.pool->compact().blocks_moved, 1u);
  world.expect_content(tensor, 5);
  world.release(tensor);
  world.release(tensors);
}

TEST(PoolCompact, ATensorWhoseAddressIsFixedStaysAndSoDoesItsSlab) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 4});
  const void* const fixed = tensors[4].fixed_data();
  const CompactReport report = world.pool->compact();
  EXPECT_EQ(tensors[4].data(), fixed);
  EXPECT_EQ(report.blocks_moved, 2u);  // the others come to it
  world.release(tensors[4]);
  tensors[4] = world.acquire(nullptr);  // another use of the slot is not fixed
  EXPECT_EQ(world.pool->stats().slots, 4u);
  world.release(tensors);
  PooledTensor empty;
  EXPECT_EQ(empty.fixed_data(), nullptr);
}

TEST(PoolCompact, AnExportedTensorStaysWhereItsConsumerKnowsIt) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 4});
  const void* const known = tensors[4].data();
  const auto shared = std::make_shared<PooledTensor>(std::move(tensors[4]));
  DLManagedTensorVersioned* const exported = to_dlpack(shared);
  EXPECT_EQ(world.pool->compact().blocks_moved, 2u);
  EXPECT_EQ(shared->data(), known);
  EXPECT_EQ(exported->dl_tensor.data, known);
  exported->deleter(exported);
  world.release(*shared);
  world.release(tensors);
}

TEST(PoolCompact, NothingMovesWhereNoSlabCanBeEmptied) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 2, 4, 5});
  const CompactReport report = world.pool->compact();
  EXPECT_EQ(report.blocks_moved + report.bytes_moved + report.bytes_freed, 0u);
  EXPECT_EQ(world.pool->stats().slots, 8u);
  world.release(tensors);
}

TEST(PoolCompact, APoolWithoutAMoverOrThatNeverGrowsMovesNothing) {
  World world;
  TensorPool fixed(world.allocator, kSpec);
  EXPECT_CONTAINS(refusal([&] { fixed.compact(); }), "cannot be moved without a mover");
  CompactWorld never({.initial_slots = 8, .when_empty = WhenEmpty::fail});
  EXPECT_EQ(never.pool->compact().bytes_freed, 0u);
  EXPECT_EQ(never.pool->stats().slots, 8u);
  EXPECT_CONTAINS(refusal([&] { PoolSet(world.allocator, kGiB, {.mover = never.mover}); }), "have a mover");
}

TEST(PoolCompact, AnAllocatorThatIsGoneIsNoticed) {
  const auto device = std::make_shared<SimulatedDevice>(World::config_of(kGiB));
  auto allocator = std::make_unique<CachingAllocator>(std::vector<std::shared_ptr<Device>>{device});
  TensorPool pool(*allocator, kFewBytes, {.growth_step = 4, .mover = host_kernels(device)});
  const PooledTensor tensor = pool.acquire();
  allocator.reset();
  EXPECT_CONTAINS(refusal([&] { pool.compact(); }), "the pool's allocator is gone");
}

TEST(PoolCompact, TensorsMayComeFromOtherThreadsAndFreeSlotsLieInTheirStacks) {
  World world;
  TensorPool pool(world.allocator, kFewBytes, {.growth_step = 4, .mover = host_kernels(world.device)});
  std::vector<PooledTensor> tensors;
  std::promise<void> taken, compacted;
  std::thread other([&] {
    for (int i = 0; i < 32; ++i) tensors.push_back(pool.acquire());
    std::erase_if(tensors, [i = 0](const PooledTensor&) mutable { return i++ % 8 != 0; });
    taken.set_value();
    compacted.get_future().wait();
    tensors.clear();
  });
  taken.get_future().wait();
  EXPECT_EQ(pool.compact().blocks_moved, 3u);
  EXPECT_EQ(pool.stats().slots, 4u);
  EXPECT_EQ(pool.stats().live, 4u);
  compacted.set_value();
  other.join();
  pool.trim();
  EXPECT_EQ(world.allocated(), 0u);
}

TEST(PoolCompact, StreamsWaitOnTheGpuAndTheHostForNothing) {
  CompactWorld world;
  const Stream a = world.device->stream();
  const Stream b = world.device->stream();
  std::vector<PooledTensor> of_a = world.acquire_many(4, a);
  std::vector<PooledTensor> of_b = world.acquire_many(4, b);
  for (PooledTensor* tensor : {&of_a[2], &of_a[3], &of_b[1], &of_b[2], &of_b[3]}) world.release(*tensor);
  EXPECT_EQ(world.pool->compact().blocks_moved, 1u);  // b's tensor into a slot that a has used last
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  EXPECT_EQ(of_b[0].stream(), b);
  EXPECT_EQ(world.count(DeviceCall::synchronize) + world.count(DeviceCall::event_synchronize), 0u);
  world.release(of_b[0]);
  PooledTensor next = world.acquire(a);  // throws where b's work may still use it
  world.release(next);
  world.release(of_a);
}

TEST(PoolCompact, RecordedStreamsAreFollowedAndGoAlong) {
  CompactWorld world;
  const Stream a = world.device->stream();
  const Stream b = world.device->stream();
  std::vector<PooledTensor> tensors = world.acquire_many(8, a);
  world.keep_only(tensors, {0, 1, 2, 4});
  world.use(tensors[4], b);
  tensors[4].record_stream(b);
  EXPECT_EQ(world.pool->compact().blocks_moved, 1u);
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  world.use(tensors[4], b);  // as its owner goes on doing
  world.release(tensors[4]);
  PooledTensor next = world.acquire(a);
  EXPECT_EQ(world.pool->stats().stream_waits, 2u);
  world.release(next);
  world.release(tensors);
}

TEST(PoolCompact, TensorsOfACapturingStreamStay) {
  CompactWorld world;
  const Stream a = world.device->stream();
  const Stream b = world.device->stream();
  std::vector<PooledTensor> of_a = world.acquire_many(4, a);
  std::vector<PooledTensor> of_b = world.acquire_many(4, b);
  for (const std::size_t i : {1u, 2u, 3u}) {
    if (i > 1) world.release(of_a[i]);
    world.release(of_b[i]);
  }
  const void* const before = of_b[0].data();
  for (const Stream capturing : {a, b}) {
    world.device->begin_capture(capturing);
    EXPECT_EQ(world.pool->compact().blocks_moved, 0u);  // neither from b's nor to a's
    EXPECT_NO_THROW(world.device->end_capture(capturing));
    EXPECT_EQ(of_b[0].data(), before);
    EXPECT_EQ(world.pool->validate(), "");
  }
  EXPECT_EQ(world.pool->compact().blocks_moved, 1u);
  world.release(of_a);
  world.release(of_b);
}

// With the host twin, as users have it.
TEST(PoolCompact, TheHostTwinCopiesAfterTheTensorsWork) {
  World world;
  const Stream stream = world.device->stream();
  TensorPool pool(world.allocator, kFewBytes, {.growth_step = 2, .mover = host_kernels(world.device)});
  std::vector<PooledTensor> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(pool.acquire(stream));
  const Bytes content(kFew, 9);
  world.device->copy_from_host(address(tensors[0].data()), content.data(), kFew);
  const std::int64_t done = world.device->launch(stream, 1'000'000);
  tensors.erase(tensors.begin() + 1);
  tensors.pop_back();
  EXPECT_EQ(pool.compact().blocks_moved, 1u);
  EXPECT_GE(world.device->clock_ns(), done);
  Bytes held(kFew);
  world.device->copy_to_host(held.data(), address(tensors[0].data()), kFew);
  EXPECT_EQ(held, content);
}

// Every device call that it makes fails once, each in its turn; the tensors are whole, and the next call completes it.
TEST(PoolCompact, AfterAnyFailingCallEachTensorIsWholeAndTheBooksBalance) {
  std::uint64_t nth = 0;
  for (bool struck = true; struck;) {
    SCOPED_TRACE(++nth);
    CompactWorld world;
    const Stream a = world.device->stream();
    const Stream b = world.device->stream();
    std::vector<PooledTensor> tensors = world.acquire_many(6, a);
    for (PooledTensor& tensor : world.acquire_many(6, b)) tensors.push_back(std::move(tensor));
    const std::size_t slab_bytes = world.slab_bytes();
    world.keep_only(tensors, {0, 5, 9});
    world.use(tensors[5], b);
    tensors[5].record_stream(b);
    world.device->set_faults({{.nth = nth, .out_of_memory = false, .code = 999}});
    try {
      world.pool->compact();
    } catch (const CudaError& error) {
      EXPECT_EQ(error.code(), 999);
    }
    struck = world.device->faults_injected() > 0;
    world.device->set_faults({});
    EXPECT_EQ(world.pool->validate(), "");
    world.pool->compact();
    EXPECT_EQ(world.pool->stats().bytes, slab_bytes);
    EXPECT_EQ(world.pool->stats().live, 3u);
    for (const std::size_t i : {0u, 5u, 9u}) {
      world.expect_content(tensors[i], static_cast<unsigned char>(i + 1));
      world.release(tensors[i]);
    }
    world.pool->trim();
    EXPECT_EQ(world.allocated(), 0u);
  }
  EXPECT_GT(nth, 8u);
}

// The tensors of one stream wait for two others, of which the second cannot be waited for.
TEST(PoolCompact, PlacesAreFreeAgainWhereOnlySomeTensorsCouldBePutInOrder) {
  CompactWorld world;
  std::vector<PooledTensor> tensors = world.acquire_many(8);
  world.keep_only(tensors, {0, 1, 4, 5});
  for (const std::size_t i : {0u, 1u, 4u, 5u}) {
    const Stream other = world.device->stream();
    world.use(tensors[i], other);
    tensors[i].record_stream(other);
  }
  world.device->set_faults({{.call = DeviceCall::stream_wait, .nth = 2, .out_of_memory = false, .code = 999}});
  EXPECT_THROW(world.pool->compact(), CudaError);
  EXPECT_EQ(world.device->faults_injected(), 1u);
  EXPECT_EQ(world.pool->stats().stream_waits, 1u);
  EXPECT_EQ(world.pool->validate(), "");
  world.device->set_faults({});
  EXPECT_EQ(world.pool->compact().blocks_moved, 2u);
  for (const std::size_t i : {0u, 1u, 4u, 5u}) world.expect_content(tensors[i], static_cast<unsigned char>(i + 1));
  world.release(tensors);
}

// Random work on several streams, of which every use, and every move, is known to the checker.
TEST(PoolCompact, NoHazardAndNoLossInRandomPrograms) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return random() % n; };
    CompactWorld world(
        {.max_slots = 40, .growth_step = 2 + below(6), .on_reuse = below(2) == 0 ? OnReuse::keep : OnReuse::zero});
    const std::vector<Stream> streams = {nullptr, world.device->stream(), world.device->stream(),
                                         world.device->stream()};
    std::vector<std::pair<PooledTensor, unsigned char>> live;
    for (int i = 0; i < 400; ++i) {
      if (live.size() < 40 && below(2) == 0) {
        live.emplace_back(world.acquire(streams[below(4)]), static_cast<unsigned char>(i));
        world.write(live.back().first, live.back().second);
      } else if (!live.empty()) {
        auto& [tensor, value] = live[below(live.size())];
        world.expect_content(tensor, value);
        if (below(4) == 0) tensor.record_stream(streams[below(4)]);
        world.release(tensor);
        std::swap(live.back(), *std::ranges::find_if(live, [](const auto& entry) { return !entry.first; }));
        live.pop_back();
      }
      if (below(20) == 0) world.pool->compact(below(6));
      ASSERT_EQ(world.pool->validate(), "");
    }
    for (auto& [tensor, value] : live) {
      world.expect_content(tensor, value);
      world.release(tensor);
    }
  }
}

}  // namespace
}  // namespace cachalot
