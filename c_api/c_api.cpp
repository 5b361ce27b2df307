// The functions of c_api.h over the allocator of the process (seam.h), except for cachalot_malloc and cachalot_free, which each library
// has of its own.

#include "cachalot/c_api.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "base/process.h"
#include "c_api/last_error.h"
#include "c_api/seam.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/events.h"
#include "cachalot/gpu_budget.h"
#include "cachalot/guard.h"
#include "cachalot/options.h"
#include "device/addresses.h"
#include "diagnostics/process_publisher.h"

namespace cachalot {

constinit std::atomic<CachingAllocator*> made_allocator{nullptr};

namespace {

// Calls a function of the allocator and returns a code.
template <typename Function, typename... Arguments>
int call(Function function, const Arguments&... arguments) noexcept {
  return guarded([&] { std::invoke(function, process_allocator(), arguments...); });
}

// Returns the figure that a function of the allocator returns, or 0 if it throws.
template <typename Function, typename... Arguments>
std::size_t figure(Function function, const Arguments&... arguments) noexcept {
  return value_or<std::size_t>(0, [&] { return std::invoke(function, process_allocator(), arguments...); });
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

SleepOptions sleep_options(const char* function, int keep, const char* folder) {
  CACHALOT_REQUIRE(keep >= CACHALOT_KEEP_NOTHING && keep <= CACHALOT_KEEP_FILE,
                   "{}: keep is {}; it must be CACHALOT_KEEP_NOTHING, CACHALOT_KEEP_PINNED or CACHALOT_KEEP_FILE",
                   function, keep);
  return {static_cast<Keep>(keep), folder != nullptr ? folder : ""};
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

// The device and stream on which ONNX Runtime's functions allocate.
constinit std::atomic<int> onnxruntime_device{0};
constinit std::atomic<Stream> onnxruntime_stream{nullptr};

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

// The budgets that the process has joined, by device. Never destroyed: a member that ends with its process needs no more.
class Budgets final : ForkAware {
 public:
  static Budgets& of_process() {
    static Budgets& budgets = *new Budgets;
    return budgets;
  }

  void join(int device, const BudgetOptions& options) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = joined_.find(device);
    CACHALOT_REQUIRE(found == joined_.end(), "device {} is in the budget {:.300}: leave it before another is joined",
                     device, found->second->path());
    joined_.emplace(device, std::make_unique<GpuBudget>(process_allocator(), device, options));
  }
  void leave(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    joined_.erase(device);
  }
  // Returns the path of the budget that was joined for the device; "" without one.
  std::string path(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = joined_.find(device);
    return found == joined_.end() ? "" : found->second->path();
  }

 private:
  // The memberships are the parent's, and stay where they are: another thread may have been using them.
  void on_fork() noexcept override {
    new (&mutex_) std::mutex;
    new (&joined_) std::map<int, std::unique_ptr<GpuBudget>>;
    adopt();
  }

  std::mutex mutex_;  // held while a budget is joined or left
  std::map<int, std::unique_ptr<GpuBudget>> joined_;
};

// A CSegmentTracker calls a callback of C.
class CSegmentTracker final : public SegmentTracker {
 public:
  CSegmentTracker(cachalot_segment_callback callback, void* context) : callback_(callback), context_(context) {}
  bool calls(cachalot_segment_callback callback, const void* context) const {
    return callback_ == callback && context_ == context;
  }
  void on_segment(const Change& change) noexcept override {
    using Action = Change::Action;
    const bool begins = change.action == Action::segment_alloc || change.action == Action::segment_map;
    const bool is_plain = change.action == Action::segment_alloc || change.action == Action::segment_free;
    const cachalot_segment_t in_c = {change.device, begins, is_plain, as_pointer(change.address), change.bytes};
    callback_(&in_c, context_);
  }

 private:
  const cachalot_segment_callback callback_;
  void* const context_;
};

// The callbacks for segments that C programs have added. Never destroyed: the allocator is not, either.
class SegmentCallbacks final : ForkAware {
 public:
  static SegmentCallbacks& of_process() {
    static SegmentCallbacks& callbacks = *new SegmentCallbacks;
    return callbacks;
  }

  void add(cachalot_segment_callback callback, void* context) {
    CACHALOT_REQUIRE(callback != nullptr, "cachalot_add_segment_callback: callback is {}; it must be a function",
                     "NULL");
    const std::lock_guard<std::mutex> lock(mutex_);
    CACHALOT_REQUIRE(find(callback, context) == added_.end(),
                     "cachalot_add_segment_callback: callback {} was added with context {} before: remove it first",
                     reinterpret_cast<void*>(callback), context);
    added_.push_back(std::make_shared<CSegmentTracker>(callback, context));
    try {
      process_allocator().add_segment_tracker(added_.back());
    } catch (...) {
      added_.pop_back();
      throw;
    }
  }
  void remove(cachalot_segment_callback callback, void* context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = find(callback, context);
    CACHALOT_REQUIRE(found != added_.end(),
                     "cachalot_remove_segment_callback: callback {} was not added with context {}: add it first",
                     reinterpret_cast<void*>(callback), context);
    process_allocator().remove_segment_tracker(found->get());
    added_.erase(found);
  }

 private:
  using Added = std::vector<std::shared_ptr<CSegmentTracker>>;
  Added::iterator find(cachalot_segment_callback callback, const void* context) {
    return std::ranges::find_if(added_, [&](const auto& tracker) { return tracker->calls(callback, context); });
  }
  // The callbacks are the parent's, and stay where they are: another thread may have been using them.
  void on_fork() noexcept override {
    new (&mutex_) std::mutex;
    new (&added_) Added;
    adopt();
  }

  std::mutex mutex_;  // held while a callback is added or removed
  Added added_;
};

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

AllocateOptions options_of_flags(unsigned flags) {
  CACHALOT_REQUIRE((flags & ~unsigned{CACHALOT_CONTIGUOUS | CACHALOT_PLAIN}) == 0,
                   "flags {:#x}: CACHALOT_CONTIGUOUS (0x1) and CACHALOT_PLAIN (0x2) are all there are", flags);
  return {.contiguous = (flags & CACHALOT_CONTIGUOUS) != 0, .plain = (flags & CACHALOT_PLAIN) != 0};
}

}  // namespace cachalot

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

const char* cachalot_version(void) { return version(); }

void* cachalot_malloc_with_flags(size_t size, int device, cudaStream_t stream, unsigned int flags) {
  return value_or<void*>(nullptr, [&] {
    void* const ptr = process_allocator().allocate(size, device, stream, options_of_flags(flags));
    last_error = "";
    return ptr;
  });
}

void* cachalot_malloc_aligned(size_t size, size_t alignment, int device, cudaStream_t stream) {
  return value_or<void*>(nullptr, [&] {
    void* const ptr = process_allocator().allocate(size, device, stream, {.alignment = alignment});
    last_error = "";
    return ptr;
  });
}

int cachalot_onnxruntime_bind(int device, cudaStream_t stream) {
  return guarded([&] {
    require_stream_of_device(*process_allocator().device(device), stream);
    onnxruntime_device = device;
    onnxruntime_stream = stream;
  });
}

void* cachalot_onnxruntime_alloc(size_t size) {
  return cachalot_malloc_with_flags(size, onnxruntime_device, onnxruntime_stream, 0);
}

void cachalot_onnxruntime_free(void* ptr) {
  guarded([&] {
    if (ptr != nullptr) process_allocator().deallocate(ptr);
    last_error = "";
  });
}

void cachalot_onnxruntime_empty_cache(void) { cachalot_empty_cache(onnxruntime_device); }

int cachalot_empty_cache(int device) {
  return guarded([&] { process_allocator().empty_cache(device); });
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
    if (ptr != nullptr) process_allocator().record_stream(ptr, stream);
  });
}

int cachalot_stream_ends(cudaStream_t stream) { return call(&CachingAllocator::stream_ends, stream); }

int cachalot_share(const void* ptr, cachalot_shared_t* out) {
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr, "cachalot_share: out is NULL; it must point to a cachalot_shared_t");
    *out = to_c(process_allocator().share_contiguous(ptr));
  });
}

void* cachalot_open_shared(const cachalot_shared_t* shared, int device) {
  return value_or<void*>(nullptr, [&] {
    CACHALOT_REQUIRE(shared != nullptr, "cachalot_open_shared: shared is NULL; it must point to a cachalot_shared_t");
    return process_allocator().open_shared(from_c(*shared), device);
  });
}

int cachalot_close_shared(void* base) { return call(&CachingAllocator::close_shared, base); }

int cachalot_enable_peer_access(int device, int peer) {
  return call(&CachingAllocator::enable_peer_access, device, peer);
}

int cachalot_add_segment_callback(cachalot_segment_callback callback, void* context) {
  return guarded([&] { SegmentCallbacks::of_process().add(callback, context); });
}

int cachalot_remove_segment_callback(cachalot_segment_callback callback, void* context) {
  return guarded([&] { SegmentCallbacks::of_process().remove(callback, context); });
}

int cachalot_set_memory_fraction(double fraction, int device) {
  return call(&CachingAllocator::set_memory_fraction, fraction, device);
}

int cachalot_begin_tagged(const char* tag, int device) {
  return guarded([&] { process_allocator().begin_tagged(tag_of("cachalot_begin_tagged", tag), device); });
}

int cachalot_end_tagged(const char* tag, int device) {
  return guarded([&] { process_allocator().end_tagged(tag_of("cachalot_end_tagged", tag), device); });
}

int cachalot_release_physical(const char* tag, int keep, const char* folder, int device) {
  constexpr auto kCall = "cachalot_release_physical";
  return guarded(
      [&] { process_allocator().release_physical(tag_of(kCall, tag), sleep_options(kCall, keep, folder), device); });
}

int cachalot_restore_physical(const char* tag, int device) {
  return guarded([&] { process_allocator().restore_physical(tag_of("cachalot_restore_physical", tag), device); });
}

int cachalot_release_tags(const char* const* tags, std::size_t count, int keep, const char* folder, int device) {
  constexpr auto kCall = "cachalot_release_tags";
  return guarded([&] {
    process_allocator().release_tags(tags_of(kCall, tags, count), sleep_options(kCall, keep, folder), device);
  });
}

int cachalot_restore_tags(const char* const* tags, std::size_t count, int device) {
  return guarded([&] { process_allocator().restore_tags(tags_of("cachalot_restore_tags", tags, count), device); });
}

int cachalot_read_saved(const void* from, void* to, std::size_t size, int* is_kept) {
  return guarded([&] {
    CACHALOT_REQUIRE(to != nullptr, "cachalot_read_saved: to is NULL; it must point to {} bytes", size);
    CACHALOT_REQUIRE(is_kept != nullptr, "cachalot_read_saved: is_kept is NULL; it must point to an int");
    *is_kept = process_allocator().read_saved(from, to, size) ? 1 : 0;
  });
}

int cachalot_make_evictable(const char* tag, int priority, int keep, const char* folder, int device) {
  constexpr auto kCall = "cachalot_make_evictable";
  return guarded([&] {
    process_allocator().make_evictable(tag_of(kCall, tag), {priority, sleep_options(kCall, keep, folder), {}}, device);
  });
}

int cachalot_make_resident(const char* tag, int device) {
  return guarded([&] { process_allocator().make_resident(tag_of("cachalot_make_resident", tag), device); });
}

int cachalot_ensure(const char* tag, int device, int* is_lost) {
  return guarded([&] {
    CACHALOT_REQUIRE(is_lost != nullptr, "cachalot_ensure: is_lost is NULL; it must point to an int");
    *is_lost = process_allocator().ensure(tag_of("cachalot_ensure", tag), device) ? 1 : 0;
  });
}

int cachalot_let_go(const char* tag, int device) {
  return guarded([&] { process_allocator().let_go(tag_of("cachalot_let_go", tag), device); });
}

char* cachalot_tags_json(void) {
  return text_or_null([&] { return to_json(process_allocator().tags()); });
}

int cachalot_fragmentation(int device, cachalot_fragmentation_t* out) {
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr,
                     "cachalot_fragmentation: out is NULL; it must point to a cachalot_fragmentation_t");
    *out = to_c(process_allocator().fragmentation(device));
  });
}

char* cachalot_memory_stats_json(int device) {
  return text_or_null([&] { return to_json(process_allocator().memory_stats(device)); });
}

char* cachalot_snapshot_json(void) {
  return text_or_null([&] { return to_json(process_allocator().snapshot()); });
}

char* cachalot_check_guard_json(void) {
  return text_or_null([&] { return to_json(AllocatorGuard(process_allocator()).check()); });
}

int cachalot_configure(const char* options) {
  return guarded([&] {
    CACHALOT_REQUIRE(options != nullptr,
                     "cachalot_configure: options is NULL; it must point to a text, which may be empty");
    configure_allocator(options);
  });
}

int cachalot_set_limit(const char* limit, int device) {
  return guarded([&] { process_allocator().set_limit(limit_of("cachalot_set_limit", limit), device); });
}

int cachalot_set_soft_limit(const char* limit, cachalot_soft_limit_callback callback, void* context, int device) {
  return guarded([&] {
    const MemoryLimit soft = limit_of("cachalot_set_soft_limit", limit);
    process_allocator().set_soft_limit(soft, to_function(callback, context), device);
  });
}

int cachalot_limit_figures(int device, cachalot_limits_t* out) {
  static_assert(CACHALOT_NO_LIMIT == MemoryLimit::kNone);
  return guarded([&] {
    CACHALOT_REQUIRE(out != nullptr, "cachalot_limit_figures: out is {}; it must point to a cachalot_limits_t", "NULL");
    const LimitFigures figures = process_allocator().limit_figures(device);
    *out = {figures.limit_bytes.value_or(CACHALOT_NO_LIMIT), figures.soft_limit_bytes.value_or(CACHALOT_NO_LIMIT),
            figures.held_bytes, figures.reservation_bytes};
  });
}

size_t cachalot_trim(size_t keep, int device) {
  return value_or<std::size_t>(0, [&] {
    const std::size_t bytes = process_allocator().trim(keep, device);
    last_error = "";
    return bytes;
  });
}

size_t cachalot_give_way(size_t size, int device) {
  return value_or<std::size_t>(0, [&] {
    const std::size_t bytes = process_allocator().give_way(size, device);
    last_error = "";
    return bytes;
  });
}

int cachalot_reserve(size_t size, int device) { return call(&CachingAllocator::reserve, size, device); }

int cachalot_publish(const char* directory) {
  return guarded([&] { publish_process(process_allocator(), directory == nullptr ? "" : directory); });
}

int cachalot_stop_publishing(void) {
  return guarded([] { stop_publishing_process(); });
}

int cachalot_join_budget(double share, size_t floor, size_t keep_free, const char* name, const char* path, int tells,
                         int device) {
  return guarded([&] {
    BudgetOptions options;
    options.path = text_or_empty(path);
    options.name = text_or_empty(name);
    options.share = share;
    options.floor_bytes = floor;
    options.keep_free_bytes = keep_free;
    options.tells = tells != 0;
    Budgets::of_process().join(device, options);
  });
}

int cachalot_leave_budget(int device) {
  return guarded([&] { Budgets::of_process().leave(device); });
}

char* cachalot_budget_json(const char* path, int device) {
  return text_or_null([&] {
    std::string file = path == nullptr ? Budgets::of_process().path(device) : path;
    if (path == nullptr && file.empty()) file = default_budget_path(*process_allocator().device(device));
    return to_json(read_budget(file));
  });
}
