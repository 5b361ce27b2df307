// One block under guard: how it lies in the heap's block, and what is written where.
//
//   heap's block:  [ front canary | the user's bytes | back canary | not looked at ]
//                    512           requested            256 to 64 KiB
//
// The front canary is as long as the allocator's alignment, so that what the user gets is aligned as ever; the one
// behind begins at the first byte that was not asked for and goes on to the end of the heap's block, but for 64 KiB at
// most. Where the guard keeps books only (debug:True,guard:False) the user's block is the heap's: `front` and `back` are 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

struct GuardedBlock {
  static constexpr std::size_t kFront = 512;
  static constexpr std::size_t kLeastBack = 256;
  static constexpr std::size_t kMostBack = std::size_t{64} << 10;

  // What its memory holds.
  enum class Pattern : std::uint8_t {
    none,      // nobody knows: not looked at
    canaries,  // around the user's bytes
    poison,    // everywhere
  };

  Address address = 0;    // the user's
  std::size_t bytes = 0;  // the user's
  std::size_t front = 0;  // bytes of the canary before: kFront or none
  std::size_t back = 0;   // bytes of the canary behind
  KnownStream stream;
  std::vector<KnownStream> recorded;  // other streams that use it
  std::size_t heap_bytes = 0;         // of the heap's block, as memory_allocated counts them
  CallStack site;                     // as watchers know it
  GuardCall allocated;
  std::optional<GuardCall> freed;
  Pattern pattern = Pattern::none;
  bool slept = false;  // it had canaries before its memory went to sleep
  bool front_reported = false;
  bool back_reported = false;
  bool write_after_free_reported = false;

  Address heap_address() const { return address - front; }
  std::size_t footprint() const { return front + bytes + back; }
  PatternSpan front_canary() const { return {heap_address(), front, 2 * allocated.number}; }
  PatternSpan back_canary() const { return {address + bytes, back, 2 * allocated.number}; }
  PatternSpan poison() const { return {heap_address(), footprint(), 2 * allocated.number + 1}; }

  bool contains(Address at) const { return at >= heap_address() && at - heap_address() < footprint(); }
  // `other` uses it, too; once however often it is said.
  void add_use(const KnownStream& other);
  // What a report says of it; `offset` as there.
  GuardReport report(GuardReport::Kind kind, std::ptrdiff_t offset, int device) const;
};

// A GuardSighting is a block, live or freed, whose memory holds an address.
struct GuardSighting {
  GuardedBlock block;
  Address at = 0;  // the address
  std::ptrdiff_t offset() const { return static_cast<std::ptrdiff_t>(at - block.address); }
  // For messages: "it is the block of 1000 bytes at …, which was already freed"; "allocated as call 1 by thread 7, …".
  std::string place() const;
  std::string history() const;
};

// What is asked of a block's memory, and how an answer becomes a report.
struct GuardQuestion {
  PatternSpan span;
  GuardReport::Kind kind = GuardReport::Kind::front_canary;
  const GuardedBlock* block = nullptr;
  bool* was_reported = nullptr;

  // The byte at `offset` of the span is not as it should be; this is not asked again.
  GuardReport answer(std::size_t offset, int device) const;
};

// Everything that can be asked of the block and was not reported yet.
void append_questions(GuardedBlock& block, std::vector<GuardQuestion>& questions);

CACHALOT_END
