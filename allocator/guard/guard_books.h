// GuardBooks knows who allocated and freed what on one device: the live blocks and, with debug, those freed last.
//
// Thread safety: any thread; `mutex_` guards all. It is taken after GuardedMemory's, and held for look-ups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/locks.h"
#include "guard/guarded_block.h"

CACHALOT_BEGIN

// The blocks that were freed last, for whoever uses them once more.
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
  // The one whose memory holds `at`, canaries included; nullptr: none is known.
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

class GuardBooks {
 public:
  // A block that was taken out: whoever has it has the block to itself. Empty: there was none.
  using Entry = std::unordered_map<Address, GuardedBlock>::node_type;

  explicit GuardBooks(bool remembers_freed) : remembers_freed_(remembers_freed) {}
  GuardBooks(const GuardBooks&) = delete;
  GuardBooks& operator=(const GuardBooks&) = delete;

  // The block is live from now on.
  void add(GuardedBlock block);
  // Takes the live block of that address out, which `call` frees; `user`, if any, is one more stream that used it.
  // Nobody else finds the block until put_back. It stays when the host has no memory for the books.
  Entry take(Address address, const std::optional<KnownStream>& user, GuardCall call);
  // Undoes take.
  void put_back(Entry entry);
  // Takes a live block out without a word of its free.
  Entry extract(Address address);

  // The stream uses the live block of that address, too. False: there is none.
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
