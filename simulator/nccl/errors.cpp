#include "simulator/nccl/errors.h"

#include <mutex>
#include <set>

#include "base/format.h"

namespace cachalot::simulator::nccl {
namespace {

struct LastError {
  std::mutex mutex;
  std::set<std::string> texts;  // all there were: who got one may keep it
  const char* last = "";
};

// Never destroyed: static destructors of the program still call.
LastError& kept() {
  static auto& kept = *new LastError;
  return kept;
}

}  // namespace

ncclResult_t remember(const NcclError& error) noexcept {
  try {
    const std::lock_guard lock(kept().mutex);
    kept().last = kept().texts.insert(error.what()).first->c_str();
  } catch (const std::bad_alloc&) {  // the code alone is told
  }
  return error.code();
}

const char* last_error() noexcept {
  const std::lock_guard lock(kept().mutex);
  return kept().last;
}

void require_cuda(const char* what, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw NcclError(ncclUnhandledCudaError, formatted("{}: {}", what, cudaGetErrorString(error)));
}

}  // namespace cachalot::simulator::nccl
