#include "base/metadata_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "base/bytes.h"

namespace cachalot {

namespace {

// `bytes` of zeroed memory at a multiple of `bytes`.
std::byte* map_aligned(std::size_t bytes) {
  void* mapped = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const start = static_cast<std::byte*>(mapped);
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(start), bytes) - reinterpret_cast<std::uintptr_t>(start);
  if (before != 0) munmap(start, before);
  munmap(start + before + bytes, bytes - before);
  return start + before;
}

}  // namespace

MetadataMemory::~MetadataMemory() {
  for (const Piece& piece : pieces_) munmap(piece.start, piece.bytes);
}

void MetadataMemory::add_piece() {
  pieces_.reserve(pieces_.size() + 1);
  const std::size_t bytes = total_ < kMiB ? kSmallPiece : kHugePage;
  next_ = map_aligned(bytes);
  end_ = next_ + bytes;
  if (bytes == kHugePage) madvise(next_, bytes, MADV_HUGEPAGE);  // where that is not possible, 4 KiB pages do as well
  pieces_.push_back({next_, bytes});
  total_ += bytes;
}

void* MetadataMemory::allocate(std::size_t bytes, std::size_t alignment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto fitting = [&] {
    const auto start = reinterpret_cast<std::uintptr_t>(next_);
    return next_ + (round_up(start, alignment) - start);
  };
  std::byte* memory = fitting();
  if (next_ == nullptr || memory > end_ || static_cast<std::size_t>(end_ - memory) < bytes) {
    add_piece();
    memory = fitting();
  }
  next_ = memory + bytes;
  return memory;
}

std::size_t MetadataMemory::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return total_ - static_cast<std::size_t>(end_ - next_);
}

}  // namespace cachalot
