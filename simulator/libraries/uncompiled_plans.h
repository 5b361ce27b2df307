// Plans of cuDNN whose kernels it would compile when they are finalized, for a fifth of a second each. Nothing executes
// them, and how much workspace they need is known before: so they are not finalized until something else is asked of them.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/mutex.h"
#include "simulator/libraries/cudnn_planner.h"

namespace cachalot::simulator {

// Thread-safe.
class UncompiledPlans {
 public:
  // Never destroyed: a program may destroy its plans in static destructors.
  static UncompiledPlans& instance();

  // The plan gets its engine's configuration: remembers the plan if its kernels would be compiled.
  void configure(const CudnnFunctions& cudnn, void* plan, void* configuration);
  // Returns the workspace in bytes; nothing for any other descriptor.
  std::optional<std::int64_t> workspace_bytes(void* plan) const;
  // Returns whether the plan was one of these.
  bool forget(void* plan);

 private:
  UncompiledPlans() = default;

  mutable Mutex mutex_;
  std::unordered_map<void*, std::int64_t> workspaces_ CACHALOT_GUARDED_BY(mutex_);
};

}  // namespace cachalot::simulator
