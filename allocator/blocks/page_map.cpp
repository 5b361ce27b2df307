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

PageMap::PageMap() : root_(allocate_zeroed<std::atomic<Node*>>(kRootEntries)) {
  try {
    chunks_ = allocate_zeroed<std::atomic<Block*>>(kMaxChunks);
  } catch (...) {
    std::free(root_);
    throw;
  }
}

PageMap::~PageMap() {
  for (std::size_t i = 0; node_count_ != 0 && i < kRootEntries; ++i) {
    if (Node* node = root_[i].load()) std::free(node);
  }
  std::free(root_);
  std::free(chunks_);
}

PageMap::Node& PageMap::add_node(Address address) {
  Node* fresh = allocate_zeroed<Node>(1);
  Node* expected = nullptr;
  if (!root_[address >> kNodeShift].compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) {
    std::free(fresh);  // another device was first
    return *expected;
  }
  node_count_.fetch_add(1, std::memory_order_relaxed);
  return *fresh;
}

template <typename Child>
std::uint64_t PageMap::add_child(std::atomic<std::uint64_t>& slot) {
  auto* fresh = static_cast<Child*>(allocate(sizeof(Child)));
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

void* PageMap::allocate(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (piece_used_ + bytes > kPieceBytes) {
    pieces_.push_back(std::make_unique<std::byte[]>(kPieceBytes));
    piece_used_ = 0;
  }
  void* memory = pieces_.back().get() + piece_used_;
  piece_used_ += bytes;
  return memory;
}

std::uint32_t PageMap::add_chunk(Block* blocks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (chunk_count_ == kMaxChunks) throw std::bad_alloc();
  chunks_[chunk_count_].store(blocks, std::memory_order_release);
  return static_cast<std::uint32_t>(chunk_count_++ * BlockSlab::kSlots);
}

void PageMap::forget_chunk(std::uint32_t first_index) {
  chunks_[first_index / BlockSlab::kSlots].store(nullptr, std::memory_order_release);
}

std::size_t PageMap::metadata_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The root and the chunk table are touched page by page: counted as the part in use.
  return node_count_.load() * (sizeof(Node) + sizeof(void*)) + pieces_.size() * kPieceBytes +
         chunk_count_ * sizeof(void*);
}

}  // namespace cachalot
