#include "base/metadata_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <new>

CACHALOT_BEGIN

namespace {

// `next` moved up to a multiple of `alignment`.
std::byte* aligned(std::byte* next, std::size_t alignment) {
  const auto start = reinterpret_cast<std::uintptr_t>(next);
  return next + (round_up(start, alignment) - start);
}

// Returns a range of addresses without memory, or null if there is no room for it.
std::byte* reserve(std::size_t bytes) {
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return range == MAP_FAILED ? nullptr : static_cast<std::byte*>(range);
}

// Returns half of `bytes`, a quarter, and so on: the first that there is room for.
std::size_t room_below(std::size_t bytes) {
  do {
    bytes /= 2;
    if (std::byte* range = reserve(bytes)) {
      munmap(range, bytes);
      break;
    }
  } while (bytes > 0);
  return bytes;
}

}  // namespace

// Reserves a sixteenth of the process's addresses if they are limited; an eighth of the rest if less than that is left.
MetadataMemory::MetadataMemory() : reserved_(kMostBytes + 2 * kHugePage) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    reserved_ = std::clamp<std::size_t>(limit.rlim_cur / 16, 8 * kHugePage, reserved_);
  }
  reservation_ = reserve(reserved_);
  if (reservation_ == nullptr) {
    reserved_ = std::max(room_below(reserved_) / 8, 4 * kHugePage);
    reservation_ = reserve(reserved_);
  }
  if (reservation_ == nullptr) throw std::bad_alloc();
  base_ = next_piece_ = end_ = aligned(reservation_, kHugePage) + kHugePage - kSmallBytes;
  join();
}

MetadataMemory::~MetadataMemory() {
  leave();
  munmap(reservation_, reserved_);
}

// Puts memory behind the next addresses; returns false if there is none.
bool MetadataMemory::extend() noexcept {
  const std::size_t before = static_cast<std::size_t>(end_ - reservation_);
  const bool small = static_cast<std::size_t>(end_ - base_) < kSmallBytes;
  const std::size_t bytes = small ? kPiece : kHugePage;
  const bool has_numbers = static_cast<std::size_t>(end_ - base_) + bytes <= kMostBytes;
  if (!has_numbers || reserved_ - before < bytes || mprotect(end_, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  if (!small) madvise(end_, bytes, MADV_HUGEPAGE);  // where that is not possible, 4 KiB pages do as well
  end_ += bytes;
  return true;
}

// Returns false if there is no memory for `bytes` more.
bool MetadataMemory::fill_up(std::size_t bytes) noexcept {
  while (static_cast<std::size_t>(end_ - next_piece_) < bytes) {
    if (!extend()) return false;
  }
  return true;
}

bool MetadataMemory::refill() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return fill_up(kReserve);
}

std::byte* MetadataMemory::take_pieces(std::size_t bytes) {
  const std::size_t whole = round_up(bytes, kPiece);
  if (!fill_up(whole + kReserve)) note_shortage();
  if (!fill_up(whole)) throw std::bad_alloc();
  next_piece_ += whole;
  return next_piece_ - whole;
}

void* MetadataMemory::allocate(std::size_t bytes, std::size_t alignment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes >= kPiece) return take_pieces(bytes);
  std::byte* memory = aligned(next_, alignment);
  if (memory > piece_end_ || static_cast<std::size_t>(piece_end_ - memory) < bytes) {
    memory = take_pieces(kPiece);
    piece_end_ = memory + kPiece;
  }
  next_ = memory + bytes;
  return memory;
}

std::size_t MetadataMemory::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<std::size_t>((next_piece_ - base_) - (piece_end_ - next_));
}

CACHALOT_END
