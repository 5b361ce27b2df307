// Tensor pools of any options, used from several streams while calls of the device fail.
#include <algorithm>
#include <memory>
#include <vector>

#include "cachalot/simulated_device.h"
#include "cachalot/tensor_pool.h"
#include "tests/fuzz/bytes.h"

namespace cachalot::fuzz {
namespace {

constexpr std::size_t kStreams = 3;

TensorPoolOptions some_options(Bytes& bytes) {
  TensorPoolOptions options;
  options.initial_slots = bytes.below(4);
  options.max_slots = bytes.below(3) == 0 ? 0 : 4 + bytes.below(8);
  options.growth_step = 1 + bytes.below(4);
  options.when_empty = bytes.below(2) == 0 ? WhenEmpty::grow : WhenEmpty::fail;  // nobody is there to wait for
  options.other_stream = static_cast<OtherStream>(bytes.below(2));
  options.on_reuse = static_cast<OnReuse>(bytes.below(3));
  if (bytes.below(2) == 0) options.high_water = bytes.below(6);
  return options;
}

class PoolPlayer {
 public:
  explicit PoolPlayer(Bytes& bytes) : bytes_(bytes), spec_{{1 + bytes.word() % 100'000}, DType::float32} {
    for (Stream& stream : streams_) stream = device_->stream();
  }

  void play() {
    attempt([&] { pool_ = std::make_unique<TensorPool>(allocator_, spec_, some_options(bytes_)); });
    while (pool_ && !bytes_.empty()) step();
    device_->set_faults({});
    while (!tensors_.empty()) release(0);
    expect_sound();
    pool_.reset();
    allocator_.empty_cache();
    expect(device_->used_bytes() == 0, "at the end, the device is not empty");
  }

 private:
  // InvalidArgument: of options that contradict each other, when the pool is made.
  template <typename Action>
  void attempt(Action&& action) {
    const std::uint64_t faults = device_->faults_injected();
    try {
      action();
    } catch (const OutOfMemory&) {
    } catch (const CudaError& error) {
      if (device_->faults_injected() == faults) broken(std::string("without a fault: ") + error.what());
    } catch (const InvalidArgument& error) {
      if (pool_) broken(error.what());
    }
  }

  void step() {
    const std::uint32_t dice = bytes_.below(16);
    if (dice < 6 || tensors_.empty()) return acquire();
    if (dice < 11) return release(bytes_.below(static_cast<std::uint32_t>(tensors_.size())));
    if (dice == 11) return use();
    if (dice == 12) return attempt([&] { pool_->trim(bytes_.below(4)); });
    if (dice == 13) return device_->advance(100 * bytes_.word());
    if (dice == 14) return fail();
    expect_sound();
  }

  void acquire() {
    attempt([&] {
      if (auto tensor = pool_->try_acquire(some_stream())) {
        device_->handed_out(address_of(*tensor), tensor->bytes(), tensor->stream());
        device_->launch(tensor->stream(), 100'000, {{address_of(*tensor), tensor->bytes()}});
        tensors_.push_back(std::move(*tensor));
      }
    });
  }

  void release(std::size_t which) {
    device_->given_back(address_of(tensors_[which]));
    std::swap(tensors_[which], tensors_.back());
    tensors_.pop_back();
  }

  // Work on another stream, in its order and announced.
  void use() {
    PooledTensor& tensor = tensors_.front();
    const Stream stream = some_stream();
    attempt([&] {
      const Event event = device_->event_create();
      device_->event_record(event, tensor.stream());
      device_->stream_wait(stream, event);
      device_->event_destroy(event);
      tensor.record_stream(stream);
      device_->launch(stream, 100'000, {{address_of(tensor), tensor.bytes()}});
    });
  }

  void fail() {
    device_->set_faults({{.nth = 1 + bytes_.below(8), .out_of_memory = bytes_.below(2) == 0, .code = 999}});
  }

  void expect_sound() const {
    const std::string trouble = pool_ ? pool_->validate() : "";
    if (!trouble.empty()) broken(trouble);
  }
  static Address address_of(const PooledTensor& tensor) { return reinterpret_cast<Address>(tensor.data()); }
  Stream some_stream() { return streams_[bytes_.below(kStreams)]; }

  static std::shared_ptr<SimulatedDevice> make_device() {
    SimulatedDevice::Config config;
    config.memory_bytes = std::size_t{8} << 20;
    config.latency = LatencyModel::none();
    config.check_hazards = true;
    return std::make_shared<SimulatedDevice>(config);
  }

  Bytes& bytes_;
  const TensorSpec spec_;
  std::shared_ptr<SimulatedDevice> device_ = make_device();
  CachingAllocator allocator_{{device_}};
  Stream streams_[kStreams] = {};
  std::unique_ptr<TensorPool> pool_;
  std::vector<PooledTensor> tensors_;
};

}  // namespace
}  // namespace cachalot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cachalot::fuzz::Bytes bytes(data, size);
  cachalot::fuzz::PoolPlayer(bytes).play();
  return 0;
}
