// Host memory for tables that only grow: handed out in order, zeroed, given back as a whole at the end.
//
// Straight from the operating system. The first MiB comes in small pieces, so that a small program stays small; after
// that pieces are huge pages where the system has them: tables of some MiB, looked at in random places, cost a miss of
// the TLB at each look with 4 KiB pages (docs/decisions.md has the figures).
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace cachalot {

class MetadataMemory {
 public:
  MetadataMemory() = default;
  ~MetadataMemory();
  MetadataMemory(const MetadataMemory&) = delete;
  MetadataMemory& operator=(const MetadataMemory&) = delete;

  // At most kSmallPiece bytes; `alignment` is a power of two, at most kSmallPiece. Throws std::bad_alloc.
  void* allocate(std::size_t bytes, std::size_t alignment);

  // What was taken from the operating system, but for what is not handed out of the last piece.
  std::size_t bytes() const;

  static constexpr std::size_t kSmallPiece = 128 * 1024;
  static constexpr std::size_t kHugePage = 2 * 1024 * 1024;

 private:
  struct Piece {
    void* start;
    std::size_t bytes;
  };
  void add_piece();

  mutable std::mutex mutex_;
  std::vector<Piece> pieces_;
  std::size_t total_ = 0;  // of all pieces
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace cachalot
