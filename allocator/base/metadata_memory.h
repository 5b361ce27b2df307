// Host memory for tables that only grow: handed out in order, zeroed, given back as a whole at the end.
//
// Straight from the operating system: one range of addresses, reserved at once, of which memory is behind the part
// handed out. So objects in it may be named by 32 bits. The first pieces are small, so that a small program stays
// small; after that memory comes in huge pages where the system has them: tables of some MiB, looked at in random
// places, cost a miss of the TLB at each look with 4 KiB pages (docs/decisions/0018 has the figures).
//
// Some pieces more than were handed out have memory: what an operation needs that has begun (base/host_memory.h).
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "base/bytes.h"
#include "base/check.h"
#include "base/host_memory.h"

CACHALOT_BEGIN

class MetadataMemory final : private HostReserve::Part {
 public:
  // Reserves addresses: kMostBytes, or a share of what the process may have. Throws std::bad_alloc.
  MetadataMemory();
  ~MetadataMemory();
  MetadataMemory(const MetadataMemory&) = delete;
  MetadataMemory& operator=(const MetadataMemory&) = delete;

  // `alignment` is a power of two, at most kPiece. Throws std::bad_alloc.
  void* allocate(std::size_t bytes, std::size_t alignment);

  // A number for each multiple of kUnit in the range, itself a multiple of alignment / kUnit.
  using Number = std::uint32_t;
  static constexpr std::size_t kUnit = 8;
  Number number_of(const void* memory) const {
    return static_cast<Number>(static_cast<std::size_t>(static_cast<const std::byte*>(memory) - base_) / kUnit);
  }
  CACHALOT_FAST_PATH std::byte* at(Number number) const { return base_ + number * kUnit; }

  // Returns the bytes handed out, and those that alignment has left between.
  std::size_t bytes() const;

  static constexpr std::size_t kPiece = 64 * kKiB;
  static constexpr std::size_t kReserve = 8 * kPiece;
  static constexpr std::size_t kSmallBytes = kMiB;  // that come piece by piece
  static constexpr std::size_t kHugePage = 2 * kMiB;
  static constexpr std::size_t kMostBytes = (std::size_t{1} << 32) * kUnit;

 private:
  std::byte* take_pieces(std::size_t bytes);
  bool extend() noexcept;
  bool refill() noexcept override;
  bool fill_up(std::size_t bytes) noexcept;

  std::byte* base_;         // where the range begins, kSmallBytes before a multiple of kHugePage
  std::byte* reservation_;  // the reserved range, with a beginning that is not used
  std::size_t reserved_;
  mutable std::mutex mutex_;
  std::byte* end_;             // from base_ to here there is memory
  std::byte* next_piece_;      // from base_ to here it is handed out, in whole pieces
  std::byte* next_ = nullptr;  // the rest of a piece, from which what is smaller is cut
  std::byte* piece_end_ = nullptr;
};

CACHALOT_END
