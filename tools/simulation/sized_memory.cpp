#include "tools/simulation/sized_memory.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include "tools/simulation/simulation_files.h"

namespace cachalot::tools {
namespace {

using nlohmann::json;

struct SizedBlock {
  std::int64_t time_us = 0;
  std::size_t bytes = 0;
  std::size_t number = 0;  // among the allocations
  const json* row = nullptr;
};

struct SizeQuestion {
  std::int64_t time_us = 0;
  std::size_t bytes = 0;
  SizedMemory::By by = SizedMemory::By::free;
};

// The blocks refer to the rows.
std::vector<SizedBlock> blocks_of(const json& rows) {
  std::vector<SizedBlock> blocks;
  for (const json& row : rows) {
    for (std::size_t i = 0; i < row.at("allocations").size(); ++i) {
      blocks.push_back({.time_us = row.at("times_us").at(i).get<std::int64_t>(),
                        .bytes = number(row, "block_bytes"),
                        .number = row.at("allocations").at(i).get<std::size_t>(),
                        .row = &row});
    }
  }
  return blocks;
}

std::vector<SizeQuestion> questions_of(const json& device, const json& torch) {
  std::vector<SizeQuestion> questions;
  for (const json& one : device.at("memory_info"))
    questions.push_back({.time_us = one.at("time_us").get<std::int64_t>(), .bytes = number(one, "free_bytes")});
  for (const json& time_us : torch.value("size_questions", json::array())) {
    questions.push_back(
        {.time_us = time_us.get<std::int64_t>(), .bytes = number(device, "total_bytes"), .by = SizedMemory::By::total});
  }
  std::ranges::stable_sort(questions, {}, &SizeQuestion::time_us);
  return questions;
}

// Returns the blocks from `begin` on up to one of a fourth size, without sizes that hold little of them.
std::vector<SizedBlock> next_blocks(std::vector<SizedBlock>::const_iterator begin,
                                    std::vector<SizedBlock>::const_iterator end) {
  constexpr std::size_t kMostSizes = 3;
  constexpr std::size_t kLeastPart = 8;
  std::map<std::size_t, std::size_t> held;  // by size
  std::size_t all = 0;
  std::vector<SizedBlock> next;
  for (; begin != end && (held.size() < kMostSizes || held.contains(begin->bytes)); ++begin) {
    held[begin->bytes] += begin->bytes;
    all += begin->bytes;
    next.push_back(*begin);
  }
  std::erase_if(next, [&](const SizedBlock& block) { return held.at(block.bytes) * kLeastPart < all; });
  return next;
}

SizedMemory sized_of(const std::vector<SizedBlock>& blocks, const SizeQuestion& question) {
  SizedMemory sized;
  sized.told_bytes = question.bytes;
  sized.by = question.by;
  for (const SizedBlock& block : blocks) {
    sized.bytes += block.bytes;
    sized.allocations.push_back(block.number);
    sized.block_bytes.push_back(block.bytes);
  }
  std::ranges::sort(sized.block_bytes);
  sized.block_bytes.erase(std::unique(sized.block_bytes.begin(), sized.block_bytes.end()), sized.block_bytes.end());
  if (!blocks.empty())
    sized.at = std::ranges::max_element(blocks, {}, &SizedBlock::bytes)->row->at("at").get<std::string>();
  return sized;
}

std::optional<SizedMemory> sized_by_trial(const std::vector<SizedBlock>& blocks, const json& device,
                                          const json& torch) {
  constexpr std::size_t kLeastPart = 2;
  const json oom = torch.value("last_oom", json());
  if (!oom.is_object()) return std::nullopt;
  std::vector<SizedBlock> at_oom;
  std::ranges::copy_if(blocks, std::back_inserter(at_oom),
                       [&](const SizedBlock& block) { return block.row->at("at") == oom.at("at"); });
  const std::vector<SizedBlock> next = next_blocks(at_oom.begin(), at_oom.end());
  SizedMemory sized = sized_of(next, {.bytes = number(device, "total_bytes"), .by = SizedMemory::By::trial});
  return sized.bytes * kLeastPart >= sized.told_bytes ? std::optional(std::move(sized)) : std::nullopt;
}

// An engine's cache is sized whatever part it takes. Other memory must be half of the free memory, or less where
// other processes use the device.
bool is_enough(const SizedMemory& sized, std::size_t device_bytes, bool is_shared, bool is_cache) {
  constexpr std::size_t kLeastPartOfTold = 2;
  constexpr std::size_t kLeastPartOfDevice = 4;
  constexpr std::size_t kLeastPartAsCache = 32;
  if (sized.told_bytes == 0) return false;
  if (is_cache) return sized.bytes * kLeastPartAsCache >= device_bytes;
  return (is_shared || sized.bytes * kLeastPartOfTold >= sized.told_bytes) &&
         sized.bytes * kLeastPartOfDevice >= device_bytes;
}

}  // namespace

std::optional<SizedMemory> sized_memory(const json& device, const json& torch, bool went_on) {
  const bool is_shared = device.value("common_peak_bytes", 0ULL) > device.value("peak_with_context_bytes", 0ULL);
  const json rows = torch.value("rows", json::array());
  const std::vector<SizedBlock> blocks = blocks_of(rows);
  std::optional<SizedMemory> most = went_on ? sized_by_trial(blocks, device, torch) : std::nullopt;
  auto begin = blocks.begin();
  const std::vector<SizeQuestion> questions = questions_of(device, torch);
  for (auto question = questions.begin(); question != questions.end(); ++question) {
    begin = std::find_if(begin, blocks.end(), [&](const SizedBlock& one) { return one.time_us >= question->time_us; });
    if (begin == blocks.end()) break;
    const auto next = std::next(question);
    if (next != questions.end() && next->time_us <= begin->time_us) continue;
    const std::vector<SizedBlock> taken = next_blocks(begin, blocks.end());
    SizedMemory sized = sized_of(taken, *question);
    const bool is_cache =
        std::ranges::all_of(taken, [](const SizedBlock& one) { return one.row->value("is_cache", false); });
    if (is_enough(sized, number(device, "total_bytes"), is_shared, is_cache) && (!most || sized.bytes > most->bytes))
      most = std::move(sized);
  }
  return most;
}

Trace without(Trace trace, const SizedMemory& sized) {
  if (!trace.is_held()) return trace;
  std::vector<TraceEvent> kept;
  kept.reserve(trace.events.size());
  std::vector<bool> is_sized(trace.slots);
  std::size_t made = 0;
  for (const TraceEvent& event : trace.events) {
    if (event.empties_cache()) {
      kept.push_back(event);
      continue;
    }
    if (!event.is_free()) {
      is_sized[event.slot] =
          made >= sized.allocations.front() && std::ranges::binary_search(sized.block_bytes, event.bytes);
      ++made;
      trace.allocation_count -= is_sized[event.slot] ? 1 : 0;
    }
    if (!is_sized[event.slot]) kept.push_back(event);
  }
  trace.events = std::move(kept);
  trace.event_count = trace.events.size();
  return trace;
}

}  // namespace cachalot::tools
