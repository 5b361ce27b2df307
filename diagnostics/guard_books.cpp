#include "diagnostics/guard_books.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/format.h"

CACHALOT_BEGIN

void GuardedBlock::add_use(const KnownStream& other) {
  if (other != stream && std::ranges::find(recorded, other) == recorded.end()) recorded.push_back(other);
}

void GuardedBlock::append_poison(Pattern kind, std::vector<PatternSpan>& spans) const {
  const Address begin = heap_address();
  const std::size_t all = footprint();
  const auto append = [&](std::size_t from, std::size_t length) {
    spans.push_back({begin + from, length, 2 * allocated.number + 1});
  };
  if (kind == Pattern::poison || all <= kMostWhole) return append(0, all);
  const std::size_t last = all - kSampleDistance;
  static_assert(kSampleDistance == 16 * kSampleLine);
  const std::size_t shift = (allocated.number * 0x9e3779b97f4a7c15u >> 60) * kSampleLine;
  append(0, kSampleDistance);
  for (std::size_t at = kSampleDistance + shift; at < last; at += kSampleDistance) append(at, kSampleLine);
  append(last, kSampleDistance);
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
    case GuardedBlock::Pattern::samples:
      std::vector<PatternSpan> spans;
      block.append_poison(block.pattern, spans);
      for (const PatternSpan& span : spans) {
        append(span, GuardReport::Kind::write_after_free, block.write_after_free_reported);
      }
      break;
  }
}

void FreedBlocks::add(GuardedBlock block, const GuardCall& call) {
  block.freed = call;
  if (blocks_.size() == kKept) erase(blocks_.find(by_free_.begin()->second));
  const Address begin = block.heap_address();
  const auto known = by_free_.emplace(call.number, begin).first;
  try {
    blocks_.emplace(begin, std::move(block));
  } catch (...) {
    by_free_.erase(known);
    throw;
  }
}

void FreedBlocks::forget(const GuardedBlock& block) {
  const Address begin = block.heap_address();
  const Address end = begin + block.footprint();
  for (auto next = first_behind(begin); next != blocks_.end() && next->first < end;) erase(next++);
}

const GuardedBlock* FreedBlocks::find(Address at) const {
  auto block = blocks_.upper_bound(at);
  if (block == blocks_.begin()) return nullptr;
  --block;
  return block->second.contains(at) ? &block->second : nullptr;
}

// The first that ends behind `at`.
FreedBlocks::Blocks::iterator FreedBlocks::first_behind(Address at) {
  const auto block = blocks_.upper_bound(at);
  if (block != blocks_.begin() && std::prev(block)->second.contains(at)) return std::prev(block);
  return block;
}

void FreedBlocks::erase(Blocks::iterator block) {
  by_free_.erase(block->second.freed->number);
  blocks_.erase(block);
}

std::string FreedBlocks::validate() const {
  if (by_free_.size() != blocks_.size()) {
    return formatted("guard: {} freed blocks are remembered by address, {} by their free", blocks_.size(),
                     by_free_.size());
  }
  Address end = 0;
  for (const auto& [begin, block] : blocks_) {
    if (begin < end) return formatted("guard: the freed block at {:#x} overlaps the one before", block.address);
    end = begin + block.footprint();
  }
  return "";
}

std::size_t FreedBlocks::metadata_bytes() const {
  return blocks_.size() * (sizeof(Blocks::value_type) + sizeof(decltype(by_free_)::value_type));
}

void GuardBooks::add(GuardedBlock block) {
  const Lock lock(mutex_);
  freed_.forget(block);
  const Address address = block.address;
  live_.insert_or_assign(address, std::move(block));
}

GuardBooks::Entry GuardBooks::take(Address address, const std::optional<KnownStream>& user, GuardCall call) {
  const Lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return {};
  if (user) found->second.add_use(*user);
  if (remembers_freed_) freed_.add(found->second, call);
  Entry entry = live_.extract(found);
  entry.mapped().freed = std::move(call);
  return entry;
}

void GuardBooks::put_back(Entry entry) {
  const Lock lock(mutex_);
  freed_.forget(entry.mapped());
  entry.mapped().freed.reset();
  live_.insert(std::move(entry));
}

GuardBooks::Entry GuardBooks::extract(Address address) {
  const Lock lock(mutex_);
  return live_.extract(address);
}

bool GuardBooks::add_use(Address address, const KnownStream& stream) {
  const Lock lock(mutex_);
  const auto found = live_.find(address);
  if (found == live_.end()) return false;
  found->second.add_use(stream);
  return true;
}

void GuardBooks::forget_stream(const KnownStream& stream) {
  const Lock lock(mutex_);
  for (auto& [address, block] : live_) {
    if (block.stream == stream) block.stream = {};
    std::erase(block.recorded, stream);
  }
}

const GuardedBlock* GuardBooks::find(Address address) const {
  const auto found = live_.find(address);
  return found == live_.end() ? nullptr : &found->second;
}

std::optional<std::size_t> GuardBooks::requested_bytes(Address address) const {
  const Lock lock(mutex_);
  const GuardedBlock* const block = find(address);
  return block == nullptr ? std::nullopt : std::optional(block->bytes);
}

std::optional<std::size_t> GuardBooks::footprint(Address address) const {
  const Lock lock(mutex_);
  const GuardedBlock* const block = find(address);
  return block == nullptr ? std::nullopt : std::optional(block->footprint());
}

std::optional<GuardSighting> GuardBooks::sight(Address at) const {
  const Lock lock(mutex_);
  if (const GuardedBlock* const exact = find(at)) return GuardSighting{*exact, at};
  const auto live = std::ranges::find_if(live_, [&](const auto& entry) { return entry.second.contains(at); });
  if (live != live_.end()) return GuardSighting{live->second, at};
  if (const GuardedBlock* const freed = freed_.find(at)) return GuardSighting{*freed, at};
  return std::nullopt;
}

std::string GuardBooks::validate(const std::function<bool(const GuardedBlock&)>& holds) const {
  const Lock lock(mutex_);
  for (const auto& [address, block] : live_) {
    if (!holds(block)) return formatted("guard: the live block at {:#x} is not live in the heap", address);
  }
  return freed_.validate();
}

std::size_t GuardBooks::metadata_bytes() const {
  const Lock lock(mutex_);
  return live_.size() * sizeof(GuardedBlock) + freed_.metadata_bytes();
}

CACHALOT_END
