#include "blocks/page_map.h"

#include <new>

namespace cachalot {

// All-zero bytes are null pointers, and null std::atomics of them, on every ABI we build for. The root costs memory only
// where it is touched.
PageMap::PageMap() : root_(static_cast<std::atomic<Node*>*>(std::calloc(kRootEntries, sizeof(std::atomic<Node*>)))) {
  if (root_ == nullptr) throw std::bad_alloc();
}

PageMap::Node& PageMap::add_node(Address address) noexcept {
  auto* fresh = static_cast<Node*>(memory_.allocate(sizeof(Node), kCacheLine));
  Node* expected = nullptr;
  // Another device may be first; then its node serves, and this one is never used.
  const bool first = root_[address >> kNodeShift].compare_exchange_strong(expected, fresh, std::memory_order_acq_rel);
  return first ? *fresh : *expected;
}

template <typename Child>
PageMap::Entry PageMap::add_child(std::atomic<Entry>& slot) noexcept {
  auto* fresh = static_cast<Child*>(memory_.allocate(sizeof(Child), sizeof(Child)));
  // A block that is not live any more may have another address by now, also while this looks: then it is found nowhere,
  // as it should be.
  if (const Entry before = slot.load(std::memory_order_acquire); before != kNothing) {
    const Address address = __atomic_load_n(&block_of(before).address, __ATOMIC_RELAXED);
    fresh->slot(address).store(before, std::memory_order_relaxed);
  }
  const Entry entry = memory_.number_of(fresh) | 1;
  slot.store(entry, std::memory_order_release);
  return entry;
}
template PageMap::Entry PageMap::add_child<PageMap::Table>(std::atomic<Entry>&) noexcept;
template PageMap::Entry PageMap::add_child<PageMap::Leaf>(std::atomic<Entry>&) noexcept;

}  // namespace cachalot
