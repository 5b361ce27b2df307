#include "tools/history/parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "cachalot/caching_allocator.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kTextOverhead = 64;  // of a text in its table
constexpr std::size_t kSpareParts = 1024;  // of a closed container, for the next one

}  // namespace

// --- values -----------------------------------------------------------------------------------------------------------

const char* Part::kind_name() const {
  static constexpr std::array kNames = {"None",
                                        "a truth value",
                                        "a number",
                                        "a number",
                                        "a number",
                                        "a list or a dict",
                                        "text",
                                        "bytes",
                                        "a frame",
                                        "a call stack",
                                        "a pool's id",
                                        "metadata",
                                        "a part that the file named before, and which was read by then"};
  return kNames[static_cast<std::size_t>(kind())];
}

std::optional<bool> Part::boolean() const {
  if (kind() != Kind::boolean) return std::nullopt;
  return bits_ != 0;
}

std::optional<std::uint64_t> Part::natural() const {
  if (kind() == Kind::natural || (kind() == Kind::integer && static_cast<std::int64_t>(bits_) >= 0)) return bits_;
  return std::nullopt;
}

std::optional<std::int64_t> Part::integer() const {
  if (kind() == Kind::integer || (kind() == Kind::natural && static_cast<std::int64_t>(bits_) >= 0)) {
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
  return Part(Part::Kind::container, std::uint64_t{Part::kNoMemo} << 32 | slot, container.generation);
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

// An element of a container may contain it again.
void Parts::close(Part container, Part meaning) {
  Container* open = find(container);
  for (;;) {
    if (open != nullptr) {
      if (open->memo != Part::kNoMemo) memo_at(open->memo) = packed(meaning);
      for (const Part part : open->parts) {
        if (part.kind() == Part::Kind::container) closing_.push_back(part);
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
  auto kind = static_cast<std::uint32_t>(part.kind());
  std::uint32_t id = part.id();
  if (part.kind() < Part::Kind::container) {
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
    case Part::Kind::container:
      return Part(Part::Kind::container, std::uint64_t{number} << 32 | id, containers_[id].generation);
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

PartFields::PartFields(std::size_t memory_limit) : budget_(memory_limit), parts_(budget_) {
  for (const std::string_view word : kWords) history_.texts.add(word);
}

void PartFields::refuse(std::string_view why) const {
  const bool is_of_many = where_.index != Where::kWhole;
  throw InvalidArgument(is_of_many ? fmt::format("{} {}: {}", where_.what, where_.index, why)
                                   : fmt::format("{}: {}", where_.what, why));
}

Part PartFields::text(std::string_view text, std::size_t longest) {
  const std::size_t known = history_.texts.size();
  const TextId id = history_.texts.add(text.substr(0, longest));
  if (id >= known) budget_.charge(kTextOverhead + history_.texts[id].size());
  return Part::of_id(Part::Kind::text, id);
}

std::uint64_t PartFields::natural(Part value, const char* key, std::uint64_t most) const {
  const std::optional<std::uint64_t> number = value.natural();
  if (!number && value.integer()) require(false, "'{}' is {}, which is negative", key, *value.integer());
  require(number.has_value(), "'{}' is {}, not a whole number of 64 bits", key, value.kind_name());
  require(*number <= most, "'{}' is {}, more than {}", key, *number, most);
  return *number;
}

std::uint64_t PartFields::bytes(Part value, const char* key) const { return natural(value, key, kMaxRequestBytes - 1); }

Address PartFields::address(Part value, const char* key) const {
  return natural(value, key, std::numeric_limits<Address>::max() - kMaxRequestBytes);
}

// A handle; PyTorch shows it as a number with a sign.
std::uint16_t PartFields::stream(Part value) {
  const std::optional<std::uint64_t> number = value.natural();
  const std::optional<std::int64_t> negative = value.integer();
  require(number || negative, "'stream' is {}, not a whole number of 64 bits", value.kind_name());
  return history_.streams.add(number ? *number : static_cast<std::uint64_t>(*negative));
}

std::uint16_t PartFields::pool(Part value) {
  value = parts_.resolved(value);
  if (value.kind() == Part::Kind::pool) return static_cast<std::uint16_t>(value.id());
  const Container* const pair = parts_.find(value);
  const bool is_pair = pair != nullptr && pair->kind == Container::Kind::list && pair->parts.size() == 2;
  const auto first = is_pair ? pair->parts.front().natural() : std::nullopt;
  const auto second = is_pair ? pair->parts.back().natural() : std::nullopt;
  require(first && second, "the pool's id is not a pair of whole numbers");
  const std::uint16_t id = history_.pools.add({*first, *second});
  parts_.close(value, Part::of_id(Part::Kind::pool, id));
  return id;
}

TextId PartFields::text_id(Part value, const char* key) const {
  require(value.is_text(), "'{}' is {}, not text", key, value.kind_name());
  return value.id();
}

// The last one, as Python has it.
const Part* PartFields::find(const Pairs& pairs, Word word) {
  for (std::size_t i = pairs.size(); i >= 2; i -= 2) {
    if (pairs[i - 2].is_text() && pairs[i - 2].id() == static_cast<TextId>(word)) return &pairs[i - 1];
  }
  return nullptr;
}

// --- facts -----------------------------------------------------------------------------------------------------------

void PartFields::take_facts(Part value) {
  const Container* const own = parts_.find(parts_.resolved(value));
  require(own != nullptr && own->kind == Container::Kind::dict, "'cachalot' is not a dict");
  const Part* const facts = find(own->parts, "facts"_word);
  if (facts == nullptr) return;
  const Container* const list = parts_.find(parts_.resolved(*facts));
  require(list != nullptr && list->kind == Container::Kind::list, "'facts' is not a list");
  require(list->parts.size() <= kMostDevices, "facts of {} devices: at most {}", list->parts.size(), kMostDevices);
  for (std::size_t i = 0; i < list->parts.size(); ++i) {
    where_ = {"facts", i};
    budget_.charge(2 * sizeof(DeviceFacts));
    const Container* const dict = parts_.find(parts_.resolved(list->parts[i]));
    require(dict != nullptr && dict->kind == Container::Kind::dict, "they are not a dict");
    history_.facts.push_back(facts_of(dict->parts));
  }
  where_ = {};
}

DeviceFacts PartFields::facts_of(const Pairs& pairs) {
  DeviceFacts facts;
  const auto figure = [&](Word word) -> std::optional<std::uint64_t> {
    const Part* const part = find(pairs, word);
    if (part == nullptr || part->kind() == Part::Kind::none) return std::nullopt;
    return natural(*part, text_of(word).data(), kMaxRequestBytes - 1);
  };
  facts.device = static_cast<int>(std::min(figure("device"_word).value_or(0), kMostDevices));
  if (const Part* name = find(pairs, "name"_word)) facts.name = history_.texts[text_id(*name, "name")];
  facts.total_bytes = figure("total_bytes"_word);
  facts.free_bytes = figure("free_bytes"_word);
  facts.limit_bytes = figure("limit_bytes"_word);
  facts.nccl_bytes = figure("nccl_bytes"_word);
  facts.context_bytes = figure("context_bytes"_word);
  facts.process_bytes = figure("process_bytes"_word);
  if (const Part* processes = find(pairs, "processes"_word)) add_processes(*processes, facts);
  if (const Part* failing = find(pairs, "failing"_word); failing != nullptr && failing->kind() != Part::Kind::none)
    facts.failing = failing_of(*failing);
  return facts;
}

template <typename Take>
void PartFields::for_each_dict(Part value, const char* key, Take take) {
  const Container* const list = parts_.find(parts_.resolved(value));
  require(list != nullptr && list->kind == Container::Kind::list, "'{}' is not a list", key);
  require(list->parts.size() <= kMostDevices, "'{}' has {} items: at most {}", key, list->parts.size(), kMostDevices);
  for (const Part part : list->parts) {
    const Container* const dict = parts_.find(parts_.resolved(part));
    require(dict != nullptr && dict->kind == Container::Kind::dict, "an item of '{}' is not a dict", key);
    take(dict->parts);
  }
}

// Returns the text of the key, which stays; "" without it.
std::string PartFields::owned_text(const Pairs& pairs, Word word) {
  const Part* const part = find(pairs, word);
  std::string text(part == nullptr ? "" : history_.texts[text_id(*part, text_of(word).data())]);
  budget_.charge(2 * (sizeof(DeviceFacts::Process) + text.size()));
  return text;
}

void PartFields::add_processes(Part value, DeviceFacts& facts) {
  for_each_dict(value, "processes", [&](const Pairs& pairs) {
    DeviceFacts::Process process{.name = owned_text(pairs, "name"_word)};
    if (const Part* pid = find(pairs, "pid"_word)) process.id = pid->natural().value_or(0);
    if (const Part* used = find(pairs, "bytes"_word)) process.bytes = bytes(*used, "bytes");
    facts.other_processes.push_back(std::move(process));
  });
}

DeviceFacts::Failing PartFields::failing_of(Part value) {
  const Container* const dict = parts_.find(parts_.resolved(value));
  require(dict != nullptr && dict->kind == Container::Kind::dict, "'failing' is not a dict");
  const Pairs& pairs = dict->parts;
  const auto is = [&](Word word, bool otherwise) {
    const Part* const part = find(pairs, word);
    return part == nullptr ? otherwise : part->boolean().value_or(otherwise);
  };
  DeviceFacts::Failing failing{.who = owned_text(pairs, "who"_word),
                               .has_pages = is("has_pages"_word, false),
                               .is_refused = is("is_refused"_word, false),
                               .has_nccl = is("has_nccl"_word, false),
                               .knows_owners = is("knows_owners"_word, true)};
  if (const Part* asked = find(pairs, "segment_bytes"_word)) failing.segment_bytes = bytes(*asked, "segment_bytes");
  if (const Part* tags = find(pairs, "tags"_word)) {
    for_each_dict(*tags, "tags", [&](const Pairs& tag) {
      const Part* const id = find(tag, "pool_id"_word);
      require(id != nullptr, "a tag has no 'pool_id'");
      failing.tags.push_back({.pool = history_.pools[pool(*id)], .name = owned_text(tag, "name"_word)});
    });
  }
  if (const Part* libraries = find(pairs, "libraries"_word)) {
    for_each_dict(*libraries, "libraries", [&](const Pairs& library) {
      const Part* const live = find(library, "bytes"_word);
      failing.libraries.push_back(
          {.name = owned_text(library, "name"_word), .bytes = live == nullptr ? 0 : bytes(*live, "bytes")});
    });
  }
  return failing;
}

}  // namespace cachalot::tools
