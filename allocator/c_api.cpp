// The C boundary: one allocator for the process, and exceptions turned into codes and messages.
#include "cachalot/c_api.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "base/locks.h"
#include "base/process.h"
#include "c_api_boundary.h"
#include "c_api_cached_path.h"
#include "c_api_environment.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/errors.h"
#include "cachalot/kernels.h"
#include "cachalot/stream_check.h"
#include "cachalot/version.h"
#include "live/process_publisher.h"
#include "policy/option_warnings.h"

CACHALOT_BEGIN
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

}  // namespace

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
  } catch (const std::exception& error) {
    return fail(CACHALOT_E_INTERNAL, error.what());
  } catch (...) {
    return fail(CACHALOT_E_INTERNAL, "unknown exception");
  }
}

namespace {

// ---- The process's allocator ----------------------------------------------------------------------------------------

// The allocator, once it is made: outside of what makes it, so that a malloc gets it by one load.
constinit std::atomic<CachingAllocator*> made_allocator{nullptr};

// Made at first use and never destroyed: memory may be freed by destructors that run after ours would. While it cannot
// be made, each call tries again and fails with the reason. A forked child of a process that has not made it makes its own.
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
    const Lock lock(mutex_);
    if (CachingAllocator* const made = made_allocator.load(std::memory_order_acquire)) return *made;
    const Options options = initial_options();
    const bool publishes = publishes_by_environment();
    auto allocator = std::make_unique<CachingAllocator>(devices_of_environment(), options, kernels_for);
    made_allocator.store(allocator.get(), std::memory_order_release);
    if (publishes) publish_as_asked(*allocator);
    return *allocator.release();
  }

 private:
  // A thread that is not here may have been making it.
  void on_fork() noexcept override { new (&mutex_) SleepingMutex; }

  Options initial_options() const CACHALOT_REQUIRES(mutex_) {
    return configured_ ? *configured_ : options_of_environment();
  }

  SleepingMutex mutex_;                                            // held while the allocator is made or configured
  std::optional<Options> configured_ CACHALOT_GUARDED_BY(mutex_);  // by configure, before the allocator was made
};

ProcessAllocator& process_allocator() {
  static ProcessAllocator& process = *new ProcessAllocator;
  return process;
}

CachingAllocator& allocator() {
  CachingAllocator* const made = made_allocator.load(std::memory_order_acquire);
  if (made != nullptr) [[likely]]
    return *made;
  return process_allocator().make();
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

// Of memory that lies in one piece.
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

// Where ONNX Runtime's functions allocate.
constinit std::atomic<int> onnxruntime_device{0};
constinit std::atomic<Stream> onnxruntime_stream{nullptr};

// For the caller to free.
char* copy_of(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace

CachingAllocator& c_allocator() { return allocator(); }

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

int cachalot_drain_thread_caches(int device) {
  return guarded([&] { allocator().drain_thread_caches(device); });
}

size_t cachalot_memory_allocated(int device) {
  return value_or<size_t>(0, [&] { return allocator().memory_allocated(device); });
}

size_t cachalot_memory_reserved(int device) {
  return value_or<size_t>(0, [&] { return allocator().memory_reserved(device); });
}

size_t cachalot_max_memory_allocated(int device) {
  return value_or<size_t>(0, [&] { return allocator().max_memory_allocated(device); });
}

size_t cachalot_max_memory_reserved(int device) {
  return value_or<size_t>(0, [&] { return allocator().max_memory_reserved(device); });
}

int cachalot_reset_peak_memory_stats(int device) {
  return guarded([&] { allocator().reset_peak_stats(device); });
}

int cachalot_reset_accumulated_memory_stats(int device) {
  return guarded([&] { allocator().reset_accumulated_stats(device); });
}

int cachalot_record_stream(void* ptr, cudaStream_t stream) {
  return guarded([&] {
    if (ptr != nullptr) allocator().record_stream(ptr, stream);
  });
}

int cachalot_stream_ends(cudaStream_t stream) {
  return guarded([&] { allocator().stream_ends(stream); });
}

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

int cachalot_close_shared(void* base) {
  return guarded([&] { allocator().close_shared(base); });
}

int cachalot_enable_peer_access(int device, int peer) {
  return guarded([&] { allocator().enable_peer_access(device, peer); });
}

int cachalot_set_memory_fraction(double fraction, int device) {
  return guarded([&] { allocator().set_memory_fraction(fraction, device); });
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
  return value_or<char*>(nullptr, [&] { return copy_of(to_json(allocator().check_guard())); });
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
