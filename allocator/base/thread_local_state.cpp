#include "base/thread_local_state.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

CACHALOT_BEGIN

namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

std::atomic<void (*)()> fence_hook{nullptr};

bool registers() { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

}  // namespace

bool has_asymmetric_fences() {
  static const bool has = registers();
  return has;
}

void set_heavy_fence_hook(void (*hook)()) { fence_hook.store(hook, std::memory_order_relaxed); }

void heavy_fence() {
  if (const auto hook = fence_hook.load(std::memory_order_relaxed); hook != nullptr) hook();
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // A process that was forked may have to register anew.
  if (!registers() || !membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) std::abort();
}

CACHALOT_END
