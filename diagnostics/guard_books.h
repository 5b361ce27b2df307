// The blocks under guard, and the books of their allocations and frees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/locks.h"
#include "cachalot/guard.h"
#include "cachalot/kernels.h"
#include "device/known_stream.h"

CACHALOT_BEGIN

// One block under guard: its place in the heap's block, and the patterns around it.
//
//   heap's block:  [ front canary | the user's bytes | back canary | not looked at ]
//                    512           requested            256 to 64 KiB
//
// The front canary is as long as the allocator's alignment, so that the user's memory is aligned as usual; the one behind
// begins at the first byte that was not requested and goes on to the end of the heap's block, up to 64 KiB. Where the guard
// keeps books only (debug:True,guard:False) the user's block is the heap's: `front` and `back` are 0.
struct GuardedBlock {
  static constexpr std::size_t kFront = 512;
  static constexpr std::size_t kLeastBack = 256;
  static constexpr std::size_t kMostBack = std::size_t{64} << 10;
  // They say which part of a freed block gets poison where all of it would take too long.
  static constexpr std::size_t kMostWhole = std::size_t{1} << 20;
  static constexpr std::size_t kSampleDistance = std::size_t{64} << 10;
  static constexpr std::size_t kSampleLine = std::size_t{4} << 10;

  // The content of its memory.
  enum class Pattern : std::uint8_t {
    none,      // unknown: not checked
    canaries,  // around the user's bytes
    poison,    // everywhere
    samples,   // poison in a part of it: append_poison
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
  // Appends the memory that has the pattern `kind`, poison or samples, by rising addresses. All of a block of up to kMostWhole
  // bytes is a sample; of a larger one the first and the last kSampleDistance bytes, and one line in each kSampleDistance between
  // them. Where the lines are is different in the next blocks, so that a write that comes again and again meets one.
  void append_poison(Pattern kind, std::vector<PatternSpan>& spans) const;

  bool contains(Address at) const { return at >= heap_address() && at - heap_address() < footprint(); }
  // `other` uses it, too; once however often it is said.
  void add_use(const KnownStream& other);
  // Returns a report on it; `offset` as there.
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

// A question about a block's memory, and the way from an answer to a report.
struct GuardQuestion {
  PatternSpan span;
  GuardReport::Kind kind = GuardReport::Kind::front_canary;
  const GuardedBlock* block = nullptr;
  bool* was_reported = nullptr;

  // The byte at `offset` of the span is not as it should be; the block is not asked about this again.
  GuardReport answer(std::size_t offset, int device) const;
};

// Everything that can be asked of the block and was not reported yet.
void append_questions(GuardedBlock& block, std::vector<GuardQuestion>& questions);

// The blocks that were freed last, for the reports of their further use.
//
// One is forgotten when some of its memory is allocated again, or when kKept were freed after it.
// Invariant: they do not overlap.
// Thread safety: none; the guard's mutex.
class FreedBlocks {
 public:
  static constexpr std::size_t kKept = std::size_t{1} << 16;

  // `block`, of which nothing is in here, is being freed by `call`.
  void add(GuardedBlock block, const GuardCall& call);
  // Its memory is allocated from now on.
  void forget(const GuardedBlock& block);
  // Returns the block whose memory, with its canaries, holds `at`, or null if none is known.
  const GuardedBlock* find(Address at) const;

  std::string validate() const;
  std::size_t metadata_bytes() const;

 private:
  using Blocks = std::map<Address, GuardedBlock>;

  Blocks::iterator first_behind(Address at);
  void erase(Blocks::iterator block);

  Blocks blocks_;                             // by where they begin in the heap
  std::map<std::uint64_t, Address> by_free_;  // the same, by the number of the free
};

// GuardBooks has the allocations and frees of one device with their callers: the live blocks and, with debug, those
// freed last.
//
// Thread safety: any thread; `mutex_` guards all. It is taken after GuardedMemory's, and held for look-ups.
class GuardBooks {
 public:
  // A block that was taken out: its holder has the block to itself. Empty: there was none.
  using Entry = std::unordered_map<Address, GuardedBlock>::node_type;

  explicit GuardBooks(bool remembers_freed) : remembers_freed_(remembers_freed) {}
  GuardBooks(const GuardBooks&) = delete;
  GuardBooks& operator=(const GuardBooks&) = delete;

  // The block is live from now on.
  void add(GuardedBlock block);
  // Takes the live block of that address out, which `call` frees; `user`, if any, is one more stream that used it.
  // No other thread finds the block until put_back. It stays when the host has no memory for the books.
  Entry take(Address address, const std::optional<KnownStream>& user, GuardCall call);
  // Undoes take.
  void put_back(Entry entry);
  // Takes a live block out without a word of its free.
  Entry extract(Address address);

  // Notes that the stream uses the live block of that address, too. Returns false if there is none.
  bool add_use(Address address, const KnownStream& stream);
  // The stream's blocks are the default stream's, and it uses no other any more.
  void forget_stream(const KnownStream& stream);
  // Calls visit(GuardedBlock&) for each live block, under the lock.
  template <typename Visit>
  void for_each_live(Visit&& visit);

  // The bytes that were asked for, and with canaries; nullopt: it is not one of the live blocks.
  std::optional<std::size_t> requested_bytes(Address address) const;
  std::optional<std::size_t> footprint(Address address) const;
  // The live or freed block whose memory holds the address.
  std::optional<GuardSighting> sight(Address at) const;

  // `holds`: whether a block is live in the heap.
  std::string validate(const std::function<bool(const GuardedBlock&)>& holds) const;
  std::size_t metadata_bytes() const;

 private:
  using Blocks = std::unordered_map<Address, GuardedBlock>;

  const GuardedBlock* find(Address address) const CACHALOT_REQUIRES(mutex_);

  const bool remembers_freed_;
  mutable SleepingMutex mutex_;
  Blocks live_ CACHALOT_GUARDED_BY(mutex_);        // by the user's address
  FreedBlocks freed_ CACHALOT_GUARDED_BY(mutex_);  // those in quarantine and those that have left it
};

template <typename Visit>
void GuardBooks::for_each_live(Visit&& visit) {
  const Lock lock(mutex_);
  for (auto& [address, block] : live_) visit(block);
}

CACHALOT_END
