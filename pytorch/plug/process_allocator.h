// The one allocator of the process, behind every door of libcachalot_torch.so: its options, by source, and how it is made.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "c_api/seam.h"
#include "cachalot/caching_allocator.h"
#include "cachalot/memory_watch.h"
#include "pytorch/plug/plug.h"

namespace cachalot {

// Made at first use and never destroyed: tensors may outlive static objects. While it cannot be made (no device, a bad
// CACHALOT_CONF), each call tries again and throws the reason. A forked child of a process that has not made it makes its
// own. Thread-safe.
class Process final : public ForkAware {
 public:
  static Process& instance();

  // Returns the allocator, or null while nothing has needed it.
  static CachingAllocator* made() { return made_allocator.load(std::memory_order_acquire); }

  // Allocates as CachingAllocator::allocate, placed as this thread has asked for.
  void* allocate(std::size_t bytes, int device, Stream stream) {
    if (placing_threads_.load(std::memory_order_relaxed) == 0 || flags_here_ == 0) [[likely]] {
      return process_allocator().allocate(bytes, device, stream);
    }
    return allocate_placed(bytes, device, stream);
  }
  // Sets the flags of cachalot_malloc_with_flags for this thread's allocations from now on; returns what they were. Throws
  // InvalidArgument for an unknown flag.
  unsigned place(unsigned flags);

  // Sets the base under the environment's CACHALOT_CONF and amend's text: PYTORCH_CUDA_ALLOC_CONF as its reader
  // understood it. Once the allocator is made, its heap stays. Then `expandable`, which says whether expandable_segments is
  // named, and how, switches the page heap's new memory (Options::plain); expandable_segments:True for a heap of segments
  // is ignored, and the first time a line on stderr says so.
  void set_base(const Options& base, std::optional<bool> expandable);
  // Sets the base from PYTORCH_CUDA_ALLOC_CONF's text, read on top of the base before it as PyTorch does; each setting
  // that is left out is a line on stderr.
  void set_base(std::string_view text);
  // The text of options on top, in place of the one before. Strict; nothing has changed when it throws InvalidArgument.
  void amend(std::string_view text);
  // A text of options on top of all others, for as long as the process lives. Strict as amend.
  void configure(std::string_view text);

  // Makes the allocator, as make_allocator.
  CachingAllocator& make();

  // Says that others than PyTorch, whose streams end, will use the allocator: unless immortal_streams is set, a handle is then
  // not taken for the same stream permanently. Has no effect once the allocator is made.
  void expect_other_libraries();

  // Returns whether the heap is the page heap, or would be if the allocator were made now.
  bool has_pages();
  // Returns whether new memory is pages, or would be.
  bool takes_pages();
  // The option pinned_limit, as all sources together say it.
  std::size_t pinned_limit();

  // Caching stays off where PYTORCH_NO_CUDA_MEMORY_CACHING says so.
  void set_caching_enabled(bool enabled);

  void set_out_of_memory_thrower(Plug::Thrower thrower) { thrower_.store(thrower); }
  [[noreturn]] void throw_out_of_memory(const char* message) const;

 private:
  // A thread that is not here may have been making it.
  void on_fork() noexcept override { new (&mutex_) std::mutex; }
  Options amended_by_all(Options base, std::string_view amendment) const;
  void* allocate_placed(std::size_t bytes, int device, Stream stream);
  Options options_now();
  Options keeping_heap(Options options) const;
  Options first_options() const;
  void take_base(Options base, std::optional<bool> expandable);
  void tell_of_heap();

  std::mutex mutex_;              // held while the allocator is made or configured
  MemoryWatch* watch_ = nullptr;  // never destroyed, as the allocator
  bool base_given_ = false;
  Options base_;  // PYTORCH_CUDA_ALLOC_CONF's
  std::string amendment_;
  std::vector<std::string> configured_;
  std::optional<bool> is_plain_;  // new memory of the page heap, by the last switch at run time
  bool told_of_heap_ = false;
  bool streams_end_ = false;
  std::atomic<Plug::Thrower> thrower_{nullptr};
  std::atomic<int> placing_threads_{0};  // spares others a look at their own: one that ends may stay counted
  static inline thread_local unsigned flags_here_ = 0;
};

// Lets the function of cachalot_plug_on_out_of_memory, whichever is set by then (oom_hooks.cpp), know of the allocator's failures.
void tell_of_out_of_memory(CachingAllocator& allocator);

}  // namespace cachalot
