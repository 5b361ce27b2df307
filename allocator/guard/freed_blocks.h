// The blocks that were freed last, for whoever uses them once more.
//
// One is forgotten when some of its memory is allocated again, or when kKept were freed after it.
// Invariant: they do not overlap.
// Thread safety: none; the guard's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "guard/guarded_block.h"

CACHALOT_BEGIN

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

CACHALOT_END
