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
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/fork_aware.h"

CACHALOT_BEGIN

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

  // Whether the thread is past the point where it gave everything back.
  static bool has_ended() { return ended_; }
  // nullptr: it has no part in this owner. It has not ended.
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
