// The C boundary: one allocator for the process, and exceptions turned into codes and messages.

#include "cachalot/c_api.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/device_allocator.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/environment.h"
#include "base/format.h"
#include "base/locks.h"
#include "base/process.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "cachalot/options.h"
#include "device/addresses.h"
#include "device/cuda_device.h"
#include "diagnostics/process_publisher.h"
#include "policy/option_grammar.h"
#include "policy/options_without_effect.h"
#include "policy/torch_policy.h"
#include "simulator/device/simulated_devices.h"

CACHALOT_BEGIN

namespace {

// ---- The environment variables of libcachalot.so: devices, and options ----------------------------------------------

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

}  // namespace

// The CachedPath is the part of CachingAllocator's malloc and free that a thread's cache serves, for callers that want it inline:
// the C API. It takes no lock, throws nothing and calls nothing, so such a caller needs no stack frame.
class CachedPath {
 public:
  // Allocates as CachingAllocator::allocate does, or returns null: then that must serve.
  CACHALOT_FAST_PATH static void* allocate(const CachingAllocator& allocator, std::size_t bytes, int device,
                                           Stream stream) {
    if (static_cast<unsigned>(device) >= allocator.unguarded_devices_.size()) [[unlikely]]
      return nullptr;
    const FastPath& fast = allocator.unguarded_devices_[static_cast<std::size_t>(device)]->fast;
    if (!fast.has_hot_cache() || bytes - 1 >= SizeClass::kLargestBytes) return nullptr;
    return HotCache::allocate(bytes, StreamKey::of_handle(stream));
  }

  // Frees as CachingAllocator::deallocate; returns false if nothing was done, and that must serve.
  CACHALOT_FAST_PATH static bool deallocate(const CachingAllocator& allocator, void* ptr, std::size_t bytes, int device,
                                            Stream stream) {
    if (static_cast<unsigned>(device) >= allocator.unguarded_devices_.size()) [[unlikely]]
      return false;
    const FastPath& fast = allocator.unguarded_devices_[static_cast<std::size_t>(device)]->fast;
    if (!fast.has_hot_cache()) return false;  // before the block is looked up, which that would do again
    Block* const block = allocator.unguarded_map_->find(as_address(ptr));
    if (block == nullptr || BlockSlab::owner_of(*block) != device) [[unlikely]]
      return false;
    return HotCache::deallocate(*block, ptr, bytes, stream);
  }
};

namespace {

// ---- This thread's last error ---------------------------------------------------------------------------------------

// Read and emptied on the fast path: a plain pointer, found without a call.
constinit thread_local const char* last_error [[gnu::tls_model("initial-exec")]] = "";

// The text behind last_error. Destructors of other thread-locals may still fail when it is gone.
struct Message {
  std::string text;
  ~Message() { gone = true; }
  static constinit inline thread_local bool gone = false;
};

void set_last_error(const char* text) noexcept {
  static thread_local Message message;
  last_error = "an error, which could not be kept: the thread ends or the host has no memory left";
  if (Message::gone) return;
  try {
    message.text = text;
    last_error = message.text.c_str();
  } catch (const std::bad_alloc&) {
  }
}

int fail(int code, const char* message) noexcept {
  set_last_error(message);
  return code;
}

// For use in a catch clause: keeps the message of the exception in flight for cachalot_last_error, and returns its code.
int translate_exception() noexcept {
  try {
    throw;
  } catch (const BadEnvironment& error) {
    return fail(CACHALOT_E_ENVIRONMENT, error.what());
  } catch (const InvalidArgument& error) {
    return fail(CACHALOT_E_INVALID_ARGUMENT, error.what());
  } catch (const OutOfMemory& error) {
    return fail(CACHALOT_E_OUT_OF_MEMORY, error.what());
  } catch (const CudaError& error) {
    return fail(CACHALOT_E_CUDA, error.what());
  } catch (
      const std::bad_alloc&) {  // no memory for a message either; glibc ends a process that has none for a thread-local
    last_error = "std::bad_alloc: the host has no memory left; the call has changed nothing";
    return CACHALOT_E_INTERNAL;
  } catch (const std::exception& error) {
    return fail(CACHALOT_E_INTERNAL, error.what());
  } catch (...) {
    return fail(CACHALOT_E_INTERNAL, "unknown exception");
  }
}

// Runs `action` and returns a code.
template <typename Action>
int guarded(Action action) noexcept {
  try {
    action();
    return CACHALOT_OK;
  } catch (...) {
    return translate_exception();
  }
}

// Returns what `function` returns, or `otherwise` if it throws.
template <typename Value, typename Function>
Value value_or(Value otherwise, Function function) noexcept {
  try {
    return function();
  } catch (...) {
    translate_exception();
    return otherwise;
  }
}

// ---- The process's allocator ----------------------------------------------------------------------------------------

// The allocator, once it is made: outside of what makes it, so that a malloc gets it by one load.
constinit std::atomic<CachingAllocator*> made_allocator{nullptr};

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
  SleepingMutex mutex_;                                            // held while the allocator is made or configured
  std::optional<Options> configured_ CACHALOT_GUARDED_BY(mutex_);  // by configure, before the allocator was made
};

ProcessAllocator& process_allocator() {
  static ProcessAllocator& process = *new ProcessAllocator;
  return process;
}

// Made when the library is loaded: a child that is forked while a thread makes a static object waits for it
// permanently.
[[maybe_unused]] const ProcessAllocator& made_at_load = process_allocator();

CachingAllocator& allocator() {
  CachingAllocator* const made = made_allocator.load(std::memory_order_acquire);
  if (made != nullptr) [[likely]]
    return *made;
  return process_allocator().make();
}

// Calls a function of the allocator and returns a code.
template <typename Function, typename... Arguments>
int call(Function function, const Arguments&... arguments) noexcept {
  return guarded([&] { std::invoke(function, allocator(), arguments...); });
}

// Returns the figure that a function of the allocator returns, or 0 if it throws.
template <typename Function, typename... Arguments>
std::size_t figure(Function function, const Arguments&... arguments) noexcept {
  return value_or<std::size_t>(0, [&] { return std::invoke(function, allocator(), arguments...); });
}

cachalot_fragmentation_t to_c(const Fragmentation& figures) {
  static_assert(CACHALOT_HISTOGRAM_ENTRIES == Fragmentation::kHistogramEntries);
  cachalot_fragmentation_t result;
  result.requested_bytes = figures.requested_bytes;
  result.allocated_bytes = figures.allocated_bytes;
  result.reserved_bytes = figures.reserved_bytes;
  result.free_bytes = figures.free_bytes;
  result.largest_free_bytes = figures.largest_free_bytes;
  result.free_blocks = figures.free_blocks;
  result.peak_requested_bytes = figures.peak_requested_bytes;
  result.peak_reserved_bytes = figures.peak_reserved_bytes;
  result.internal = figures.internal;
  result.external = figures.external;
  result.reserved_ratio = figures.reserved_ratio;
  result.peak_ratio = figures.peak_ratio;
  std::ranges::copy(figures.free_block_histogram, result.free_block_histogram);
  return result;
}

std::string_view tag_of(const char* function, const char* tag) {
  CACHALOT_REQUIRE(tag != nullptr, "{}: tag is NULL; it must point to a name", function);
  return tag;
}

std::vector<std::string_view> tags_of(const char* function, const char* const* tags, std::size_t count) {
  CACHALOT_REQUIRE(tags != nullptr || count == 0, "{}: tags is NULL; it must point to {} names", function, count);
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(tag_of(function, tags[i]));
  return names;
}

// Converts shared memory that lies in one piece.
cachalot_shared_t to_c(const SharedMemory& memory) {
  static_assert(sizeof(cachalot_shared_t::bytes) == sizeof(IpcHandle) &&
                sizeof(cachalot_shared_t::bytes) == sizeof(ShareableHandle::fabric));
  cachalot_shared_t shared{};
  shared.descriptor = -1;
  shared.offset = memory.offset;
  shared.size = memory.bytes;
  if (memory.handles.empty()) {
    shared.kind = CACHALOT_SHARED_SEGMENT;
    std::ranges::copy(memory.segment.bytes, shared.bytes);
    return shared;
  }
  const SharedMemory::Handle& handle = memory.handles.front();
  const bool is_fabric = handle.shared.kind == ShareableHandle::Kind::fabric;
  shared.kind = is_fabric ? CACHALOT_SHARED_FABRIC : CACHALOT_SHARED_DESCRIPTOR;
  shared.handle_size = handle.bytes;
  if (is_fabric) std::ranges::copy(handle.shared.fabric, shared.bytes);
  if (!is_fabric) shared.descriptor = handle.shared.descriptor;
  return shared;
}

SharedMemory from_c(const cachalot_shared_t& shared) {
  SharedMemory memory;
  memory.offset = shared.offset;
  memory.bytes = shared.size;
  switch (shared.kind) {
    case CACHALOT_SHARED_SEGMENT:
      std::ranges::copy(shared.bytes, memory.segment.bytes);
      return memory;
    case CACHALOT_SHARED_DESCRIPTOR:
    case CACHALOT_SHARED_FABRIC:
      break;
    default:
      throw InvalidArgument(formatted("shared memory of kind {}: it is one of CACHALOT_SHARED_*", shared.kind));
  }
  SharedMemory::Handle& handle = memory.handles.emplace_back();
  handle.bytes = shared.handle_size;
  handle.shared.descriptor = shared.descriptor;
  if (shared.kind == CACHALOT_SHARED_FABRIC) handle.shared.kind = ShareableHandle::Kind::fabric;
  std::ranges::copy(shared.bytes, handle.shared.fabric.begin());
  return memory;
}

// Functions of their own, so that malloc and free need no stack frame where a thread's cache serves.
[[gnu::noinline]] void* allocate(std::size_t bytes, int device, Stream stream) noexcept {
  return value_or<void*>(nullptr, [&] {
    void* const ptr = allocator().allocate(bytes, device, stream);
    last_error = "";
    return ptr;
  });
}

[[gnu::noinline]] void deallocate(void* ptr, std::size_t bytes, int device, Stream stream) noexcept {
  guarded([&] {
    if (ptr != nullptr) allocator().deallocate(ptr, bytes, device, stream);
    last_error = "";
  });
}

// The device and stream on which ONNX Runtime's functions allocate.
constinit std::atomic<int> onnxruntime_device{0};
constinit std::atomic<Stream> onnxruntime_stream{nullptr};

// For the caller to free.
char* copy_of(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

MemoryLimit limit_of(const char* function, const char* text) {
  CACHALOT_REQUIRE(text != nullptr, "{}: limit is NULL; it must point to a text such as \"20GiB\" or \"none\"",
                   function);
  return MemoryLimit::parse(text);
}

SoftLimitCallback to_function(cachalot_soft_limit_callback callback, void* context) {
  if (callback == nullptr) return nullptr;
  return [callback, context](const SoftLimitReport& report) {
    const cachalot_soft_limit_t in_c = {report.device, report.held_bytes, report.soft_limit_bytes};
    callback(&in_c, context);
  };
}

}  // namespace

CACHALOT_END

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

const char* cachalot_version(void) { return version(); }

void* cachalot_malloc(size_t size, int device, cudaStream_t stream) {
  if (const CachingAllocator* const made = made_allocator.load(std::memory_order_acquire)) {
    if (void* const ptr = CachedPath::allocate(*made, size, device, stream)) [[likely]] {
      last_error = "";
      return ptr;
    }
  }
  return allocate(size, device, stream);
}

void* cachalot_malloc_with_flags(size_t size, int device, cudaStream_t stream, unsigned int flags) {
  return value_or<void*>(nullptr, [&] {
    CACHALOT_REQUIRE((flags & ~unsigned{CACHALOT_CONTIGUOUS}) == 0,
                     "flags {:#x}: CACHALOT_CONTIGUOUS (0x1) is all there is", flags);
    const AllocateOptions options{.contiguous = (flags & CACHALOT_CONTIGUOUS) != 0};
    void* const ptr = allocator().allocate(size, device, stream, options);
    last_error = "";
    return ptr;
  });
}

void* cachalot_malloc_aligned(size_t size, size_t alignment, int device, cudaStream_t stream) {
  return value_or<void*>(nullptr, [&] {
    void* const ptr = allocator().allocate(size, device, stream, {.alignment = alignment});
    last_error = "";
    return ptr;
  });
}

void cachalot_free(void* ptr, size_t size, int device, cudaStream_t stream) {
  const CachingAllocator* const made = made_allocator.load(std::memory_order_acquire);
  if (made != nullptr && CachedPath::deallocate(*made, ptr, size, device, stream)) [[likely]] {
    last_error = "";
  } else {
    deallocate(ptr, size, device, stream);
  }
}

int cachalot_onnxruntime_bind(int device, cudaStream_t stream) {
  return guarded([&] {
    require_stream_of_device(*allocator().device(device), stream);
    onnxruntime_device = device;
    onnxruntime_stream = stream;
  });
}

void* cachalot_onnxruntime_alloc(size_t size) { return cachalot_malloc(size, onnxruntime_device, onnxruntime_stream); }

void cachalot_onnxruntime_free(void* ptr) {
  guarded([&] {
    if (ptr != nullptr) allocator().deallocate(ptr);
    last_error = "";
  });
}

void cachalot_onnxruntime_empty_cache(void) { cachalot_empty_cache(onnxruntime_device); }

int cachalot_empty_cache(int device) {
  return guarded([&] { allocator().empty_cache(device); });
}

int cachalot_drain_thread_caches(int device) { return call(&CachingAllocator::drain_thread_caches, device); }

size_t cachalot_memory_allocated(int device) { return figure(&CachingAllocator::memory_allocated, device); }

size_t cachalot_memory_reserved(int device) { return figure(&CachingAllocator::memory_reserved, device); }

size_t cachalot_max_memory_allocated(int device) { return figure(&CachingAllocator::max_memory_allocated, device); }

size_t cachalot_max_memory_reserved(int device) { return figure(&CachingAllocator::max_memory_reserved, device); }

int cachalot_reset_peak_memory_stats(int device) { return call(&CachingAllocator::reset_peak_stats, device); }

int cachalot_reset_accumulated_memory_stats(int device) {
  return call(&CachingAllocator::reset_accumulated_stats, device);
}

int cachalot_record_stream(void* ptr, cudaStream_t stream) {
  return guarded([&] {
    if (ptr != nullptr) allocator().record_stream(ptr, stream);
  });
}

int cachalot_stream_ends(cudaStream_t stream) { return call(&CachingAllocator::stream_ends, stream); }

int cachalot_share(const void* ptr, cachalot_shared_t* out) {
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr, "cachalot_share: out is NULL; it must point to a cachalot_shared_t");
    *out = to_c(allocator().share_contiguous(ptr));
  });
}

void* cachalot_open_shared(const cachalot_shared_t* shared, int device) {
  return value_or<void*>(nullptr, [&] {
    CACHALOT_REQUIRE(shared != nullptr, "cachalot_open_shared: shared is NULL; it must point to a cachalot_shared_t");
    return allocator().open_shared(from_c(*shared), device);
  });
}

int cachalot_close_shared(void* base) { return call(&CachingAllocator::close_shared, base); }

int cachalot_enable_peer_access(int device, int peer) {
  return call(&CachingAllocator::enable_peer_access, device, peer);
}

int cachalot_set_memory_fraction(double fraction, int device) {
  return call(&CachingAllocator::set_memory_fraction, fraction, device);
}

int cachalot_begin_tagged(const char* tag, int device) {
  return guarded([&] { allocator().begin_tagged(tag_of("cachalot_begin_tagged", tag), device); });
}

int cachalot_end_tagged(const char* tag, int device) {
  return guarded([&] { allocator().end_tagged(tag_of("cachalot_end_tagged", tag), device); });
}

int cachalot_release_physical(const char* tag, int save, int device) {
  return guarded([&] { allocator().release_physical(tag_of("cachalot_release_physical", tag), save != 0, device); });
}

int cachalot_restore_physical(const char* tag, int device) {
  return guarded([&] { allocator().restore_physical(tag_of("cachalot_restore_physical", tag), device); });
}

int cachalot_release_tags(const char* const* tags, std::size_t count, int save, int device) {
  return guarded([&] { allocator().release_tags(tags_of("cachalot_release_tags", tags, count), save != 0, device); });
}

int cachalot_restore_tags(const char* const* tags, std::size_t count, int device) {
  return guarded([&] { allocator().restore_tags(tags_of("cachalot_restore_tags", tags, count), device); });
}

char* cachalot_tags_json(void) {
  return value_or<char*>(nullptr, [&] { return copy_of(to_json(allocator().tags())); });
}

int cachalot_fragmentation(int device, cachalot_fragmentation_t* out) {
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr,
                     "cachalot_fragmentation: out is NULL; it must point to a cachalot_fragmentation_t");
    *out = to_c(allocator().fragmentation(device));
  });
}

char* cachalot_memory_stats_json(int device) {
  return value_or<char*>(nullptr, [&] { return copy_of(to_json(allocator().memory_stats(device))); });
}

char* cachalot_snapshot_json(void) {
  return value_or<char*>(nullptr, [&] { return copy_of(to_json(allocator().snapshot())); });
}

char* cachalot_check_guard_json(void) {
  return value_or<char*>(nullptr, [&] { return copy_of(to_json(AllocatorGuard(allocator()).check())); });
}

void cachalot_string_free(char* string) { std::free(string); }

const char* cachalot_last_error(void) { return last_error; }

int cachalot_configure(const char* options) {
  return guarded([&] {
    CACHALOT_REQUIRE(options != nullptr,
                     "cachalot_configure: options is NULL; it must point to a text, which may be empty");
    process_allocator().configure(options);
  });
}

int cachalot_set_limit(const char* limit, int device) {
  return guarded([&] { allocator().set_limit(limit_of("cachalot_set_limit", limit), device); });
}

int cachalot_set_soft_limit(const char* limit, cachalot_soft_limit_callback callback, void* context, int device) {
  return guarded([&] {
    const MemoryLimit soft = limit_of("cachalot_set_soft_limit", limit);
    allocator().set_soft_limit(soft, to_function(callback, context), device);
  });
}

int cachalot_limit_figures(int device, cachalot_limits_t* out) {
  static_assert(CACHALOT_NO_LIMIT == MemoryLimit::kNone);
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr, "cachalot_limit_figures: out is {}; it must point to a cachalot_limits_t", "NULL");
    const LimitFigures figures = allocator().limit_figures(device);
    *out = {figures.limit_bytes.value_or(CACHALOT_NO_LIMIT), figures.soft_limit_bytes.value_or(CACHALOT_NO_LIMIT),
            figures.held_bytes, figures.reservation_bytes};
  });
}

size_t cachalot_trim(size_t keep, int device) { return figure(&CachingAllocator::trim, keep, device); }

int cachalot_reserve(size_t size, int device) { return call(&CachingAllocator::reserve, size, device); }

int cachalot_publish(const char* directory) {
  return guarded([&] { publish_process(allocator(), directory == nullptr ? "" : directory); });
}

int cachalot_stop_publishing(void) {
  return guarded([] { stop_publishing_process(); });
}
