// The common state of a soak's threads: a device that they fill, its allocator, a pool and pinned host memory over it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cachalot/pinned_host_allocator.h"
#include "cachalot/simulated_device.h"
#include "cachalot/tensor_pool.h"

namespace cachalot {

inline constexpr int kInjectedCode = 999;

// Memory that a thread holds.
struct SoakBlock {
  void* ptr = nullptr;
  std::size_t bytes = 0;
  Stream stream = nullptr;
  bool given_back = false;  // its free has failed: nothing uses it any more
};

class SoakWorld {
 public:
  static constexpr std::size_t kStreams = 8;
  static constexpr std::size_t kSlotsASlab = 4;

  SoakWorld(const std::string& options, std::size_t memory_bytes);

  SimulatedDevice& device() { return *device_; }
  CachingAllocator& allocator() { return allocator_; }
  TensorPool& pool() { return *pool_; }
  PinnedHostAllocator& host() { return host_; }
  Stream stream(std::size_t number) const { return streams_[number % kStreams]; }

  // A thread is either in a stretch of its work, or all stand still for the thread that requested it.
  std::shared_lock<std::shared_mutex> work() {
    const std::lock_guard<std::mutex> turn(gate_);
    return std::shared_lock<std::shared_mutex>(working_);
  }
  struct Stillness {
    std::unique_lock<std::mutex> turn;  // taken first: no further thread comes in
    std::unique_lock<std::shared_mutex> nobody_works;
  };
  Stillness stand_still() {
    return {.turn = std::unique_lock<std::mutex>(gate_), .nobody_works = std::unique_lock<std::shared_mutex>(working_)};
  }

  // Blocks on the way from one thread to another.
  void post(const SoakBlock& block);
  std::optional<SoakBlock> collect();
  std::size_t posted() const;

  // Notes the first trouble of any thread; it ends the soak.
  void trouble(const std::string& what);
  std::string trouble() const;
  bool is_over() const { return is_over_.load(std::memory_order_relaxed); }
  void end() { is_over_.store(true, std::memory_order_relaxed); }

 private:
  static std::shared_ptr<SimulatedDevice> make_device(std::size_t memory_bytes);

  const std::shared_ptr<SimulatedDevice> device_;
  CachingAllocator allocator_;
  std::unique_ptr<TensorPool> pool_;
  PinnedHostAllocator host_;
  std::array<Stream, kStreams> streams_{};
  std::mutex gate_;
  std::shared_mutex working_;
  std::atomic<bool> is_over_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<SoakBlock> post_;
  std::string trouble_;
};

}  // namespace cachalot
