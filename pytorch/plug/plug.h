// The seam between libcachalot_torch.so, which holds the allocator and knows nothing of torch, and an adapter, which is
// compiled for one version of torch and knows nothing of how memory is managed.
//
// The library keeps the allocator to itself (hidden symbols, so that it never meets another copy of cachalot in the
// process) and exports one function, cachalot_plug, that returns this interface. Methods mean what CachingAllocator's
// methods of the same names mean; caching_allocator.h has their contracts. A Forwarded is such a method itself; a
// virtual method has a rule of its own here, or is not the allocator's. Errors are cachalot's own (errors.h): their
// types are in headers alone, so they cross from one library to the other.
// Thread safety: as CachingAllocator. The object lives until the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

// An adapter is compiled with these headers, and linked with nothing of the library's.
#ifndef CACHALOT_WITHOUT_LIBRARY
#define CACHALOT_WITHOUT_LIBRARY
#endif
#include "cachalot/caching_allocator.h"

namespace cachalot {

// Copies a message across an adapter's C boundary: cut to `capacity` bytes, the closing zero included.
inline void copy_text(std::string_view text, char* out, std::size_t capacity) {
  if (out == nullptr || capacity == 0) return;
  out[text.copy(out, capacity - 1)] = '\0';
}

// Changes with this interface: an adapter refuses a library with another number.
inline constexpr int kPlugVersion = 13;

// A function of CachingAllocator as a member of Plug: same parameters, same contract, declared once. An adapter calls it
// through the pointer, since the library exports no symbol of the allocator. The library sets the pointer where it makes the
// Plug (plug.cpp); no adapter makes one.
template <auto function, typename Group, typename Result, typename... Args>
class ForwardedCall {
 public:
  Result operator()(Args... args) const { return call_(std::forward<Args>(args)...); }

 private:
  static Result call(Args... args);  // on the process's allocator; in plug.cpp

  Result (*call_)(Args...) = &call;
};

template <auto function>
class Forwarded;
template <typename Group, typename Result, typename... Args, Result (Group::*function)(Args...)>
class Forwarded<function> : public ForwardedCall<function, Group, Result, Args...> {};
template <typename Group, typename Result, typename... Args, Result (Group::*function)(Args...) const>
class Forwarded<function> : public ForwardedCall<function, Group, Result, Args...> {};

class Plug {
 public:
  // Applies torch's own configuration. CACHALOT_CONF and the options of others are applied on top of it. Before the
  // first use of memory it is what the allocator starts with, later it takes effect at once. `expandable` is the value of
  // expandable_segments where these settings name it.
  virtual void configure(const Options& torch_options, std::optional<bool> expandable) = 0;
  // Makes the allocator for the CUDA devices there are. Every other method does so, too, when it is called first,
  // except for has_virtual_memory and takes_virtual_memory.
  virtual void start() = 0;

  virtual void* allocate(std::size_t bytes, int device, Stream stream) = 0;
  Forwarded<&CachingAllocator::allocate_at> allocate_at;
  Forwarded<&CachingAllocator::allocate_plain_beside> allocate_plain_beside;
  virtual void deallocate(void* ptr) = 0;
  Forwarded<&CachingAllocator::record_stream> record_stream;
  // Records a use of a tensor that came from a pool, whose memory torch takes for foreign. Any other address is ignored.
  virtual void record_pooled(void* ptr, Stream stream) = 0;
  // Empties a private pool's cache; does nothing in a forked child.
  virtual void empty_cache(int device, PoolId pool) = 0;

  Forwarded<&AllocatorFigures::memory_allocated> memory_allocated;
  Forwarded<&AllocatorFigures::memory_reserved> memory_reserved;
  Forwarded<&AllocatorFigures::memory_stats> memory_stats;
  Forwarded<&AllocatorFigures::added_stats> added_stats;
  Forwarded<&AllocatorFigures::snapshot> snapshot;
  Forwarded<&AllocatorFigures::reset_peak_stats> reset_peak_stats;
  Forwarded<&AllocatorFigures::reset_accumulated_stats> reset_accumulated_stats;
  Forwarded<&AllocatorFigures::largest_available> largest_available;

  struct Allocation {
    void* segment = nullptr;          // where its segment starts
    std::size_t segment_bytes = 0;    // of the whole segment
    std::size_t allocated_bytes = 0;  // of its block
  };
  virtual Allocation allocation(void* ptr) const = 0;
  Forwarded<&CachingAllocator::device_of> device_of;
  // Returns whether memory may be virtual memory, and not cudaMalloc's: the page heap's. Before the allocator is made,
  // returns whether it would be with the current settings.
  virtual bool has_virtual_memory() const = 0;
  // Returns the same for memory that is new from now on.
  virtual bool takes_virtual_memory() const = 0;

  Forwarded<&AllocatorSharing::share> share;
  // A process that shared memory, as its bytes name it.
  struct Sender {
    int process = 0;
    std::uint64_t socket = 0;  // its descriptor_socket; 0: none
  };
  // Returns the number of the socket at which this process serves the descriptors that it shares, to processes of the same
  // user; the first call starts a thread for it. Returns 0 if the system has none.
  virtual std::uint64_t descriptor_socket() = 0;
  // Opens memory as open_shared; descriptors in it are the sender's. Close it by close_shared.
  // Throws InvalidArgument also if the sender's descriptors cannot be had.
  virtual void* open_sent(SharedMemory memory, const Sender& sender, int device) = 0;
  Forwarded<&AllocatorSharing::close_shared> close_shared;
  Forwarded<&AllocatorSharing::enable_peer_access> enable_peer_access;

  Forwarded<&AllocatorSettings::set_memory_fraction> set_memory_fraction;
  Forwarded<&AllocatorSettings::memory_fraction> memory_fraction;
  // Has no effect where PYTORCH_NO_CUDA_MEMORY_CACHING keeps caching off.
  virtual void set_caching_enabled(bool enabled) = 0;
  Forwarded<&AllocatorSettings::caching_enabled> caching_enabled;

  // These five keep the exception that the calling thread raises in Python, whatever the observers do. The recorder of
  // contexts is called with the GIL if the thread ever ran Python code. The other four are called as they are if the
  // thread has released the GIL: trackers run under a lock, where no thread may wait for the GIL.
  virtual void add_out_of_memory_observer(OutOfMemoryObserver observer) = 0;
  virtual void add_refusal_observer(RefusalObserver observer) = 0;
  virtual void add_free_memory_callback(FreeMemoryCallback callback) = 0;
  virtual void add_change_tracker(ChangeTracker tracker) = 0;
  virtual void record_history(HistoryOptions history) = 0;
  Forwarded<&AllocatorObservers::history_enabled> history_enabled;
  Forwarded<&AllocatorObservers::annotate> annotate;
  Forwarded<&AllocatorObservers::context_of> context_of;

  Forwarded<&AllocatorPools::create_or_retain_pool> create_or_retain_pool;
  Forwarded<&AllocatorPools::begin_allocate_to_pool> begin_allocate_to_pool;
  Forwarded<&AllocatorPools::end_allocate_to_pool> end_allocate_to_pool;
  Forwarded<&AllocatorPools::begin_capture> begin_capture;
  Forwarded<&AllocatorPools::end_capture> end_capture;
  Forwarded<&AllocatorPools::release_pool> release_pool;
  virtual int pool_use_count(int device, PoolId pool) const = 0;              // 1 in a forked child
  virtual void set_use_on_oom(int device, PoolId pool, bool use_on_oom) = 0;  // false does nothing in a forked child
  Forwarded<&AllocatorPools::set_no_split> set_no_split;
  Forwarded<&AllocatorPools::pool_has_exactly> pool_has_exactly;
  Forwarded<&AllocatorPools::checkpoint_pool> checkpoint_pool;
  Forwarded<&AllocatorPools::restore_pool> restore_pool;

  // Call stacks leave out what lies in the library around `code`: the adapter's.
  virtual void hide_code(const void* code) = 0;

  // The function by which the function-pointer plug reports that memory ran out: it must throw. Without one, the plug
  // throws a std::runtime_error.
  using Thrower = void (*)(const char* message);
  virtual void set_out_of_memory_thrower(Thrower thrower) = 0;

 protected:
  Plug();  // the library's alone
  ~Plug() = default;
};

}  // namespace cachalot

extern "C" {
// Null when `version` is not the library's kPlugVersion.
[[gnu::visibility("default")]] cachalot::Plug* cachalot_plug(int version);
}
