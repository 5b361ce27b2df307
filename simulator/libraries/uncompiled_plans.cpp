#include "simulator/libraries/uncompiled_plans.h"

#include <algorithm>

#include "simulator/libraries/cudnn_numbers.h"

namespace cachalot::simulator {
namespace {

// Whether the kernels of the configuration's engine are compiled when a plan is finalized.
bool is_compiled_at_runtime(const CudnnFunctions& cudnn, void* configuration) {
  void* engine = nullptr;
  if (cudnn.create(cudnn::kEngine, &engine) != cudnn::kSuccess) return false;
  constexpr std::int64_t kMostNotes = 16;
  int notes[kMostNotes] = {};
  std::int64_t count = 0;
  int status = cudnn.get(configuration, cudnn::kEngineOfConfiguration, cudnn::kDescriptor, 1, &count, &engine);
  if (status == cudnn::kSuccess)
    status = cudnn.get(engine, cudnn::kBehaviorOfEngine, cudnn::kBehaviorNote, kMostNotes, &count, notes);
  cudnn.destroy(engine);
  const auto known = static_cast<std::ptrdiff_t>(std::clamp<std::int64_t>(count, 0, kMostNotes));
  return status == cudnn::kSuccess && std::find(notes, notes + known, cudnn::kCompiledAtRuntime) != notes + known;
}

}  // namespace

UncompiledPlans& UncompiledPlans::instance() {
  static auto& plans = *new UncompiledPlans;
  return plans;
}

void UncompiledPlans::configure(const CudnnFunctions& cudnn, void* plan, void* configuration) {
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  if (!is_compiled_at_runtime(cudnn, configuration)) return;
  if (cudnn.get(configuration, cudnn::kWorkspaceOfConfiguration, cudnn::kInt64, 1, &count, &bytes) != cudnn::kSuccess)
    return;
  const Lock lock(mutex_);
  workspaces_[plan] = bytes;
}

std::optional<std::int64_t> UncompiledPlans::workspace_bytes(void* plan) const {
  const Lock lock(mutex_);
  const auto found = workspaces_.find(plan);
  return found == workspaces_.end() ? std::nullopt : std::optional(found->second);
}

bool UncompiledPlans::forget(void* plan) {
  const Lock lock(mutex_);
  return workspaces_.erase(plan) > 0;
}

}  // namespace cachalot::simulator
