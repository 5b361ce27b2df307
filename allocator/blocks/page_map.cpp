#include "blocks/page_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

CACHALOT_BEGIN

// All-zero bytes are null pointers, and null std::atomics of them, on every ABI we build for. The root costs memory only
// where it is touched.
PageMap::PageMap() {
  void* const root =
      mmap(nullptr, kRootEntries * sizeof(*root_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (root == MAP_FAILED) throw std::bad_alloc();
  root_ = static_cast<std::atomic<Node*>*>(root);
}

PageMap::~PageMap() { munmap(root_, kRootEntries * sizeof(*root_)); }

// --- addresses that come and go ---------------------------------------------------------------------------------------

void PageMap::enter(Address begin, std::size_t bytes) {
  const Lock lock(mutex_);
  const std::size_t first = begin >> kNodeShift;
  const std::size_t last = (begin + bytes - 1) >> kNodeShift;
  std::size_t place = first;
  try {
    for (; place <= last; ++place) ++entered_[place];
  } catch (...) {
    while (place-- > first) {
      if (--entered_.at(place) == 0) entered_.erase(place);
    }
    throw;
  }
}

void PageMap::leave(Address begin, std::size_t bytes) noexcept {
  const Lock lock(mutex_);
  const Address end = begin + bytes;
  for (std::size_t place = begin >> kNodeShift; place <= (end - 1) >> kNodeShift; ++place) {
    const auto count = entered_.find(place);
    CACHALOT_ASSERT(count != entered_.end());
    const bool is_last = --count->second == 0;
    if (is_last) entered_.erase(count);
    Node* const node = root_[place].load(std::memory_order_acquire);
    if (node == nullptr) continue;
    if (!is_last) {
      clear(*node, place, begin, end);
      continue;
    }
    root_[place].store(nullptr, std::memory_order_release);
    clear(*node, place, 0, ~Address{0});  // also shared ones: no user is left
    give(*node);
    tidy_root(place);
  }
}

// Gives empty pages of the root back; a page of 4 KiB is for a TiB. Reads there see zeros before as after.
void PageMap::tidy_root(std::size_t place) noexcept {
  static const auto host_page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t entries = host_page / sizeof(*root_);
  const std::size_t first = round_down(place, entries);
  const auto next = entered_.lower_bound(first);
  if (next == entered_.end() || next->first >= first + entries) madvise(&root_[first], host_page, MADV_DONTNEED);
}

void PageMap::forget(Address begin, std::size_t bytes) noexcept {
  const Lock lock(mutex_);
  const Address end = begin + bytes;
  for (std::size_t place = begin >> kNodeShift; place <= (end - 1) >> kNodeShift; ++place) {
    if (Node* const node = root_[place].load(std::memory_order_acquire)) clear(*node, place, begin, end);
  }
}

// A slot that begins or ends with something else may be others', too.
void PageMap::clear(Node& node, std::size_t place, Address begin, Address end) noexcept {
  const Address node_begin = Address{place} << kNodeShift;
  const Address node_end = node_begin + (Address{1} << kNodeShift);
  begin = std::max(round_up(begin, Node::kSlotBytes), node_begin);
  end = std::min(end / Node::kSlotBytes * Node::kSlotBytes, node_end);
  for (Address at = begin; at < end; at += Node::kSlotBytes) clear<Table>(node.slot(at));
}

template <typename Child>
void PageMap::clear(std::atomic<Entry>& slot) noexcept {
  const Entry entry = slot.load(std::memory_order_relaxed);
  if (entry == kNothing) return;
  slot.store(kNothing, std::memory_order_release);
  if (!has_child(entry)) return;
  Child& child = *reinterpret_cast<Child*>(memory_.at(entry - 1));
  for (std::atomic<Entry>& below : child.slots) {
    if constexpr (std::is_same_v<Child, Table>) {
      clear<Leaf>(below);
    } else {
      below.store(kNothing, std::memory_order_relaxed);
    }
  }
  give(child);
}

// --- nodes, tables and leaves -----------------------------------------------------------------------------------------

template <typename Kind>
PageMap::Store<Kind>& PageMap::store() {
  if constexpr (std::is_same_v<Kind, Node>) {
    return nodes_;
  } else if constexpr (std::is_same_v<Kind, Table>) {
    return tables_;
  } else {
    return leaves_;
  }
}

template <typename Kind>
Kind& PageMap::take(std::size_t alignment) {
  Store<Kind>& from = store<Kind>();
  if (from.spare.empty()) {
    if (from.spare.capacity() == from.made) from.spare.reserve(2 * from.made + 1);
    auto* const fresh = static_cast<Kind*>(memory_.allocate(sizeof(Kind), alignment));
    ++from.made;
    return *fresh;
  }
  Kind& spare = *from.spare.back();
  from.spare.pop_back();
  return spare;
}

template <typename Kind>
void PageMap::give(Kind& kind) noexcept {
  store<Kind>().spare.push_back(&kind);
}

// Another device may have been first; then its node serves.
PageMap::Node& PageMap::add_node(Address address) noexcept {
  const Lock lock(mutex_);
  std::atomic<Node*>& place = root_[address >> kNodeShift];
  if (Node* const others = place.load(std::memory_order_acquire); others != nullptr) return *others;
  Node& node = take<Node>(kCacheLine);
  place.store(&node, std::memory_order_release);
  return node;
}

template <typename Child>
PageMap::Entry PageMap::add_child(std::atomic<Entry>& slot) noexcept {
  const Lock lock(mutex_);
  Child& fresh = take<Child>(sizeof(Child));
  // A block that is not live any more may have another address by now, also while this looks: then it is found nowhere,
  // as it should be.
  if (const Entry before = slot.load(std::memory_order_acquire); before != kNothing) {
    const Address address = __atomic_load_n(&block_of(before).address, __ATOMIC_RELAXED);
    fresh.slot(address).store(before, std::memory_order_relaxed);
  }
  const Entry entry = memory_.number_of(&fresh) | 1;
  slot.store(entry, std::memory_order_release);
  return entry;
}
template PageMap::Entry PageMap::add_child<PageMap::Table>(std::atomic<Entry>&) noexcept;
template PageMap::Entry PageMap::add_child<PageMap::Leaf>(std::atomic<Entry>&) noexcept;

CACHALOT_END
