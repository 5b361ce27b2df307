// Data of single threads, and access to it by others: fences, objects that can be recalled from their thread, sums of one
// writer, and the parts of threads in long-lived objects.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/process.h"

CACHALOT_BEGIN

// Two fences that order like two full ones, of which the one on the frequent side costs nothing: a thread that stores
// and then loads often is paid for by the heavy_fence of a thread that does so rarely, which makes every running thread
// of the process pass a full fence (Linux's membarrier, private expedited; about a microsecond).
//
//   often:  mine = 1; light_fence(); look at theirs        rarely:  theirs = 1; heavy_fence(); look at mine
//
// At least one of the two sees what the other stored. Thread safety: any thread.

// Returns whether the system has them (Linux 4.14); asked once. Without them, light_fence orders nothing.
bool has_asymmetric_fences();

inline void light_fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
void heavy_fence();

// For tests: heavy_fence calls `hook` first, unless it is null. No thread calls heavy_fence meanwhile.
void set_heavy_fence_hook(void (*hook)());

// A Recallable is used by one thread without a lock, and others may take it from that thread: a cache, a stack.
//
// Its thread comes and goes (enter, leave) at the cost of two plain stores. Another thread recalls it: its own thread
// is turned away from then on, and once that has left, the object is the caller's until the recall ends. Recalls take
// turns by a mutex of their own, and the thread that was turned away waits for the same mutex.
//
//   recall(); heavy_fence(); wait_until_left(); … end_recall();
//
// Thread safety: enter and leave by its thread, the others with that mutex held.
class Recallable {
 public:
  // Returns false if it is recalled.
  CACHALOT_FAST_PATH bool enter() {
    busy_.store(true, std::memory_order_relaxed);
    light_fence();
    if (!recalled_.load(std::memory_order_acquire)) [[likely]]
      return true;
    leave();
    return false;
  }
  CACHALOT_FAST_PATH void leave() { busy_.store(false, std::memory_order_release); }

  void recall() { recalled_.store(true, std::memory_order_relaxed); }
  bool is_recalled() const { return recalled_.load(std::memory_order_relaxed); }
  // Waits until its thread has left. No thread stays long: it waits for no lock of others and no call of a driver in
  // there.
  void wait_until_left() const {
    while (busy_.load(std::memory_order_acquire)) sched_yield();
  }
  void end_recall() { recalled_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> busy_{false};
  std::atomic<bool> recalled_{false};
};

// A sum that one thread changes at the cost of a few plain instructions, and anyone may read.
// Thread safety: add and subtract by its thread; gather by one thread at a time; the rest by any.
class ThreadSum {
 public:
  // The thread's work since the last gather: added, the change of the sum, and the highest that this change ever was.
  struct Gathered {
    std::int64_t added, change, highest;
  };

  CACHALOT_FAST_PATH void add(std::int64_t amount) {
    const std::int64_t added = added_.load(std::memory_order_relaxed) + amount;
    added_.store(added, std::memory_order_relaxed);
    const std::int64_t current = added - subtracted_.load(std::memory_order_relaxed);
    if (current > highest_.load(std::memory_order_relaxed)) highest_.store(current, std::memory_order_relaxed);
  }
  CACHALOT_FAST_PATH void subtract(std::int64_t amount) {
    subtracted_.store(subtracted_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  CACHALOT_FAST_PATH std::int64_t current() const {
    return added_.load(std::memory_order_relaxed) - subtracted_.load(std::memory_order_relaxed);
  }
  std::int64_t ungathered() const { return current() - gathered_.load(std::memory_order_relaxed); }
  bool has_news() const { return ungathered() != 0 || added_.load(std::memory_order_relaxed) != gathered_added_; }
  // While its thread is at work a peak may be missed.
  Gathered gather() {
    const std::int64_t added = added_.load(std::memory_order_relaxed);
    const std::int64_t current = added - subtracted_.load(std::memory_order_relaxed);
    const std::int64_t base = gathered_.load(std::memory_order_relaxed);
    const std::int64_t highest = std::max(current, highest_.load(std::memory_order_relaxed));
    highest_.store(current, std::memory_order_relaxed);
    gathered_.store(current, std::memory_order_relaxed);
    return {added - std::exchange(gathered_added_, added), current - base, highest - base};
  }

 private:
  // Two words instead of their difference: so an add need not wait for the subtract before it.
  std::atomic<std::int64_t> added_{0};
  std::atomic<std::int64_t> subtracted_{0};
  std::atomic<std::int64_t> highest_{0};   // of current() since the last gather
  std::atomic<std::int64_t> gathered_{0};  // of current()
  std::int64_t gathered_added_ = 0;
};

// Threads' parts in long-lived objects: what a thread has with each Owner, and gives back to those that still live when
// it ends.
//
// An Owner has an id, which is never another's, and two functions:
//   void retire(Part&)             the calling thread ends; what it had comes back. No owner may go meanwhile.
//   static void forget_thread()    the same, of what Owner keeps for its threads in variables of its own
//
// A forked child begins without owners: those that it inherits have no parts there.
//
// Thread safety: every function from any thread; find, add and has_ended are about the calling one.
template <typename Owner, typename Part>
class ThreadParts {
 public:
  // From now on threads that end come to the owner; returns its id.
  static std::uint64_t add_owner(Owner& owner) {
    static std::atomic<std::uint64_t> last{0};
    const std::uint64_t id = ++last;
    const std::lock_guard<std::mutex> lock(living().mutex);
    living().by_id.emplace(id, &owner);
    return id;
  }
  // They come no more. Waits for those that are on their way, so no lock is held that retire() takes.
  static void remove_owner(std::uint64_t id) {
    const std::lock_guard<std::mutex> lock(living().mutex);
    living().by_id.erase(id);
  }

  // Returns whether the thread is past the point where it gave everything back.
  static bool has_ended() { return ended_; }
  // Returns the calling thread's part in this owner, or null if it has none. Requires: the thread has not ended.
  static Part* find(std::uint64_t owner) {
    for (const auto& [id, part] : of_this_thread().parts_) {
      if (id == owner) return part;
    }
    return nullptr;
  }
  // Throws std::bad_alloc.
  static void add(std::uint64_t owner, Part& part) {
    of_this_thread().forget_the_dead();
    of_this_thread().parts_.emplace_back(owner, &part);
  }

  ThreadParts(const ThreadParts&) = delete;
  ThreadParts& operator=(const ThreadParts&) = delete;

 private:
  // Leaked: threads end after static objects, too.
  struct Living final : ForkAware {
    // A thread that is not here may hold the mutex and be changing the map: the child gets new ones.
    void on_fork() noexcept override {
      Owner::forget_thread();
      current() = new Living;  // NOLINT(bugprone-unhandled-exception-at-new): a child without memory for it ends
    }
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Owner*> by_id;
  };
  static Living*& current() {
    static auto* living = new Living;
    return living;
  }
  static Living& living() { return *current(); }

  ThreadParts() = default;
  ~ThreadParts() {
    ended_ = true;
    Owner::forget_thread();
    Living& all = living();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [owner, part] : parts_) {
      if (const auto found = all.by_id.find(owner); found != all.by_id.end()) found->second->retire(*part);
    }
  }
  // Tries: the caller may hold a lock that retire() takes.
  void forget_the_dead() {
    const std::unique_lock<std::mutex> lock(living().mutex, std::try_to_lock);
    if (lock) std::erase_if(parts_, [](const auto& part) { return !living().by_id.contains(part.first); });
  }
  static ThreadParts& of_this_thread() {
    static thread_local ThreadParts mine;
    return mine;
  }

  static inline constinit thread_local bool ended_ = false;  // still there when other objects of the thread go
  std::vector<std::pair<std::uint64_t, Part*>> parts_;
};

CACHALOT_END
