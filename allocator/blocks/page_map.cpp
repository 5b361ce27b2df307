#include "blocks/page_map.h"

#include <cstdlib>
#include <new>
#include <type_traits>

namespace cachalot {

namespace {

// Zeroed memory that costs nothing until touched. All-zero bytes are a zero std::atomic on every ABI we build for.
template <typename T>
T* allocate_zeroed(std::size_t count) {
  void* memory = std::calloc(count, sizeof(T));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}

}  // namespace

PageMap::PageMap()
    : root_(allocate_zeroed<std::atomic<Node*>>(kRootEntries)),
      chunks_(allocate_zeroed<std::atomic<Block*>>(kMaxChunks)) {}

PageMap::Node& PageMap::add_node(Address address) {
  auto* fresh = static_cast<Node*>(memory_.allocate(sizeof(Node), kLine));
  Node* expected = nullptr;
  // Another device may be first; then its node serves, and this one is never used.
  const bool first = root_[address >> kNodeShift].compare_exchange_strong(expected, fresh, std::memory_order_acq_rel);
  return first ? *fresh : *expected;
}

template <typename Child>
std::uint64_t PageMap::add_child(std::atomic<std::uint64_t>& slot) {
  auto* fresh = static_cast<Child*>(memory_.allocate(sizeof(Child), kLine));
  std::uint64_t before = slot.load(std::memory_order_acquire);
  // Two devices may have segments in one MiB, in theory: who comes second keeps what the first has put there.
  while (!has_child(before)) {
    if (before != 0) {
      const Address offset = Address{static_cast<std::uint32_t>(before) >> 1} << kUnitShift;
      if constexpr (std::is_same_v<Child, Table>) {
        fresh->slot(offset).store(before, std::memory_order_relaxed);
      } else {
        fresh->slot(offset).store(static_cast<std::uint32_t>(before >> kIndexShift), std::memory_order_relaxed);
      }
    }
    const std::uint64_t entry = reinterpret_cast<std::uint64_t>(fresh) | 1;
    if (slot.compare_exchange_strong(before, entry, std::memory_order_acq_rel)) return entry;
  }
  return before;
}
template std::uint64_t PageMap::add_child<PageMap::Table>(std::atomic<std::uint64_t>&);
template std::uint64_t PageMap::add_child<PageMap::Leaf>(std::atomic<std::uint64_t>&);

PageMap::Chunk PageMap::add_chunk() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (chunk_count_ == kMaxChunks) throw std::bad_alloc();
  void* memory = memory_.allocate(BlockSlab::kChunkBytes, BlockSlab::kChunkBytes);
  chunks_[chunk_count_].store(static_cast<Block*>(memory), std::memory_order_release);
  return {memory, static_cast<std::uint32_t>(chunk_count_++ * BlockSlab::kSlots)};
}

void PageMap::forget_chunk(std::uint32_t first_index) {
  chunks_[first_index / BlockSlab::kSlots].store(nullptr, std::memory_order_release);
}

std::size_t PageMap::metadata_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The tables at the top are touched page by page: counted as the part in use.
  return memory_.bytes() + chunk_count_ * sizeof(void*);
}

}  // namespace cachalot
