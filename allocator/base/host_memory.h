// The host memory of the allocator's tables, and a reserve of it: an operation that has begun comes to its end.
//
// An operation of a heap changes several tables. If the host's memory ran out between two of them, the state would be half
// changed. So each operation that may need host memory first requires that the reserve is whole (HostReserve::require), or
// throws std::bad_alloc, having changed nothing; tables then take from the reserve what the system does not give. The
// next operation makes the reserve whole again.
//
// Tables are the standard containers under the names below; objects of their own derive from HostObject.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

CACHALOT_BEGIN

// The HostReserve of the process. An operation needs at most a few nodes and the growth of a few tables, each to twice the
// largest one: the reserve has room for that, for some threads that are in operations at the same time.
//
// Thread-safe.
class HostReserve {
 public:
  // A Part is memory that has a reserve of its own.
  class Part {
   public:
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   protected:
    Part() = default;
    ~Part() = default;
    // From join to leave the reserve asks the part, from any thread; not in a forked child, where a thread that is not there may
    // hold the part's lock.
    void join();
    void leave() noexcept;
    // Tells the reserve that the part took from its own.
    static void note_shortage() { most_request_.store(0, std::memory_order_relaxed); }

   private:
    friend class HostReserve;
    // Returns false if the system has no memory.
    virtual bool refill() noexcept = 0;

    Part* previous_ = nullptr;
    Part* next_ = nullptr;
    int forks_ = 0;  // of the process when the part joined
  };

  // Makes the reserve whole, if it is not. Throws std::bad_alloc if the system has no memory.
  static void require() {
    if (is_short()) [[unlikely]]
      refill();
  }
  static bool is_short() { return most_request() == 0; }
  // Returns 0 if the reserve is not whole, and otherwise the largest request of which memory may be asked: the fast path's
  // one comparison asks for both.
  static constexpr std::size_t kMostRequest = (std::size_t{1} << 60) - 1;
  static std::size_t most_request() { return most_request_.load(std::memory_order_relaxed); }

  // Returns memory of the system or, if there is none, of the reserve. Throws std::bad_alloc if that is used up, too.
  static void* allocate(std::size_t bytes, std::size_t alignment);
  static void free(void* ptr, std::size_t alignment) noexcept;

 private:
  struct Stock;
  struct Books;
  static Books& books();
  static void refill();
  static void note_largest(std::size_t bytes);
  static void* lend(std::size_t bytes, std::size_t alignment);
  static bool take_back(void* ptr) noexcept;

  static inline std::atomic<std::size_t> most_request_{0};
  static inline std::atomic<std::size_t> largest_{0};  // of what tables have asked for
  static inline std::atomic<std::size_t> lent_{0};     // the number of pieces of the reserve in use
};

template <typename T>
struct HostAllocator {
  using value_type = T;
  HostAllocator() = default;
  template <typename Other>
  HostAllocator(const HostAllocator<Other>& /*other*/) {}  // NOLINT(google-explicit-constructor): as an allocator must

  T* allocate(std::size_t count) { return static_cast<T*>(HostReserve::allocate(count * sizeof(T), alignof(T))); }
  void deallocate(T* ptr, std::size_t /*count*/) noexcept { HostReserve::free(ptr, alignof(T)); }
  friend bool operator==(const HostAllocator& /*one*/, const HostAllocator& /*other*/) { return true; }
};

template <typename T>
using Vector = std::vector<T, HostAllocator<T>>;
template <typename T>
using Deque = std::deque<T, HostAllocator<T>>;
template <typename T>
using Set = std::set<T, std::less<T>, HostAllocator<T>>;
template <typename Key, typename T>
using Map = std::map<Key, T, std::less<Key>, HostAllocator<std::pair<const Key, T>>>;
template <typename Key, typename T>
using HashMap = std::unordered_map<Key, T, std::hash<Key>, std::equal_to<Key>, HostAllocator<std::pair<const Key, T>>>;

// The base of objects that lie in such memory.
struct HostObject {
  static void* operator new(std::size_t bytes) { return HostReserve::allocate(bytes, alignof(std::max_align_t)); }
  static void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return HostReserve::allocate(bytes, static_cast<std::size_t>(alignment));
  }
  static void* operator new(std::size_t /*bytes*/, void* place) noexcept { return place; }
  static void* operator new[](std::size_t bytes) { return operator new(bytes); }
  static void* operator new[](std::size_t bytes, std::align_val_t alignment) { return operator new(bytes, alignment); }
  static void operator delete(void* ptr) noexcept { HostReserve::free(ptr, alignof(std::max_align_t)); }
  static void operator delete(void* ptr, std::align_val_t alignment) noexcept {
    HostReserve::free(ptr, static_cast<std::size_t>(alignment));
  }
  static void operator delete[](void* ptr) noexcept { operator delete(ptr); }
  static void operator delete[](void* ptr, std::align_val_t alignment) noexcept { operator delete(ptr, alignment); }
};

CACHALOT_END
