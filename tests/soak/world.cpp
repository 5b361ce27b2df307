#include "tests/soak/world.h"

#include "cachalot/guard.h"

namespace cachalot {

SoakWorld::SoakWorld(const std::string& options, std::size_t memory_bytes)
    : device_(make_device(memory_bytes)),
      allocator_({device_}, parse_options(options), guard_factory()),
      host_(device_) {
  pool_ = std::make_unique<TensorPool>(allocator_, TensorSpec{{100'000}, DType::float32},
                                       TensorPoolOptions{.growth_step = kSlotsASlab, .high_water = 8});
  for (Stream& stream : streams_) stream = device_->new_stream();
}

std::shared_ptr<SimulatedDevice> SoakWorld::make_device(std::size_t memory_bytes) {
  SimulatedDevice::Config config;
  config.memory_bytes = memory_bytes;
  config.check_hazards = true;
  return std::make_shared<SimulatedDevice>(config);
}

void SoakWorld::post(const SoakBlock& block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  post_.push_back(block);
}

std::optional<SoakBlock> SoakWorld::collect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (post_.empty()) return std::nullopt;
  const SoakBlock block = post_.back();
  post_.pop_back();
  return block;
}

std::size_t SoakWorld::posted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return post_.size();
}

void SoakWorld::trouble(const std::string& what) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (trouble_.empty()) trouble_ = what;
  }
  end();
}

std::string SoakWorld::trouble() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return trouble_;
}

}  // namespace cachalot
