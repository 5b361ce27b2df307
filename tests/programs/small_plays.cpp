#include "tests/programs/small_plays.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/tensor_pool.h"
#include "tests/programs/small_player.h"

namespace cachalot {
namespace {

constexpr std::int64_t kWorkNs = 100'000;

class TensorPoolPlayer final : public SmallPlayer {
 public:
  TensorPoolPlayer(Bytes& bytes, const std::optional<Fault>& fault)
      : SmallPlayer(bytes, fault, 8 * kMiB), spec_{{8 + bytes.word() % 100'000}, DType::int8} {}

 private:
  struct Held {
    PooledTensor tensor;
    Mark mark;
  };

  void begin() override {
    try {
      pool_ = std::make_unique<TensorPool>(allocator_, spec_, some_options());
    } catch (const InvalidArgument&) {  // options that contradict each other
    }
  }

  TensorPoolOptions some_options() {
    TensorPoolOptions options;
    options.initial_slots = bytes_.below(4);
    options.max_slots = bytes_.below(3) == 0 ? 0 : 4 + bytes_.below(8);
    options.growth_step = 1 + bytes_.below(4);
    options.when_empty = bytes_.below(2) == 0 ? WhenEmpty::grow : WhenEmpty::fail;  // there is no thread to wait for
    options.other_stream = static_cast<OtherStream>(bytes_.below(2));
    options.on_reuse = static_cast<OnReuse>(bytes_.below(3));
    if (bytes_.below(2) == 0) options.high_water = bytes_.below(6);
    return options;
  }

  void step() override {
    const std::uint32_t dice = bytes_.below(17);
    if (!pool_) return void(attempt([&] { begin(); }));
    if (dice < 6 || held_.empty()) return acquire();
    if (dice < 11) return release(some_of(held_.size()));
    if (dice == 11) return use(held_[some_of(held_.size())].tensor, some_stream());
    if (dice == 12) return void(attempt([&] { pool_->trim(bytes_.below(4)); }));
    if (dice == 13) return device_->advance(100 * bytes_.word());
    if (dice == 14) return fail_soon();
    if (dice == 15) return expect_sound();
    attempt([&] { allocator_.empty_cache(); });
  }

  void acquire() {
    attempt([&] {
      if (auto tensor = pool_->try_acquire(some_stream())) {
        device_->handed_out(as_address(tensor->data()), tensor->bytes(), tensor->stream());
        launch(*tensor, tensor->stream());
        const Mark written = mark(tensor->data());
        held_.push_back({std::move(*tensor), written});
      }
    });
  }

  void release(std::size_t which) {
    expect_mark(held_[which].tensor.data(), held_[which].mark);
    device_->given_back(as_address(held_[which].tensor.data()));
    std::swap(held_[which], held_.back());
    held_.pop_back();
  }

  // Work on another stream, in the tensor's order and announced.
  void use(PooledTensor& tensor, Stream stream) {
    if (!order(tensor.stream(), stream)) return;
    if (attempt([&] { tensor.record_stream(stream); })) launch(tensor, stream);
  }
  void launch(const PooledTensor& tensor, Stream stream) {
    device_->launch(stream, kWorkNs, {{as_address(tensor.data()), tensor.bytes()}});
  }

  void expect_sound() {
    if (pool_) trouble(pool_->validate());
    trouble(allocator_.validate());
    if (pool_) expect(pool_->stats().live == held_.size(), "the pool counts other live tensors than there are");
  }

  void finish() override {
    expect_sound();
    while (!held_.empty()) release(held_.size() - 1);
    expect_sound();
    pool_.reset();
    allocator_.empty_cache();
    expect(device_->used_bytes() == 0, "at the end, the device is not empty");
  }

  const TensorSpec spec_;
  CachingAllocator allocator_{{device_}};
  std::unique_ptr<TensorPool> pool_;
  std::vector<Held> held_;
};

// The host may write to a buffer as soon as it has it, so the device's checker, which knows streams, has no say: what a
// free leaves behind on streams is remembered here until its time has come.
class PinnedMemoryPlayer final : public SmallPlayer {
 public:
  PinnedMemoryPlayer(Bytes& bytes, const std::optional<Fault>& fault) : SmallPlayer(bytes, fault, 8 * kMiB) {}

 private:
  struct Held {
    unsigned char* memory = nullptr;
    std::size_t bytes = 0;
    unsigned char mark = 0;
    std::int64_t done_ns = 0;  // when the work ends that uses it
  };

  void step() override {
    const std::uint32_t dice = bytes_.below(16);
    if (dice < 5 || held_.empty()) return acquire();
    if (dice < 9) return release(some_of(held_.size()));
    if (dice < 12) return use(held_[some_of(held_.size())], some_stream());
    if (dice == 12) return device_->advance(100 * bytes_.word());
    if (dice == 13) return fail_soon();
    if (dice == 14) return void(attempt([&] { host_.empty_cache(); }));
    expect_sound();
  }

  void acquire() {
    const std::size_t bytes = 1 + ((std::size_t{bytes_.word()} & 0xffff) << bytes_.below(8));
    attempt([&] {
      auto* memory = static_cast<unsigned char*>(host_.allocate(bytes));
      expect_free(memory, bytes);
      const auto mark = static_cast<unsigned char>(next_mark_++);
      memory[0] = memory[bytes - 1] = mark;
      held_.push_back({memory, bytes, mark, 0});
    });
  }

  void expect_free(const unsigned char* memory, std::size_t bytes) {
    std::erase_if(left_, [&](const Held& left) { return left.done_ns <= device_->clock_ns(); });
    for (const Held& left : left_) {
      const bool apart = memory + bytes <= left.memory || left.memory + left.bytes <= memory;
      expect(apart, "a buffer is handed out that a stream still uses");
    }
  }

  void use(Held& held, Stream stream) {
    if (!attempt([&] { host_.record_stream(held.memory, stream); })) return;
    held.done_ns = std::max(held.done_ns, device_->launch(stream, kWorkNs));
  }

  void release(std::size_t which) {
    Held& held = held_[which];
    expect(held.memory[0] == held.mark && held.memory[held.bytes - 1] == held.mark,
           "memory that is held has another content");
    if (!attempt([&] { host_.deallocate(held.memory); })) return;
    left_.push_back(held);
    std::swap(held, held_.back());
    held_.pop_back();
  }

  void expect_sound() {
    trouble(host_.cache().validate());
    std::size_t bytes = 0;
    for (const Held& held : held_) bytes += held.bytes;
    const DeviceStats stats = host_.memory_stats();
    expect(stats.allocation.all.current == static_cast<std::int64_t>(held_.size()),
           "other live buffers are counted than there are");
    expect(host_.memory_allocated() >= bytes, "fewer bytes are counted than are held");
  }

  void finish() override {
    expect_sound();
    while (!held_.empty()) release(held_.size() - 1);
    host_.empty_cache();
    expect_sound();
    expect(host_.memory_reserved() == 0, "at the end, host memory is left");
  }

  PinnedHostAllocator host_{device_};
  std::vector<Held> held_;
  std::vector<Held> left_;  // freed, with work under way
  std::uint64_t next_mark_ = 1;
};

}  // namespace

SmallPlayResult play_tensor_pool(Bytes& bytes, const std::optional<Fault>& fault) {
  return TensorPoolPlayer(bytes, fault).play();
}
SmallPlayResult play_pinned_memory(Bytes& bytes, const std::optional<Fault>& fault) {
  return PinnedMemoryPlayer(bytes, fault).play();
}

}  // namespace cachalot
