// The pages without a live byte, as one search finds them: a bit for each page. So whether a page is idle is one look, and
// runs of neighbours come in the order of pages without being sorted.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bits.h"
#include "pages/physical_pages.h"

namespace cachalot {

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
  // None is idle; pages to come are less than `page_ids`.
  void clear(PageId page_ids) {
    words_.assign(page_ids / kBits + 1, 0);
    count_ = 0;
  }
  // Pages that are not in it.
  void add(PageId first, std::uint32_t pages) {
    count_ += pages;
    for (std::uint32_t bit = first % kBits; pages != 0; bit = 0) {
      const std::uint32_t here = std::min(pages, kBits - bit);
      words_[first / kBits] |= (kAll >> (kBits - here)) << bit;
      first += here;
      pages -= here;
    }
  }
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

  // The first page from `id` on whose bit is set once the bits are flipped by `flip`; beyond all words if none is.
  PageId next(PageId id, std::uint64_t flip) const {
    std::size_t word = id / kBits;
    if (word >= words_.size()) return id;
    std::uint64_t bits = (words_[word] ^ flip) >> id % kBits << id % kBits;
    while (bits == 0 && ++word < words_.size()) bits = words_[word] ^ flip;
    const std::size_t bit = bits != 0 ? lowest_bit(bits) : 0;
    return static_cast<PageId>(word * kBits + bit);
  }

  std::vector<std::uint64_t> words_;
  std::size_t count_ = 0;
};

}  // namespace cachalot
