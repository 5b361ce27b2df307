// What the guard keeps of freed blocks, and how it looks at memory.
#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "guard/guard.h"

namespace cachalot {

// --- quarantine -----------------------------------------------------------------------------------------------------

// Whether a block of so many bytes may be kept; older ones go for it.
bool Guard::make_room(std::size_t bytes, Reports& found) {
  const std::size_t limit = quarantine_limit_;
  if (bytes > limit || heap_.pools.is_capturing()) return false;
  leave_quarantine(limit - bytes, found);
  return true;
}

bool Guard::drain() {
  return reporting([&](Reports& found) { return leave_quarantine(0, found); });
}

// The oldest leave until at most so many bytes are left. What cannot be freed stays.
bool Guard::leave_quarantine(std::size_t keep_bytes, Reports& found) {
  if (heap_.pools.is_capturing()) return false;
  BlockList leaving;
  try {
    {
      const std::shared_lock memory(memory_);
      leaving = take_from_quarantine(keep_bytes);
      std::vector<GuardQuestion> questions;
      for (GuardedBlock& block : leaving) append_questions(block, questions);
      ask(std::move(questions), nullptr, found);
    }
    const bool freed_any = !leaving.empty();
    for (; !leaving.empty(); leaving.pop_front()) free_in_heap(leaving.front(), /*was_looked_at=*/true);
    return freed_any;
  } catch (...) {
    put_back(std::move(leaving));
    throw;
  }
}

Guard::BlockList Guard::take_from_quarantine(std::size_t keep_bytes) {
  const std::lock_guard lock(mutex_);
  BlockList leaving;
  while (quarantine_bytes_ > keep_bytes) {
    quarantine_bytes_ -= quarantine_.front().footprint();
    leaving.splice(leaving.end(), quarantine_, quarantine_.begin());
  }
  return leaving;
}

void Guard::put_back(BlockList leaving) {
  const std::lock_guard lock(mutex_);
  for (const GuardedBlock& block : leaving) quarantine_bytes_ += block.footprint();
  quarantine_.splice(quarantine_.begin(), leaving);
}

std::size_t Guard::quarantine_bytes() const {
  const std::lock_guard lock(mutex_);
  return quarantine_bytes_;
}

// --- looking --------------------------------------------------------------------------------------------------------

void Guard::ask(std::vector<GuardQuestion> questions, Stream stream, Reports& found) {
  if (questions.empty()) return;
  std::vector<PatternSpan> spans;
  spans.reserve(questions.size());
  for (const GuardQuestion& question : questions) spans.push_back(question.span);
  for (const PatternMismatch& mismatch : kernels(spans[0], stream).verify_pattern(stream, spans)) {
    found.push_back(questions[mismatch.span].answer(mismatch.offset, device_.index()));
  }
}

void Guard::check() {
  reporting([&](Reports& found) {
    const std::unique_lock memory(memory_);
    check_all(found);
    return true;
  });
}

// Live blocks after the work of their streams, those that are allocated meanwhile left out.
void Guard::check_all(Reports& found) {
  CACHALOT_REQUIRE(!heap_.pools.is_capturing(),
                   "the guard cannot look at memory of device {} while a graph is captured there", device_.index());
  std::map<StreamKey, std::pair<KnownStream, std::vector<GuardQuestion>>> of_stream;
  std::vector<GuardQuestion> of_quarantine;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [address, block] : live_) {
      auto& [stream, questions] = of_stream[block.stream.key];
      stream = block.stream;
      append_questions(block, questions);
    }
    for (GuardedBlock& block : quarantine_) append_questions(block, of_quarantine);
  }
  for (auto& [key, asked] : of_stream) {
    auto& [stream, questions] = asked;
    if (may_wait(stream)) ask(std::move(questions), stream_for_work(stream), found);
  }
  ask(std::move(of_quarantine), nullptr, found);
}

}  // namespace cachalot
