// cuDNN's graph API. The program's own cuDNN plans, for the simulated GPU; executing a plan does nothing. Handles are
// simulated ones and kept from it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "base/locks.h"
#include "simulator/base/registry.h"
#include "simulator/libraries/cudnn_planner.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace cachalot::simulator {
namespace {

// Returns whether the kernels of the configuration's engine are compiled when a plan is finalized.
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

// Plans of cuDNN whose kernels it would compile when they are finalized, for a fifth of a second each. Nothing executes
// them, and how much workspace they need is known before: so they are not finalized until something else is asked of them.

// Thread-safe.
class UncompiledPlans {
 public:
  // Never destroyed: a program may destroy its plans in static destructors.
  static UncompiledPlans& instance() {
    static auto& plans = *new UncompiledPlans;
    return plans;
  }

  // The plan gets its engine's configuration: remembers the plan if its kernels would be compiled.
  void configure(const CudnnFunctions& cudnn, void* plan, void* configuration) {
    std::int64_t bytes = 0;
    std::int64_t count = 0;
    if (!is_compiled_at_runtime(cudnn, configuration)) return;
    if (cudnn.get(configuration, cudnn::kWorkspaceOfConfiguration, cudnn::kInt64, 1, &count, &bytes) != cudnn::kSuccess)
      return;
    const Lock lock(mutex_);
    workspaces_[plan] = bytes;
  }
  // Returns the workspace in bytes; nothing for any other descriptor.
  std::optional<std::int64_t> workspace_bytes(void* plan) const {
    const Lock lock(mutex_);
    const auto found = workspaces_.find(plan);
    return found == workspaces_.end() ? std::nullopt : std::optional(found->second);
  }
  // Returns whether the plan was one of these.
  bool forget(void* plan) {
    const Lock lock(mutex_);
    return workspaces_.erase(plan) > 0;
  }

 private:
  UncompiledPlans() = default;

  mutable Mutex mutex_;
  std::unordered_map<void*, std::int64_t> workspaces_ CACHALOT_GUARDED_BY(mutex_);
};

// Answers without a planner: there is one of everything, and its numbers are 0: one engine, one plan, no workspace; but
// no notes.
int get_without_planner(int type, std::int64_t requested, std::int64_t* count, void* elements) {
  if (count != nullptr) *count = type != cudnn::kNumericalNote && type != cudnn::kBehaviorNote;
  if (elements == nullptr || requested == 0 || type == cudnn::kDescriptor) return cudnn::kSuccess;
  const std::size_t bytes = type == cudnn::kBoolean ? 1 : type == cudnn::kInt64 ? 8 : 4;
  std::memset(elements, 0, bytes);
  return cudnn::kSuccess;
}

// Gives an attribute of one number as cuDNN does.
int give(std::int64_t number, int type, std::int64_t requested, std::int64_t* count, void* elements) {
  if (type != cudnn::kInt64 || requested < 0) return cudnn::kBadParameter;
  if (count != nullptr) *count = 1;
  if (elements != nullptr && requested > 0) std::memcpy(elements, &number, sizeof number);
  return cudnn::kSuccess;
}

bool is_of_plan(int attribute) { return attribute / 100 == cudnn::kConfigurationOfPlan / 100; }

}  // namespace
}  // namespace cachalot::simulator

using namespace cachalot::simulator;

EXPORTED int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  if (descriptor == nullptr) return cudnn::kBadParameter;
  if (const CudnnPlanner* planner = CudnnPlanner::get()) return planner->create(type, descriptor);
  *descriptor = reinterpret_cast<void*>(fresh_handle());
  return cudnn::kSuccess;
}

EXPORTED int cudnnBackendDestroyDescriptor(void* descriptor) {
  const CudnnPlanner* planner = CudnnPlanner::get();
  if (planner == nullptr) return cudnn::kSuccess;
  UncompiledPlans::instance().forget(descriptor);
  return planner->cudnn().destroy(descriptor);
}

EXPORTED int cudnnBackendSetAttribute(void* descriptor, int name, int type, std::int64_t count, const void* elements) {
  const CudnnPlanner* planner = CudnnPlanner::get();
  if (planner == nullptr || type == cudnn::kHandle) return cudnn::kSuccess;
  const int status = planner->cudnn().set(descriptor, name, type, count, elements);
  if (status == cudnn::kSuccess && name == cudnn::kConfigurationOfPlan)
    UncompiledPlans::instance().configure(planner->cudnn(), descriptor, *static_cast<void* const*>(elements));
  return status;
}

EXPORTED int cudnnBackendGetAttribute(void* descriptor, int name, int type, std::int64_t requested, std::int64_t* count,
                                      void* elements) {
  const CudnnPlanner* planner = CudnnPlanner::get();
  if (planner == nullptr) return get_without_planner(type, requested, count, elements);
  if (name == cudnn::kWorkspaceOfPlan) {
    if (const auto bytes = UncompiledPlans::instance().workspace_bytes(descriptor))
      return give(*bytes, type, requested, count, elements);
  }
  if (is_of_plan(name) && UncompiledPlans::instance().forget(descriptor)) {
    if (const int status = planner->cudnn().finalize(descriptor)) return status;
  }
  return planner->cudnn().get(descriptor, name, type, requested, count, elements);
}

EXPORTED int cudnnGetExecutionPlanWorkspaceSize(void*, void* plan, void*, std::size_t* bytes) {
  if (bytes == nullptr) return cudnn::kBadParameter;
  std::int64_t count = 0;
  std::int64_t workspace_bytes = 0;
  const int status =
      cudnnBackendGetAttribute(plan, cudnn::kWorkspaceOfPlan, cudnn::kInt64, 1, &count, &workspace_bytes);
  if (status == cudnn::kSuccess) *bytes = static_cast<std::size_t>(workspace_bytes);
  return status;
}

EXPORTED int cudnnBackendFinalize(void* descriptor) {
  const CudnnPlanner* planner = CudnnPlanner::get();
  if (planner == nullptr || UncompiledPlans::instance().workspace_bytes(descriptor)) return cudnn::kSuccess;
  return planner->cudnn().finalize(descriptor);
}

EXPORTED int cudnnBackendExecute(void*, void* plan, void*) {
  if (CudnnPlanner::get() == nullptr) {
    note_cudnn_execution(nullptr);
    return cudnn::kSuccess;
  }
  std::int64_t count = 0;
  std::int64_t workspace_bytes = 0;
  const int status =
      cudnnBackendGetAttribute(plan, cudnn::kWorkspaceOfPlan, cudnn::kInt64, 1, &count, &workspace_bytes);
  if (status == cudnn::kSuccess) note_cudnn_execution(&workspace_bytes);
  return status;
}
