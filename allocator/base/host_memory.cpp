#include "base/host_memory.h"

#include <algorithm>

#include "base/locks.h"
#include "base/process.h"

CACHALOT_BEGIN

namespace {

constexpr std::size_t kNodesBytes = 256 * kKiB;  // of the reserve, for what does not grow with the tables
constexpr std::size_t kTablesThatGrow = 4;       // each by the size of the largest one

// Returns memory of the system, or null if it has none. Uses the operator new that throws, because a program may have
// replaced it alone.
void* system_memory(std::size_t bytes, std::size_t alignment) noexcept {
  try {
    if (alignment <= alignof(std::max_align_t)) return ::operator new(bytes);
    return ::operator new (bytes, std::align_val_t{alignment});
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

// A Stock is one piece of the system's memory, behind this head: handed out in order, and again once all has come back.
struct HostReserve::Stock {
  Stock* older;
  std::size_t bytes;
  std::size_t used = sizeof(Stock);
  std::size_t lent = 0;

  void* take(std::size_t wanted, std::size_t alignment) {
    const auto begin = reinterpret_cast<std::uintptr_t>(this);
    const std::size_t at = round_up(begin + used, alignment) - begin;
    if (at + wanted > bytes) return nullptr;
    used = at + wanted;
    ++lent;
    return reinterpret_cast<std::byte*>(this) + at;
  }
  bool holds(const void* ptr) const {
    const auto at = reinterpret_cast<std::uintptr_t>(ptr) - reinterpret_cast<std::uintptr_t>(this);
    return at < bytes;
  }
  bool is_whole() const { return lent == 0; }
};

struct HostReserve::Books final : ForkAware {
  // A thread that is not here may hold the mutex: in a call of the system, with the lists whole.
  void on_fork() noexcept override {
    new (&mutex) SleepingMutex;
    ++forks;
    adopt();
  }
  SleepingMutex mutex;
  Stock* newest CACHALOT_GUARDED_BY(mutex) = nullptr;
  Part* parts CACHALOT_GUARDED_BY(mutex) = nullptr;
  int forks = 0;  // between the first process and this one
};

// Never destroyed: tables of static objects are given back at exit.
HostReserve::Books& HostReserve::books() {
  static Books& books = *new Books;
  return books;
}

void HostReserve::Part::join() {
  Books& all = books();
  const Lock lock(all.mutex);
  forks_ = all.forks;
  next_ = all.parts;
  if (next_ != nullptr) next_->previous_ = this;
  all.parts = this;
}

void HostReserve::Part::leave() noexcept {
  Books& all = books();
  const Lock lock(all.mutex);
  (previous_ != nullptr ? previous_->next_ : all.parts) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

// A stock from which something was lent is left to what is in it, and a new one is made.
void HostReserve::refill() {
  Books& all = books();
  const Lock lock(all.mutex);
  const std::size_t wanted = kNodesBytes + kTablesThatGrow * largest_.load(std::memory_order_relaxed);
  Stock* const old = all.newest;
  if (old == nullptr || !old->is_whole() || old->bytes < wanted) {
    void* const memory = ::operator new(wanted);
    const bool keeps_old = old != nullptr && !old->is_whole();
    all.newest = new (memory) Stock{.older = keeps_old || old == nullptr ? old : old->older, .bytes = wanted};
    if (old != nullptr && !keeps_old) ::operator delete(old);
  }
  for (Part* part = all.parts; part != nullptr; part = part->next_) {
    if (part->forks_ == all.forks && !part->refill()) throw std::bad_alloc();
  }
  most_request_.store(kMostRequest, std::memory_order_relaxed);
}

void* HostReserve::allocate(std::size_t bytes, std::size_t alignment) {
  void* const ptr = system_memory(bytes, alignment);
  if (ptr == nullptr) [[unlikely]]
    return lend(bytes, alignment);
  if (bytes > largest_.load(std::memory_order_relaxed)) [[unlikely]]
    note_largest(bytes);
  return ptr;
}

// The reserve has to grow with the tables.
void HostReserve::note_largest(std::size_t bytes) {
  const Lock lock(books().mutex);
  largest_.store(std::max(bytes, largest_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  most_request_.store(0, std::memory_order_relaxed);
}

void* HostReserve::lend(std::size_t bytes, std::size_t alignment) {
  Books& all = books();
  const Lock lock(all.mutex);
  most_request_.store(0, std::memory_order_relaxed);
  void* const ptr = all.newest == nullptr ? nullptr : all.newest->take(bytes, alignment);
  if (ptr == nullptr) throw std::bad_alloc();
  lent_.fetch_add(1, std::memory_order_relaxed);
  return ptr;
}

void HostReserve::free(void* ptr, std::size_t alignment) noexcept {
  if (lent_.load(std::memory_order_relaxed) != 0 && take_back(ptr)) return;
  if (alignment <= alignof(std::max_align_t)) {
    ::operator delete(ptr);
  } else {
    ::operator delete (ptr, std::align_val_t{alignment});
  }
}

bool HostReserve::take_back(void* ptr) noexcept {
  Books& all = books();
  const Lock lock(all.mutex);
  Stock** link = &all.newest;
  while (*link != nullptr && !(*link)->holds(ptr)) link = &(*link)->older;
  Stock* const stock = *link;
  if (stock == nullptr) return false;
  lent_.fetch_sub(1, std::memory_order_relaxed);
  if (--stock->lent != 0) return true;
  stock->used = sizeof(Stock);
  if (stock == all.newest) return true;
  *link = stock->older;
  ::operator delete(stock);
  return true;
}

CACHALOT_END
