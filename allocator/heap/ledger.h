// The Ledger counts every byte that comes from the device and returns to it. It changes statistics, held bytes and the
// observers' view together, and keeps the limits.
//
// Invariant: held = reserved + asked for + departing + orphaned.
//   reserved    in the heap's segments or pages; the statistic reserved_bytes
//   asked for   requested from the device just now: they count against the limit from before the call
//   departing   on their way back, no longer in the heap
//   orphaned    given up, but refused by the device
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "base/locks.h"
#include "blocks/block_pool.h"
#include "blocks/counters.h"
#include "cachalot/events.h"
#include "device/addresses.h"

CACHALOT_BEGIN

struct HeapState;

// A Departing is a segment on its way back to the device.
struct Departing {
  Address address;
  std::size_t bytes;
  Arena* arena;
  Context context;
};

// A HeldLimit is the most bytes that may be held from a device: the lower of a fraction of its memory and a number of bytes.
class HeldLimit {
 public:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // Throws InvalidArgument unless the fraction is in [0, 1].
  static void require_fraction(double fraction);
  // Limits to a fraction of `device_bytes`; 1 lifts the limit. The other limit stays, here and in set_bytes.
  void set_fraction(double fraction, std::size_t device_bytes);
  double fraction() const { return fraction_; }
  // Limits to `bytes`; kNone lifts the limit.
  void set_bytes(std::size_t bytes) { bytes_ = bytes; }

  // Returns the lower of the two limits, or kNone.
  std::size_t lowest() const { return std::min(fraction_bytes_, bytes_); }
  // Returns true if that is the fraction's.
  bool is_fraction() const { return fraction_bytes_ < bytes_; }

 private:
  double fraction_ = 1;
  std::size_t fraction_bytes_ = kNone;
  std::size_t bytes_ = kNone;
};

class Ledger {
 public:
  explicit Ledger(HeapState& state) : state_(state) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // An Ask counts bytes as held from before the device is asked for them, so that other threads keep within the limit.
  // Its destructor, which needs the lock, uncounts the bytes that were not granted.
  class Ask {
   public:
    Ask(Ask&& other) noexcept : ledger_(other.ledger_), bytes_(std::exchange(other.bytes_, 0)) {}
    ~Ask();
    Ask(const Ask&) = delete;
    Ask& operator=(const Ask&) = delete;
    Ask& operator=(Ask&&) = delete;
    // The device gave some or all of the bytes, and they are in the heap.
    void granted(std::size_t bytes, const Held& held) CACHALOT_HELD;
    // Some of the bytes are no longer asked for.
    void withdrawn(std::size_t bytes, const Held& held) CACHALOT_HELD;

   private:
    friend class Ledger;
    Ask(Ledger& ledger, std::size_t bytes) : ledger_(ledger), bytes_(bytes) {}
    Ledger& ledger_;
    std::size_t bytes_;
  };
  // A Move counts reserved bytes that are in no block just now, on the way from one hole to another.
  class Move {
   public:
    Move(Ledger& ledger, std::size_t bytes, const Held& held) CACHALOT_HELD;
    ~Move();
    Move(const Move&) = delete;
    Move& operator=(const Move&) = delete;

   private:
    Ledger& ledger_;
    std::size_t bytes_;
  };

  // Returns nullopt if the limit has no room, or the option throw_on_cudamalloc_oom refuses the bytes.
  std::optional<Ask> ask(std::size_t bytes, const Held& held) CACHALOT_HELD;

  // Returns true if throw_on_cudamalloc_oom refuses these bytes, for which the limit has room.
  bool refuses(std::size_t bytes, const Held& held) const CACHALOT_HELD;

  // These keep the books of segments.
  void segment_came(const Block& block, const Context& context, const Held& held) CACHALOT_HELD;
  void segment_departs(const Departing& segment, const Held& held) CACHALOT_HELD;
  // Tells observers before the device gets the segment, while libraries can still deregister its memory, as PyTorch does; and
  // afterwards, if the device refused it.
  void segment_goes(const Departing& segment, const Held& held) CACHALOT_HELD;
  void segment_was_refused(const Departing& segment, const Held& held) CACHALOT_HELD;
  void segment_stays(const Departing& segment, const Held& held) CACHALOT_HELD;
  void segment_went(const Departing& segment, const Held& held) CACHALOT_HELD;

  // These keep the books of pages and of their handles. `kind` is that of the range that has the pages' home.
  struct Home {
    PoolKind kind;
    PoolId pool;
  };
  void pages_came(const Home& home, std::size_t bytes, const Held& held) CACHALOT_HELD;
  void pages_moved(const Home& from, const Home& to, std::size_t bytes, const Held& held) CACHALOT_HELD;
  void pages_went(PoolKind kind, Address address, std::size_t bytes, const Arena& arena,
                  const Held& held) CACHALOT_HELD;
  // Memory of pages that went: it is orphaned until the device has taken it.
  void handle_departs(std::size_t bytes, const Held& held) CACHALOT_HELD;
  void orphaned(std::size_t bytes, const Held& held) CACHALOT_HELD;
  void orphan_went(std::size_t bytes, const Held& held) CACHALOT_HELD;
  // Tells observers that memory is mapped or unmapped somewhere.
  void tell_of_pages(Change::Action action, PoolKind kind, Address address, std::size_t bytes, const Arena& arena,
                     const Context& context, const Held& held) CACHALOT_HELD;

  // These count what happens to requests.
  void retried(PoolKind kind, const Held& held) CACHALOT_HELD;
  void ran_out(Change change, const Held& held) CACHALOT_HELD;
  void refused(const Held& held) CACHALOT_HELD;
  void synchronized(const Held& held) CACHALOT_HELD;

  HeldLimit& held_limit(const Held& /*held*/) CACHALOT_HELD { return limit_; }
  // Returns the most bytes that may be held, or HeldLimit::kNone.
  std::size_t limit(const Held& /*held*/) const CACHALOT_HELD { return limit_.lowest(); }

  // Sets the bytes of held memory, without memory that is only requested, above which it is reported; HeldLimit::kNone: never.
  void set_soft_limit(std::size_t bytes, const Held& held) CACHALOT_HELD;
  std::size_t soft_limit(const Held& held) const CACHALOT_HELD;
  // Returns true, once, if the calling thread has taken held memory above the soft limit.
  bool take_crossing(const Held& held) CACHALOT_HELD;

  // Makes garbage collection keep `bytes` held bytes, until less is held for another reason.
  void keep(std::size_t bytes, const Held& held) CACHALOT_HELD;
  std::size_t kept_bytes(const Held& held) const CACHALOT_HELD;

  std::size_t held_bytes(const Held& held) const CACHALOT_HELD;
  std::size_t moving_bytes(const Held& held) const CACHALOT_HELD;
  // Returns the first broken invariant, or "".
  std::string validate(const Held& held) const CACHALOT_HELD;

 private:
  bool is_beyond_limit(std::size_t bytes, const Held& held) const CACHALOT_HELD;
  void hold_less(std::size_t bytes) CACHALOT_REQUIRES(device_lock);

  HeapState& state_;
  HeldLimit limit_ CACHALOT_GUARDED_BY(device_lock);
  std::size_t soft_limit_ CACHALOT_GUARDED_BY(device_lock) = HeldLimit::kNone;
  bool is_below_soft_ CACHALOT_GUARDED_BY(device_lock) = true;
  std::thread::id crossed_by_ CACHALOT_GUARDED_BY(device_lock);  // of no thread: not crossed, or already reported
  std::size_t kept_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::size_t held_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::size_t asked_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::size_t departing_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::size_t orphaned_ CACHALOT_GUARDED_BY(device_lock) = 0;
  std::size_t moving_ CACHALOT_GUARDED_BY(device_lock) = 0;
};

CACHALOT_END
