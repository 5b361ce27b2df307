#include "guard/guarded_block.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cachalot {

void GuardedBlock::add_use(const KnownStream& other) {
  if (other != stream && std::ranges::find(recorded, other) == recorded.end()) recorded.push_back(other);
}

GuardReport GuardedBlock::report(GuardReport::Kind kind, std::ptrdiff_t offset, int device) const {
  std::vector<Stream> users;
  std::ranges::transform(recorded, std::back_inserter(users), &KnownStream::handle);
  return {.kind = kind,
          .device = device,
          .address = address,
          .requested_bytes = bytes,
          .offset = offset,
          .stream = stream.handle,
          .recorded = std::move(users),
          .allocated = allocated,
          .freed = freed};
}

GuardReport GuardQuestion::answer(std::size_t offset, int device) const {
  *was_reported = true;
  return block->report(kind, static_cast<std::ptrdiff_t>(span.address + offset - block->address), device);
}

void append_questions(GuardedBlock& block, std::vector<GuardQuestion>& questions) {
  const auto append = [&](const PatternSpan& span, GuardReport::Kind kind, bool& was_reported) {
    if (!was_reported) questions.push_back({span, kind, &block, &was_reported});
  };
  switch (block.pattern) {
    case GuardedBlock::Pattern::none:
      break;
    case GuardedBlock::Pattern::canaries:
      append(block.front_canary(), GuardReport::Kind::front_canary, block.front_reported);
      append(block.back_canary(), GuardReport::Kind::back_canary, block.back_reported);
      break;
    case GuardedBlock::Pattern::poison:
      append(block.poison(), GuardReport::Kind::write_after_free, block.write_after_free_reported);
      break;
  }
}

}  // namespace cachalot
