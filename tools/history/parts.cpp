#include "tools/history/parts.h"

#include <utility>

#include "base/check.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kSpareParts = 1024;  // of a closed container, for the next one

}  // namespace

// --- values -----------------------------------------------------------------------------------------------------------

const char* Part::kind_name() const {
  switch (kind_) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a truth value";
    case Kind::integer:
    case Kind::natural:
    case Kind::real:
      return "a number";
    case Kind::text:
      return "text";
    case Kind::bytes:
      return "bytes";
    case Kind::container:
      return "a list or a dict";
    case Kind::frame:
      return "a frame";
    case Kind::stack:
      return "a call stack";
    case Kind::pool:
      return "a pool's id";
    case Kind::metadata:
      return "metadata";
    case Kind::gone:
      break;
  }
  return "a part that the file named before, and which was read by then";
}

std::optional<bool> Part::boolean() const {
  if (kind_ != Kind::boolean) return std::nullopt;
  return bits_ != 0;
}

std::optional<std::uint64_t> Part::natural() const {
  if (kind_ == Kind::natural || (kind_ == Kind::integer && static_cast<std::int64_t>(bits_) >= 0)) return bits_;
  return std::nullopt;
}

std::optional<std::int64_t> Part::integer() const {
  if (kind_ == Kind::integer || (kind_ == Kind::natural && static_cast<std::int64_t>(bits_) >= 0)) {
    return static_cast<std::int64_t>(bits_);
  }
  return std::nullopt;
}

// --- containers -------------------------------------------------------------------------------------------------------

Part Parts::open(Container::Kind kind) {
  if (closed_.empty()) {
    CACHALOT_REQUIRE(containers_.size() < kMostPacked, "more than {} lists and dicts are open at once", kMostPacked);
    budget_.charge(2 * (sizeof(Container) + sizeof(std::uint32_t)));
    closed_.push_back(static_cast<std::uint32_t>(containers_.size()));
    containers_.emplace_back();
  }
  const std::uint32_t slot = closed_.back();
  closed_.pop_back();
  Container& container = containers_[slot];
  container.kind = kind;
  Part part(Part::Kind::container, std::uint64_t{Part::kNoMemo} << 32 | slot);
  part.generation_ = container.generation;
  return part;
}

Part Parts::meaning_of_closed(Part part) {
  const Part gone = Part::of_id(Part::Kind::gone, 0);
  return part.memo() == Part::kNoMemo ? gone : recall(part.memo()).value_or(gone);
}

void Parts::grow(std::vector<Part>& parts) {
  const std::size_t more = parts.empty() ? 8 : parts.size();
  budget_.charge(more * sizeof(Part));
  parts.reserve(parts.size() + more);
}

void Parts::take(Container& container, std::vector<Part>& parts) {
  parts.clear();
  parts.swap(container.parts);
}

// What a container holds may hold it.
void Parts::close(Part container, Part meaning) {
  Container* open = find(container);
  for (;;) {
    if (open != nullptr) {
      if (open->memo != Part::kNoMemo) memo_at(open->memo) = packed(meaning);
      for (const Part part : open->parts) {
        if (part.kind_ == Part::Kind::container) closing_.push_back(part);
      }
      open->parts.clear();
      if (open->parts.capacity() > kSpareParts) {
        budget_.release(open->parts.capacity() * sizeof(Part));
        std::vector<Part>().swap(open->parts);
      }
      open->kind = Container::Kind::closed;
      open->memo = Part::kNoMemo;
      ++open->generation;
      closed_.push_back(container.slot());
    }
    if (closing_.empty()) return;
    container = closing_.back();
    closing_.pop_back();
    open = find(container);
    meaning = Part::of_id(Part::Kind::gone, 0);
  }
}

void Parts::close_all(const std::vector<Part>& parts) {
  for (const Part part : parts) {
    if (find(part) != nullptr) close(part, Part::of_id(Part::Kind::gone, 0));
  }
}

// --- the memo ---------------------------------------------------------------------------------------------------------

std::uint32_t Parts::packed(Part part) {
  auto kind = static_cast<std::uint32_t>(part.kind_);
  std::uint32_t id = part.id();
  if (part.kind_ < Part::Kind::container) {
    budget_.charge(2 * sizeof(Part));
    kind = static_cast<std::uint32_t>(kInValues);
    id = static_cast<std::uint32_t>(values_.size());
    values_.push_back(part);
  }
  CACHALOT_REQUIRE(id <= kMostPacked, "more than {} different parts of one kind", kMostPacked);
  return kind << kPackedBits | id;
}

void Parts::memoize(std::uint64_t number, Part& part) {
  CACHALOT_REQUIRE(number <= kMostPacked, "the memo's number {} is above {}", number, kMostPacked);
  const auto index = static_cast<std::uint32_t>(number);
  if (index / kPage >= pages_.size()) {
    budget_.charge(2 * sizeof(pages_.front()) * (index / kPage + 1 - pages_.size()));
    pages_.resize(index / kPage + 1);
  }
  if (pages_[index / kPage] == nullptr) {
    budget_.charge(kPage * sizeof(std::uint32_t));
    pages_[index / kPage] = std::make_unique<Page>(kPage);
  }
  std::uint32_t& entry = memo_at(index);
  CACHALOT_REQUIRE(entry == 0, "the memo's number {} is used a second time", number);
  memo_count_ = std::max(memo_count_, index + 1);
  Container* const container = find(part);
  if (container != nullptr && container->memo != Part::kNoMemo) {
    entry = kAlias << kPackedBits | container->memo;
    return;
  }
  entry = packed(resolved(part));
  if (container == nullptr) return;
  container->memo = index;
  part.bits_ = std::uint64_t{index} << 32 | part.slot();
}

std::optional<Part> Parts::recall_other(std::uint32_t number) {
  const std::uint32_t entry = memo_at(number);
  const std::uint32_t id = entry & kMostPacked;
  if (entry >> kPackedBits == kAlias) return recall(id);
  switch (static_cast<Part::Kind>(entry >> kPackedBits)) {
    case kInValues:
      return values_[id];
    case Part::Kind::container: {
      Part part(Part::Kind::container, std::uint64_t{number} << 32 | id);
      part.generation_ = containers_[id].generation;
      return part;
    }
    default:
      return std::nullopt;
  }
}

void Parts::clear() {
  std::vector<Container>().swap(containers_);
  std::vector<std::uint32_t>().swap(closed_);
  std::vector<std::unique_ptr<Page>>().swap(pages_);
  std::vector<Part>().swap(values_);
  memo_count_ = 0;
}

}  // namespace cachalot::tools
