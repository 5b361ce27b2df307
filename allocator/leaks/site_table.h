// The live blocks that were allocated while somebody watched, by where they came from.
// Invariant: a site's live bytes and blocks are the sums over its blocks. Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cachalot/allocation_site.h"
#include "cachalot/change.h"

CACHALOT_BEGIN

class SiteTable {
 public:
  struct Site {
    CallStack stack;
    std::size_t live_bytes = 0;
    std::size_t live_blocks = 0;
    std::uint64_t allocated_blocks = 0;
    std::vector<std::size_t> notes;  // live bytes at the ends of iterations, oldest first
  };

  void allocated(const Change& change, const CallStack& stack);
  // The block's bytes; nullopt when it was allocated before anybody watched.
  std::optional<std::size_t> freed(const Change& change);

  // The end of an iteration: each site's live bytes are noted, if asked for, and of the notes the last `window` are kept.
  // Sites without live blocks are forgotten: what gave everything back is no leak.
  void end_iteration(bool note, std::size_t window);

  std::uint64_t iterations() const { return iterations_; }
  std::size_t live_bytes() const { return live_bytes_; }
  std::size_t live_blocks() const { return blocks_.size(); }
  std::size_t site_count() const;  // with live blocks

  // Those with live blocks that `wanted` picks, in no order. One pass over all live blocks.
  std::vector<AllocationSite> sites(const std::function<bool(const Site&)>& wanted) const;
  // The `most` with the most live bytes, first things first.
  std::vector<AllocationSite> largest(std::size_t most) const;
  void for_each(const std::function<void(const Site&)>& visit) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Key {
    int device;
    Address address;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      return std::hash<Address>()(key.address ^ (static_cast<Address>(key.device) << 56));
    }
  };
  struct Block {
    Site* site;
    std::size_t bytes;
    std::uint64_t iteration;
    Clock::time_point since;
  };

  void forget_empty_sites();

  std::unordered_map<CallStack, Site> sites_;  // addresses of sites are stable
  std::unordered_map<Key, Block, Hash> blocks_;
  std::uint64_t iterations_ = 0;
  std::size_t live_bytes_ = 0;
};

CACHALOT_END
