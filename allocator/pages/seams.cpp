#include "pages/seams.h"

CACHALOT_BEGIN

void Seams::forget(Address begin, Address end) {
  const auto first = first_from(begin);
  auto last = first;
  while (last != seams_.end() && last->address <= end) ++last;
  seams_.erase(first, last);
}

void Seams::look_again(Block& block) noexcept {
  forget(block.address, block.end());
  for (Block* each : {block.next, &block}) {
    if (is_seam(*each)) seams_.insert(first_from(each->address), {each->address, each});
  }
}

CACHALOT_END
