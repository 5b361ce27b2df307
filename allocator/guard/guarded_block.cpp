#include "guard/guarded_block.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

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

std::string GuardSighting::place() const {
  const std::string name = block.freed ? formatted("the block of {} bytes at {:#x}", block.bytes, block.address)
                                       : formatted("the allocation of {} bytes at {:#x}", block.bytes, block.address);
  const std::string where = offset() == 0 ? formatted("it is {}", name)
                            : offset() > 0
                                ? formatted("it lies inside {}, {} bytes behind its beginning", name, offset())
                                : formatted("it lies inside {}, {} bytes before its beginning", name, -offset());
  return block.freed ? where + ", which was already freed" : where;
}

std::string GuardSighting::history() const {
  std::string text = formatted("allocated as call {} by thread {}", block.allocated.number, block.allocated.thread);
  if (block.freed) text += formatted(", freed as call {} by thread {}", block.freed->number, block.freed->thread);
  return text;
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

CACHALOT_END
