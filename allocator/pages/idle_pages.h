// The pages without a live byte, as one search finds them: a bit for each page. So whether a page is idle is one look, and
// runs of neighbours come in the order of pages without being sorted.
//
// They are read off the free blocks each time, so that no malloc or free keeps an account of pages. Most idle pages lie in
// one free block, of at least a page; the others have a seam (Seams). So no other small block is looked at.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bits.h"
#include "base/bytes.h"
#include "blocks/block_pool.h"
#include "pages/physical_pages.h"

CACHALOT_BEGIN

class PageHeap;
struct BackingPlan;
struct PageRange;

using PoolPair = std::array<const BlockPool*, 2>;  // an owner's small and large blocks

// From now on a search reaches all free blocks of the pools.
void reach_everything(const PoolPair& pools);

struct IdleRun {  // neighbours in a handle, as many as are idle
  HandleId handle;
  PageId first_of_handle;
  std::uint32_t handle_pages;
  std::uint32_t begin;  // in the handle
  std::uint32_t end;
  std::uint32_t pages() const { return end - begin; }
  bool is_whole() const { return pages() == handle_pages; }
};

class IdlePages {
 public:
  explicit IdlePages(const PageHeap& heap) : heap_(heap) {}

  // None is idle.
  void clear();
  // Finds the pages all of whose bytes are free, within the reach of their arenas; neighbours that became free on different
  // streams are several blocks. Looks at free blocks alone, however many are live.
  void find(const PoolPair& pools);
  // Once after find(): arenas reach further now, and nothing else has changed: adds what they reach.
  void find_more();
  // Notes in a plan for idle pages the blocks that these begin in (BackingPlan::holders).
  void find_holders(BackingPlan& plan);
  // Whether there may be more for arenas that reach further.
  bool may_find_more() const { return !beyond_reach_.empty() || !seams_beyond_reach_.empty(); }

  std::size_t metadata_bytes() const { return capacity_bytes(words_, holders_, beyond_reach_, seams_beyond_reach_); }
  bool has(PageId id) const { return (words_[id / kBits] >> id % kBits & 1) != 0; }
  std::size_t count() const { return count_; }

  // Calls visit(IdleRun) for each run, by page. One is as long as can be within its handle.
  template <typename Visit>
  void for_each_run(const PhysicalPages& pages, Visit visit) const {
    for (PageId begin = next(0, 0); begin < words_.size() * kBits; begin = next(begin, 0)) {
      const PageId end = next(begin, kAll);
      while (begin < end) {
        const PhysicalPage& page = pages.page(begin);
        const PhysicalHandle& handle = pages.handle(page.handle);
        const std::uint32_t run_end = std::min(page.index + (end - begin), handle.pages);
        visit(IdleRun{page.handle, handle.first, handle.pages, page.index, run_end});
        begin += run_end - page.index;
      }
    }
  }

 private:
  static constexpr std::uint32_t kBits = 64;
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};

  void add_block(Block& block);
  void add_page_with_seam(Block& behind_seam);
  void add(PageId first, std::uint32_t pages);
  const PageRange& range_of(Address address);

  // The first page from `id` on whose bit is set once the bits are flipped by `flip`; beyond all words if none is.
  PageId next(PageId id, std::uint64_t flip) const {
    std::size_t word = id / kBits;
    if (word >= words_.size()) return id;
    std::uint64_t bits = (words_[word] ^ flip) >> id % kBits << id % kBits;
    while (bits == 0 && ++word < words_.size()) bits = words_[word] ^ flip;
    const std::size_t bit = bits != 0 ? lowest_bit(bits) : 0;
    return static_cast<PageId>(word * kBits + bit);
  }

  const PageHeap& heap_;
  std::vector<std::uint64_t> words_;
  std::size_t count_ = 0;
  const PageRange* range_ = nullptr;        // of the block before
  std::vector<BlockAt> holders_;            // of idle pages: the blocks they begin in
  std::vector<Block*> beyond_reach_;        // free, and no arena's reach covers them
  std::vector<Block*> seams_beyond_reach_;  // the same of a block in the page of the seam before them
};

CACHALOT_END
