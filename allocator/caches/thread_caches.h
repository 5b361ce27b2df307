// One device's thread caches: a malloc or free of a small block takes no lock while the thread's cache serves it.
//
//   malloc   the thread's blocks of that size; else a batch that other threads left in the depot; else the heap's, which
//            the caller (FastPath) asks, to add() some more to the cache
//   free     into the cache of the thread that frees, whoever allocated; beyond two batches of a size, one goes to the
//            depot, for threads that allocate; what depot and limit have no room for goes back to the heap, in one go
//
// Bounds: threads share half of a budget evenly, the depots have the other half, but where a thread is by itself; a
// thread caches kMostThreadBytes at most. Unless the budget is 0 a thread may always cache kLeastThreadBytes, and the
// depots of several threads kLeastDepotBytes for each. (A batch from a depot may be more than a thread's limit has room
// for; its next free gives back.) A cache learns of a new budget when its thread next comes to the heap, of a new
// thread at once.
//
// The usual malloc and free come by HotCache, and here only where that does not serve.
//
// Thread safety: allocate and deallocate from any thread, without the device's mutex. All else with it held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/host_memory.h"
#include "base/locks.h"
#include "base/thread_local_state.h"
#include "blocks/block_pool.h"
#include "caches/depot.h"
#include "caches/hot_cache.h"
#include "caches/thread_cache.h"
#include "device/addresses.h"

CACHALOT_BEGIN

class ThreadCaches : public HostObject {
 public:
  enum class Which { all, of_others_with_blocks };
  // Keeps threads away from their caches, for the holder of the mutex: meanwhile they go to the heap instead, and wait.
  // The holder's own cache may be left out. `caches` is null if there are none.
  class Recall {
   public:
    explicit Recall(const ThreadCaches* caches, Which which = Which::all) CACHALOT_HELD;
    ~Recall();
    Recall(const Recall&) = delete;
    Recall& operator=(const Recall&) = delete;

   private:
    const ThreadCaches* caches_;
  };

  static constexpr std::int64_t kMostThreadBytes = std::int64_t{1} << 20;
  static constexpr std::int64_t kLeastThreadBytes = 2 * SizeClass::kMostBatchBytes;  // or threads could pass on nothing
  static constexpr std::int64_t kLeastDepotBytes = 16 * SizeClass::kMostBatchBytes;  // two threads have them under way
  // The bytes that a thread's sums may run ahead of the statistics before they are gathered.
  static constexpr std::int64_t kMostUngatheredBytes = std::int64_t{1} << 20;

  // Threads that pass blocks on to each other need what lies in their caches. Where they have drained these so often,
  // with so few visits to the heap in between, it had better grow once. (PyTorch's backward pass is a second thread,
  // too, but its models have not come to this: with 4 of them, or with 1,000 visits, they need no more memory.)
  static constexpr std::uint32_t kMostDrainsInARow = 8;
  static constexpr std::uint64_t kVisitsBetweenDrains = 256;

  // The functions of the device that a cache needs; called with the mutex held.
  struct Heap {
    std::function<void(Block&, const Held&)> put_back;  // a cached block is free again
    std::function<void(const Held&)> visited;           // a thread has come: to set the budget, and gather the sums
  };

  ThreadCaches(Mutex& mutex, Heap heap);
  // Whatever is cached is forgotten. forget_threads() has been called.
  ~ThreadCaches() = default;
  ThreadCaches(const ThreadCaches&) = delete;
  ThreadCaches& operator=(const ThreadCaches&) = delete;

  // Returns the number by which HotCache knows these caches: never another's.
  std::uint64_t id() const { return id_; }

  // Returns a block for `bytes` in [1, SizeClass::kLargestBytes], or null: then the heap must serve.
  void* allocate(std::size_t bytes, StreamKey stream);
  // Returns false if `ptr` is not the address of a block that was handed out from a cache, or the heap must take it.
  bool deallocate(Block& block, const void* ptr);

  std::int64_t threads() const CACHALOT_HELD { return static_cast<std::int64_t>(threads_.size() - unused_.size()); }
  // Threads that end from now on do not come to their caches. Without the mutex held: one may be on its way.
  void forget_threads();
  // A thread has come to the heap: what all caches and depots may hold.
  void set_budget(std::size_t bytes) CACHALOT_HELD {
    ++visits_;
    if (budget_bytes_ != bytes) [[unlikely]]
      change_budget(bytes);
    if (ThreadCache* mine = of_this_thread()) mine->set_limit(thread_limit_);
  }
  // This thread's cache for a stream, made if there was none; nullptr for a thread that is ending, and where there is
  // no host memory for one.
  StreamCache* of_this_thread(StreamKey stream, const Held& held) noexcept CACHALOT_HELD;
  // Returns the calling thread's cache, or null if it has none.
  ThreadCache* of_this_thread() const { return HotCache::is_of(id_) ? &HotCache::get().owner : find_registered(); }
  // Ends the caches of a stream that has ended, or whose memory has gone: none of its blocks stay cached. If it comes
  // again, it has caches again.
  void end_stream(StreamKey stream, const Held& held) CACHALOT_HELD;
  void end_streams_but(const Set<StreamKey>& kept, const Held& held) CACHALOT_HELD;
  // Returns the number of blocks of a class that the heap should add() now, beside the one that the caller wants.
  std::uint32_t more_blocks(StreamCache& cache, std::size_t size_class) const;
  // A block of the heap, marked kCached, to be handed out later, or (hand_out) now, for `bytes`.
  void add(StreamCache& cache, Block& block);
  void hand_out(StreamCache& cache, Block& block, std::size_t bytes);

  template <typename Visit>
  void for_each(Visit&& visit) const CACHALOT_HELD {
    for (const auto& cache : threads_) visit(*cache);
  }
  // Puts what this thread caches back into the heap, or all that is cached; false: there was nothing.
  bool return_own(StreamCache& cache, const Held& held) CACHALOT_HELD;
  bool drain(const Held& held) CACHALOT_HELD;
  // Asked before each drain() for want of a small block.
  bool should_grow_instead() CACHALOT_HELD;
  // Returns, under a Recall, the first error, or "", given the number of blocks marked as cached.
  std::string validate(std::size_t cached_blocks) const CACHALOT_HELD;
  std::size_t metadata_bytes() const CACHALOT_HELD;

 private:
  using Parts = ThreadParts<ThreadCaches, ThreadCache>;  // the cache of a thread
  friend Parts;

  bool switch_to(StreamKey stream, bool may_make);
  static bool next_batch(StreamCache& cache, std::size_t size_class);
  void make_room(StreamCache& cache, std::int64_t bytes);
  static void drop_batch(StreamCache& cache, std::size_t size_class);
  static bool make_room_in_cache(StreamCache& cache, std::int64_t bytes);
  static bool must_gather(const ThreadCache& cache);
  auto putting_back(const Held& held) {
    return [this, &held](Block& block) { heap_.put_back(block, held); };
  }
  StreamCache& make_for_this_thread(StreamKey stream, const Held& held) CACHALOT_HELD;
  ThreadCache& register_thread(const Held& held) CACHALOT_HELD;
  void retire(ThreadCache& cache);
  static void forget_thread() { HotCache::forget(); }
  ThreadCache* find_registered() const;
  void change_budget(std::size_t bytes) CACHALOT_HELD;
  void set_limits() CACHALOT_HELD;
  void share_out(const Held& held) CACHALOT_HELD;

  const std::uint64_t id_;  // never another's
  Mutex& mutex_;
  const Heap heap_;
  std::size_t budget_bytes_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::int64_t thread_limit_ CACHALOT_GUARDED_BY(device_lock) = 0;  // from the budget and the number of threads
  DepotBudget depot_budget_;
  std::uint64_t visits_ CACHALOT_GUARDED_BY(device_lock) = 0;      // of all threads to the heap
  std::uint64_t last_drain_ CACHALOT_GUARDED_BY(device_lock) = 0;  // at which visit
  std::uint32_t drains_in_a_row_ CACHALOT_GUARDED_BY(device_lock) = 0;
  HashMap<StreamKey, std::unique_ptr<Depot>> depots_ CACHALOT_GUARDED_BY(device_lock);
  Vector<std::unique_ptr<Depot>> ended_
      CACHALOT_GUARDED_BY(device_lock);  // of streams that have ended, while blocks have their words
  Vector<std::unique_ptr<ThreadCache>> threads_ CACHALOT_GUARDED_BY(device_lock);
  Vector<ThreadCache*> unused_ CACHALOT_GUARDED_BY(device_lock);  // of threads that have ended
};

CACHALOT_END
