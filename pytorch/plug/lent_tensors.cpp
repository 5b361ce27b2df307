#include "pytorch/plug/lent_tensors.h"

namespace cachalot {

// Its address is free to be lent again only once tensor_ has gone back, after this.
LentTensor::~LentTensor() { LentTensors::instance().forget(data()); }

void LentTensor::record_stream(Stream stream) {
  LentTensors::instance().require_own_process("the tensor's pool");
  const std::lock_guard<std::mutex> lock(mutex_);
  tensor_.record_stream(stream);
}

void LentTensor::share_with(Stream stream) {
  LentTensors::instance().require_own_process("the tensor's pool");
  const std::lock_guard<std::mutex> lock(mutex_);
  tensor_.share_with(stream);
}

LentTensors& LentTensors::instance() {
  static auto* const tensors = new LentTensors;
  return *tensors;
}

std::shared_ptr<LentTensor> LentTensors::lend(PooledTensor&& tensor) {
  auto lent = std::make_shared<LentTensor>(std::move(tensor));
  const std::lock_guard<std::mutex> lock(mutex_);
  by_address_.emplace(lent->data(), lent);
  return lent;
}

bool LentTensors::record_stream(void* data, Stream stream) {
  if (is_inherited()) return false;
  std::shared_ptr<LentTensor> lent;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_address_.find(data);
    if (found != by_address_.end()) lent = found->second.lock();
  }
  if (lent != nullptr) lent->record_stream(stream);
  return lent != nullptr;
}

void LentTensors::forget(void* data) {
  if (is_inherited()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  by_address_.erase(data);
}

}  // namespace cachalot
