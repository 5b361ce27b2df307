// The allocator of the process in libcachalot.so: its devices and options are those of environment variables.

#include <atomic>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/locks.h"
#include "base/process.h"
#include "c_api/seam.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "cachalot/memory_watch.h"
#include "cachalot/options.h"
#include "device/cuda_device.h"
#include "diagnostics/process_publisher.h"
#include "policy/options_without_effect.h"
#include "simulator/device/simulated_devices.h"

namespace cachalot {
namespace {

std::vector<std::shared_ptr<Device>> devices_of_settings() {
  try {
    return simulated_devices();
  } catch (const InvalidArgument& error) {
    throw BadEnvironment(formatted("environment variable {}", error.what()));
  }
}

bool parse_simulate(std::string_view value) {
  CACHALOT_REQUIRE(value.empty() || value == "0" || value == "1", "'{}' is not 1, for simulated devices, nor 0", value);
  return value == "1";
}

// Returns the GPUs, or simulated devices (CACHALOT_SIMULATE, CACHALOT_SIM). Throws
// BadEnvironment, and CudaError where a driver has no GPU to show.
// A driver without any GPU, or too old, or an error at its start is an error: a program that expects a GPU must
// not be handed addresses that no kernel can use. Simulated devices are for programs that ask for them, and for
// machines without a driver.
std::vector<std::shared_ptr<Device>> devices_of_environment() {
  if (parse_environment("CACHALOT_SIMULATE", "", parse_simulate)) return devices_of_settings();
  std::vector<std::shared_ptr<Device>> devices = cuda_devices();
  if (!devices.empty()) return devices;
  if (cuda_driver_version() != 0) {
    throw CudaError("cuInit", 100,
                    "CUDA_ERROR_NO_DEVICE, the driver shows no GPU (CUDA_VISIBLE_DEVICES may hide it); "
                    "CACHALOT_SIMULATE=1 selects simulated devices");
  }
  devices = devices_of_settings();
  print_error(
      "cachalot: {}: memory is that of {} simulated GPU{}, and no kernel can use it "
      "(CACHALOT_SIMULATE=1 selects that without this message)\n",
      CACHALOT_HAS_CUDA ? "there is no CUDA driver" : "this build is without CUDA", devices.size(),
      devices.size() == 1 ? "" : "s");
  return devices;
}

// Returns the options (CACHALOT_CONF, CACHALOT_DEBUG), and warns of those without effect. Throws BadEnvironment.
Options options_of_environment() {
  Options base;
  base.debug = parse_environment("CACHALOT_DEBUG", "", parse_debug);
  Options options =
      parse_environment("CACHALOT_CONF", "", [&](std::string_view text) { return parse_options(text, base); });
  warn_of_options_without_effect(options);
  return options;
}

// Made at first use and never destroyed: memory may be freed by destructors that run after its own would. While it cannot be
// made, each call tries again and fails with the reason. A forked child of a process that has not made it makes its own; one
// whose parent was making it when it forked is refused, since the objects that it uses (the driver, static objects) may be
// locked permanently.
class ProcessAllocator final : public ForkAware {
 public:
  void configure(std::string_view text) {
    const Lock lock(mutex_);
    if (CachingAllocator* const allocator = made_allocator.load(std::memory_order_acquire)) {
      allocator->configure(text);
      warn_of_options_without_effect(allocator->options());
    } else {
      configured_ = parse_options(text, initial_options());
      warn_of_options_without_effect(*configured_);
    }
  }

  CachingAllocator& make() {
    if (was_interrupted_) require_own_process("the allocator");
    const Lock lock(mutex_);
    if (CachingAllocator* const made = made_allocator.load(std::memory_order_acquire)) return *made;
    is_being_made_ = true;
    const std::shared_ptr<void> at_end(nullptr, [this](void*) { is_being_made_ = false; });  // also where it fails
    const Options options = initial_options();
    const bool publishes = is_publishing_asked_for();
    auto allocator = std::make_unique<CachingAllocator>(devices_of_environment(), options, guard_factory(kernels_for));
    watch_ = std::make_unique<MemoryWatch>(*allocator).release();
    made_allocator.store(allocator.get(), std::memory_order_release);
    if (publishes) publish_as_asked(*allocator);
    return *allocator.release();
  }

 private:
  // A thread that is not here may have been making it.
  void on_fork() noexcept override {
    new (&mutex_) SleepingMutex;
    was_interrupted_ = is_being_made_;
    if (!was_interrupted_) adopt();
  }

  Options initial_options() const CACHALOT_REQUIRES(mutex_) {
    return configured_ ? *configured_ : options_of_environment();
  }

  std::atomic<bool> is_being_made_{false};
  bool was_interrupted_ = false;                                   // by a fork, in the child
  MemoryWatch* watch_ CACHALOT_GUARDED_BY(mutex_) = nullptr;       // never destroyed, as the allocator
  SleepingMutex mutex_;                                            // held while the allocator is made or configured
  std::optional<Options> configured_ CACHALOT_GUARDED_BY(mutex_);  // by configure, before the allocator was made
};

ProcessAllocator& process() {
  static ProcessAllocator& made = *new ProcessAllocator;
  return made;
}

// Made when the library is loaded: a child that is forked while a thread makes a static object waits for it
// permanently.
[[maybe_unused]] const ProcessAllocator& made_at_load = process();

}  // namespace

CachingAllocator& make_allocator() { return process().make(); }

void configure_allocator(std::string_view options) { process().configure(options); }

}  // namespace cachalot
