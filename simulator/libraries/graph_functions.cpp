// cuDNN's graph API. The program's own cuDNN plans, for the simulated GPU; executing a plan does nothing. Handles are
// simulated ones and kept from it.
#include <cstdint>
#include <cstring>

#include "simulator/handles.h"
#include "simulator/libraries/cudnn_numbers.h"
#include "simulator/libraries/cudnn_planner.h"
#include "simulator/libraries/uncompiled_plans.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace cachalot::simulator {
namespace {

// What is answered without a planner: of everything there is one, and its numbers are 0: one engine, one plan, no
// workspace; but no notes.
int get_without_planner(int type, std::int64_t requested, std::int64_t* count, void* elements) {
  if (count != nullptr) *count = type != cudnn::kNumericalNote && type != cudnn::kBehaviorNote;
  if (elements == nullptr || requested == 0 || type == cudnn::kDescriptor) return cudnn::kSuccess;
  const std::size_t bytes = type == cudnn::kBoolean ? 1 : type == cudnn::kInt64 ? 8 : 4;
  std::memset(elements, 0, bytes);
  return cudnn::kSuccess;
}

// As cuDNN gives an attribute that is one number.
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
