#include "tools/history/part_fields.h"

#include <algorithm>
#include <optional>

#include "cachalot/caching_allocator.h"

namespace cachalot::tools {
namespace {

constexpr std::size_t kTextOverhead = 64;  // of a text in its table

}  // namespace

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
  const Part* const facts = find(own->parts, Word::facts);
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
  facts.device = static_cast<int>(std::min(figure(Word::device).value_or(0), kMostDevices));
  if (const Part* name = find(pairs, Word::name)) facts.name = history_.texts[text_id(*name, "name")];
  facts.total_bytes = figure(Word::total_bytes);
  facts.free_bytes = figure(Word::free_bytes);
  facts.limit_bytes = figure(Word::limit_bytes);
  facts.nccl_bytes = figure(Word::nccl_bytes);
  facts.context_bytes = figure(Word::context_bytes);
  facts.process_bytes = figure(Word::process_bytes);
  if (const Part* processes = find(pairs, Word::processes)) add_processes(*processes, facts);
  return facts;
}

void PartFields::add_processes(Part value, DeviceFacts& facts) {
  const Container* const list = parts_.find(parts_.resolved(value));
  require(list != nullptr && list->kind == Container::Kind::list, "'processes' is not a list");
  require(list->parts.size() <= kMostDevices, "{} processes: at most {}", list->parts.size(), kMostDevices);
  for (const Part part : list->parts) {
    const Container* const dict = parts_.find(parts_.resolved(part));
    require(dict != nullptr && dict->kind == Container::Kind::dict, "a process is not a dict");
    DeviceFacts::Process process;
    if (const Part* pid = find(dict->parts, Word::pid)) process.id = pid->natural().value_or(0);
    if (const Part* used = find(dict->parts, Word::bytes)) process.bytes = bytes(*used, "bytes");
    if (const Part* name = find(dict->parts, Word::name)) process.name = history_.texts[text_id(*name, "name")];
    budget_.charge(2 * sizeof(process) + process.name.size());
    facts.other_processes.push_back(std::move(process));
  }
}

}  // namespace cachalot::tools
