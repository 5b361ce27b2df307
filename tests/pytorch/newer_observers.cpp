// The hooks that PyTorch's C++ users attach to its allocator since 2.12: an observer of requests that are refused.
// Compiled by test_newer_functions.py.
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <stdexcept>

extern "C" {
[[gnu::visibility("default")]] long long last_device = -1;
[[gnu::visibility("default")]] long long last_asked = -1;
[[gnu::visibility("default")]] long long last_held = -1;
[[gnu::visibility("default")]] long long last_total = -1;
}

namespace {

std::atomic<long> told;

}  // namespace

extern "C" {
// Attaches an observer whose exceptions do not reach the caller.
[[gnu::visibility("default")]] void attach_refusal_observer() {
  c10::cuda::CUDACachingAllocator::attachOomRejectionObserver(
      [](std::int64_t device, std::size_t asked, std::size_t held, std::size_t total) {
        last_device = device;
        last_asked = static_cast<long long>(asked);
        last_held = static_cast<long long>(held);
        last_total = static_cast<long long>(total);
        ++told;
        throw std::runtime_error("an observer that throws");
      });
}
[[gnu::visibility("default")]] long times_told() { return told; }
}
