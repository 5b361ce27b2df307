#include "tests/soak/worker.h"

#include <chrono>
#include <utility>

#include "device/addresses.h"

namespace cachalot {
namespace {

constexpr int kStepsAStretch = 64;
constexpr std::int64_t kWorkNs = 50'000;
constexpr std::size_t kWarmUpBlocks = 4096;
constexpr std::size_t kMostTensors = 16;
constexpr std::size_t kMostBuffers = 16;
constexpr int kOutOfMemoryCode = 2;  // cudaErrorMemoryAllocation: what calls that give no memory fail with

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

template <typename Call>
void timed(Latencies& latencies, Call&& call) {
  const std::uint64_t begin = now_ns();
  call();
  latencies.add(now_ns() - begin);
}

}  // namespace

void SoakWorker::run() {
  try {
    while (!world_.is_over()) {
      const auto work = world_.work();
      for (int i = 0; i < kStepsAStretch; ++i) step();
      figures_.operations += kStepsAStretch;
    }
  } catch (const std::exception& error) {  // a hazard, say
    world_.trouble(error.what());
  }
}

// Tables keep the size that the most blocks, events and work ever at once gave them. After this, what still grows is
// lost, and no record.
void SoakWorker::warm_up() {
  for (std::size_t i = 0; i < kWarmUpBlocks; ++i) {
    allocate(1 + below(32 * kKiB));
    use_elsewhere(blocks_.back());
  }
  while (!blocks_.empty()) deallocate(below(blocks_.size()));
}

void SoakWorker::give_up() {
  while (!blocks_.empty()) deallocate(blocks_.size() - 1);
  while (const auto block = world_.collect()) {
    blocks_.push_back(*block);
    deallocate(0);
  }
  for (PooledTensor& tensor : tensors_) world_.device().given_back(as_address(tensor.data()));
  tensors_.clear();
  for (void* buffer : buffers_) world_.host().deallocate(buffer);
  buffers_.clear();
}

// Allows the errors that a user of a full and sometimes failing GPU must live with, and no others.
template <typename Action>
bool SoakWorker::attempt(Action&& action) {
  try {
    action();
    return true;
  } catch (const OutOfMemory&) {
    ++figures_.out_of_memory;
  } catch (const CudaError& error) {
    ++figures_.failed_calls;
    if (error.code() != kInjectedCode && error.code() != kOutOfMemoryCode) world_.trouble(error.what());
  }
  return false;
}

void SoakWorker::step() {
  const std::size_t dice = below(100);
  if (dice < 42 || blocks_.empty()) return allocate(some_size());
  if (dice < 76) return deallocate(below(blocks_.size()));
  if (dice < 85) return use_elsewhere(blocks_[below(blocks_.size())]);
  if (dice < 90) return exchange();
  if (dice < 95) return use_pool();
  use_host_memory();
}

// Most are small, most bytes are in large ones.
std::size_t SoakWorker::some_size() {
  const std::size_t dice = below(100);
  if (dice < 70) return 1 + below(64 * kKiB);
  if (dice < 95) return 1 + below(4 * kMiB);
  return 1 + below(64 * kMiB);
}

// Some memory is aligned, some lies in one handle, and some does both.
AllocateOptions SoakWorker::some_place() {
  const std::size_t dice = below(24);
  return {.contiguous = dice < 2,
          .alignment = dice == 1 || dice == 2 ? std::size_t{512} << below(13) : kUsualAlignment};
}

void SoakWorker::allocate(std::size_t bytes) {
  const AllocateOptions place = some_place();
  const SoakBlock wanted{.bytes = bytes, .stream = some_stream()};
  const std::uint64_t before = figures_.out_of_memory;
  attempt([&] {
    SoakBlock block = wanted;
    timed(figures_.allocate, [&] { block.ptr = world_.allocator().allocate(block.bytes, 0, block.stream, place); });
    if (as_address(block.ptr) % place.alignment != 0) world_.trouble("aligned memory begins elsewhere");
    if (place.contiguous && world_.allocator().handle_count(block.ptr) > 1)
      world_.trouble("contiguous memory lies in several handles");
    world_.device().handed_out(as_address(block.ptr), block.bytes, block.stream);
    blocks_.push_back(block);
    world_.device().launch(block.stream, kWorkNs, {{as_address(block.ptr), block.bytes}});
  });
  if (figures_.out_of_memory > before) make_room();
}

void SoakWorker::make_room() {
  for (std::size_t i = 0, count = 1 + blocks_.size() / 20; i < count && !blocks_.empty(); ++i) {
    deallocate(below(blocks_.size()));
  }
}

void SoakWorker::deallocate(std::size_t which) {
  SoakBlock& block = blocks_[which];
  if (!block.given_back) world_.device().given_back(as_address(block.ptr));
  block.given_back = true;
  if (!attempt([&] { timed(figures_.deallocate, [&] { world_.allocator().deallocate(block.ptr); }); })) return;
  block = blocks_.back();
  blocks_.pop_back();
}

// In the block's order, and announced.
void SoakWorker::use_elsewhere(SoakBlock& block) {
  if (block.given_back) return;
  const Stream other = some_stream();
  SimulatedDevice& device = world_.device();
  Event event = nullptr;
  if (!attempt([&] { event = device.event_create(); })) return;
  attempt([&] {
    device.event_record(event, block.stream);
    device.stream_wait(other, event);
    world_.allocator().record_stream(block.ptr, other);
    device.launch(other, kWorkNs, {{as_address(block.ptr), block.bytes}});
  });
  while (!attempt([&] { device.event_destroy(event); })) {
  }
}

void SoakWorker::exchange() {
  if (const auto block = world_.collect()) blocks_.push_back(*block);
  world_.post(blocks_.back());
  blocks_.pop_back();
}

void SoakWorker::use_pool() {
  if (tensors_.size() == kMostTensors || (!tensors_.empty() && below(2) == 0)) {
    std::swap(tensors_[below(tensors_.size())], tensors_.back());
    world_.device().given_back(as_address(tensors_.back().data()));
    tensors_.pop_back();
    return;
  }
  attempt([&] {
    PooledTensor tensor = world_.pool().acquire(some_stream());
    world_.device().handed_out(as_address(tensor.data()), tensor.bytes(), tensor.stream());
    world_.device().launch(tensor.stream(), kWorkNs, {{as_address(tensor.data()), tensor.bytes()}});
    tensors_.push_back(std::move(tensor));
  });
}

void SoakWorker::use_host_memory() {
  if (buffers_.size() == kMostBuffers || (!buffers_.empty() && below(2) == 0)) {
    std::swap(buffers_[below(buffers_.size())], buffers_.back());
    if (attempt([&] { world_.host().deallocate(buffers_.back()); })) buffers_.pop_back();
    return;
  }
  attempt([&] {
    void* const buffer = world_.host().allocate(1 + below(kMiB));
    buffers_.push_back(buffer);
    const Stream stream = some_stream();
    world_.host().record_stream(buffer, stream);
    world_.device().launch(stream, kWorkNs);
  });
}

}  // namespace cachalot
