// The pricing's buffers, from pools; or each in memory of its own until the end, to see what the pools are worth.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cachalot/pool_set.h"
#include "examples/lsm_pricing/backend.h"

namespace lsm {

class Buffers {
 public:
  enum class Keep { none, all };

  Buffers(cachalot::CachingAllocator& allocator, Keep keep) : pools_(allocator, kBudget), keep_(keep) {}

  cachalot::PoolStats stats() const { return pools_.stats(); }

 private:
  friend class Buffer;
  static constexpr std::size_t kBudget = std::size_t{64} << 30;

  cachalot::PooledTensor acquire(std::size_t count, cachalot::Stream stream) {
    return pools_.acquire({{static_cast<std::int64_t>(count)}, cachalot::DType::float64}, stream);
  }
  void done_with(cachalot::PooledTensor tensor) {
    if (keep_ == Keep::all) kept_.push_back(std::move(tensor));
  }

  cachalot::PoolSet pools_;
  Keep keep_;
  std::vector<cachalot::PooledTensor> kept_;  // before the pools go
};

// `count` doubles for work on the stream, for as long as it lives.
class Buffer {
 public:
  Buffer(Buffers& buffers, std::size_t count, cachalot::Stream stream)
      : buffers_(buffers), tensor_(buffers.acquire(count, stream)), count_(count) {}
  ~Buffer() { buffers_.done_with(std::move(tensor_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  operator Doubles() const { return {static_cast<double*>(tensor_.data()), count_}; }

 private:
  Buffers& buffers_;
  cachalot::PooledTensor tensor_;
  std::size_t count_;
};

}  // namespace lsm
