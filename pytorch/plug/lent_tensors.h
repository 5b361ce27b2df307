// Tensors of pools that Python has. Each belongs to all its holders together: the lease, and every consumer of its DLPack
// capsules. With the last of them it goes back to its pool, in whatever thread.
//
// Torch takes a tensor made from a capsule for foreign memory, of which it knows the address alone; record_stream finds
// it by that.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/process.h"
#include "cachalot/tensor_pool.h"

namespace cachalot {

// Thread-safe, as the PooledTensor in it is not.
class LentTensor {
 public:
  explicit LentTensor(PooledTensor&& tensor) : tensor_(std::move(tensor)) {}
  ~LentTensor();
  LentTensor(const LentTensor&) = delete;
  LentTensor& operator=(const LentTensor&) = delete;

  // PooledTensor's.
  void record_stream(Stream stream);
  void share_with(Stream stream);
  void* data() const { return tensor_.data(); }
  // For to_dlpack; shares the count of holders.
  static std::shared_ptr<PooledTensor> pooled(const std::shared_ptr<LentTensor>& lent) {
    return {lent, &lent->tensor_};
  }

 private:
  std::mutex mutex_;
  PooledTensor tensor_;
};

// Thread-safe. In a forked child there are none: what it drops of those that it inherits stays lent.
class LentTensors final : public ForkAware {
 public:
  // Never destroyed: deleters may be called at the very end of the process.
  static LentTensors& instance();

  std::shared_ptr<LentTensor> lend(PooledTensor&& tensor);
  // Records the use of the tensor that begins at `data`; returns false if there is none.
  bool record_stream(void* data, Stream stream);

 private:
  friend class LentTensor;
  void forget(void* data);

  std::mutex mutex_;
  std::unordered_map<void*, std::weak_ptr<LentTensor>> by_address_;
};

}  // namespace cachalot
