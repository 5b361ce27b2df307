#include "guard/guarded_block.h"

#include <algorithm>

namespace cachalot {

void GuardedBlock::add_use(Stream other) {
  if (other != stream && std::ranges::find(recorded, other) == recorded.end()) recorded.push_back(other);
}

GuardReport GuardQuestion::answer(std::size_t offset, int device) const {
  (kind == GuardReport::Kind::front_canary  ? block->front_reported
   : kind == GuardReport::Kind::back_canary ? block->back_reported
                                            : block->write_after_free_reported) = true;
  return {.kind = kind,
          .device = device,
          .address = block->address,
          .requested_bytes = block->bytes,
          .offset = static_cast<std::ptrdiff_t>(span.address + offset - block->address),
          .stream = block->stream,
          .recorded = block->recorded,
          .allocated = block->allocated,
          .freed = block->freed};
}

void append_questions(GuardedBlock& block, std::vector<GuardQuestion>& questions) {
  using Kind = GuardReport::Kind;
  if (block.pattern == GuardedBlock::Pattern::canaries) {
    if (!block.front_reported) questions.push_back({block.front_canary(), Kind::front_canary, &block});
    if (!block.back_reported) questions.push_back({block.back_canary(), Kind::back_canary, &block});
  }
  if (block.pattern == GuardedBlock::Pattern::poison && !block.write_after_free_reported) {
    questions.push_back({block.poison(), Kind::write_after_free, &block});
  }
}

}  // namespace cachalot
