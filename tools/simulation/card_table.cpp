#include "tools/simulation/card_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <functional>
#include <iterator>
#include <memory>
#include <string_view>

#include "base/bytes.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

using Row = CardTable::Row;
constexpr std::size_t kIndent = 16;

bool policies_differ(const Row& row) {
  return std::ranges::any_of(row.fits, [&](bool fits) { return fits != row.fits.front(); });
}

using Group = std::vector<const Row*>;  // that are one line of the report: all of the same answers

bool are_one_line(const Row& row, const Row& next, const Card& run) {
  if (row.fits != next.fits || row.is_unsure != next.is_unsure || row.card == run || next.card == run) return false;
  return !policies_differ(row) || row.card.memory_bytes == next.card.memory_bytes;
}

std::vector<Group> groups_of(const CardTable& table, bool verbose) {
  std::vector<Group> groups;
  for (const Row& row : table.rows) {
    const bool joins = !verbose && !groups.empty() && are_one_line(*groups.back().back(), row, table.run.card);
    if (!joins) groups.emplace_back();
    groups.back().push_back(&row);
  }
  return groups;
}

std::vector<Card> cards_of(const Group& group) {
  std::vector<Card> cards;
  for (const Row* row : group) cards.push_back(row->card);
  return cards;
}

Cell answer_of(const Row& row, Policy::Heap heap) {
  const bool fits = row.fits[index_of(heap)];
  return {nullptr, fmt::format("{}{}", fits ? "yes" : "no", row.is_unsure[index_of(heap)] ? "?" : ""),
          fits ? Mood::good : Mood::bad};
}

// "3.82 GiB to 47.53 GiB", or one size.
std::string sizes_text(std::size_t least_bytes, std::size_t most_bytes) {
  const std::string least = format_bytes(least_bytes);
  const std::string most = format_bytes(most_bytes);
  return least == most ? least : fmt::format("{} to {}", least, most);
}

std::string text_of_question(const SizedMemory& sized) {
  switch (sized.by) {
    case SizedMemory::By::free:
      return fmt::format("when {} was free", format_bytes(sized.told_bytes));
    case SizedMemory::By::total:
      return fmt::format("after it read that the GPU has {}", format_bytes(sized.told_bytes));
    case SizedMemory::By::trial:
      break;
  }
  return "until there was no more";
}

void add_sized(Section& section, const CardTable& table) {
  const SizedMemory& sized = *table.run.sized;
  std::vector<std::string> sizes;
  for (const std::size_t bytes : sized.block_bytes) sizes.push_back(format_bytes(bytes));
  section.add_line("sized to it",
                   fmt::format("{} in blocks of {} at {}, which the program asked for {}", format_bytes(sized.bytes),
                               fmt::join(sizes, " and "), sized.at, text_of_question(sized)));
  section.add_line("", fmt::format("It seems to size them to the GPU; if not, it needs as much on every GPU. The rest "
                                   "must fit; the table has what about {} of each GPU leave for them. --gpu runs it on "
                                   "another one.",
                                   percent_text(table.part)));
}

// The settings that make a program fit on some card on which it does not fit by default.
std::vector<std::string> settings_lines(const CardTable& table) {
  std::vector<std::string> lines;
  for (const Policy::Heap heap : kHeaps) {
    const bool decides = std::ranges::any_of(table.rows, [&](const Row& row) {
      return row.fits[index_of(heap)] && !row.fits[index_of(Policy::Heap::segments)];
    });
    if (decides)
      lines.push_back(fmt::format("{}: {}", name_of(heap), tools::line_of(Policy{.heap = heap}, kEnoughBytes)));
  }
  return lines;
}

// Returns whether the program fits into `usable_bytes`. Memory on which it ran is enough, and so is more; memory on which it ran
// out is too little, and so is less.
bool fits_into(std::size_t usable_bytes, Policy::Heap heap, const CardRun& run, MemoryNeed& need) {
  if (run.heap == heap && !run.ran_out && usable_bytes >= run.card.usable_bytes()) return true;
  if (run.heap == heap && run.ran_out && usable_bytes <= run.card.usable_bytes()) return false;
  return need.fits({.heap = heap}, usable_bytes - std::min(usable_bytes, run.other_bytes));
}

// The memory of a program that sizes itself, without what it sizes.
std::size_t fixed_bytes(const CardTable& table, const Card& card, Policy::Heap heap) {
  return table.held_bytes[index_of(heap)] + table.run.other_bytes + card.context_bytes;
}

std::size_t sized_bytes_on(const Card& card, const CardTable& table, Policy::Heap heap) {
  const auto taken = static_cast<std::size_t>(table.part * static_cast<double>(card.memory_bytes));
  return taken - std::min(taken, fixed_bytes(table, card, heap));
}

Row row_of(Card card, const CardTable& table, MemoryNeed& need) {
  const CardRun& run = table.run;
  Row row{.card = std::move(card)};
  row.sized_bytes = sized_bytes_on(row.card, table, run.heap.value_or(Policy::Heap::segments));
  for (const Policy::Heap heap : kHeaps) {
    const bool has_room = !run.sized || sized_bytes_on(row.card, table, heap) > 0;
    const bool fits = has_room && fits_into(row.card.usable_bytes(), heap, run, need);
    const std::size_t otherwise = fits ? row.card.least_usable_bytes() : row.card.most_usable_bytes();
    row.fits[index_of(heap)] = fits;
    row.is_unsure[index_of(heap)] = has_room && fits_into(otherwise, heap, run, need) != fits;
  }
  return row;
}

bool is_unsure(const Row& row) { return std::ranges::any_of(row.is_unsure, std::identity()); }

// 86 of "8.6" and of "sm_86", "sm_90a" and "compute_86".
int version_of(std::string_view text) {
  int version = 0;
  for (const char character : text) {
    if (std::isdigit(static_cast<unsigned char>(character)) != 0) version = 10 * version + (character - '0');
  }
  return version;
}

}  // namespace

bool has_kernels(const Card& card, const std::vector<std::string>& architectures) {
  constexpr int kMajor = 10;
  const int version = version_of(card.capability);
  return architectures.empty() || version == 0 ||
         std::ranges::any_of(architectures, [&](const std::string& architecture) {
           const int compiled = version_of(architecture);
           const bool is_ptx = architecture.starts_with("compute");
           return compiled <= version && (is_ptx || compiled / kMajor == version / kMajor);
         });
}

std::string memory_text_of(const std::vector<Card>& cards) {
  return sizes_text(cards.front().memory_bytes, cards.back().memory_bytes);
}

std::string text_of_cards(const std::vector<Card>& cards) {
  if (cards.size() > 2) return fmt::format("{} to {} ({} cards)", cards.front().key, cards.back().key, cards.size());
  return cards.front().key + (cards.size() == 2 ? ", " + cards.back().key : "");
}

std::string left_out_text(const std::vector<Card>& cards) {
  if (cards.empty()) return "";
  const std::string& first = cards.front().key;
  const std::string what = cards.size() == 1 ? first : fmt::format("{} cards, such as {}", cards.size(), first);
  return fmt::format("PyTorch as installed here has no kernels for {}", what);
}

namespace {

bool holds_what_the_run_held(MemoryNeed& need, const CardRun& run) {
  if (!run.heap) return true;
  // With the request that failed, a replay on enough memory holds what the run held or more.
  const std::size_t held = need.held_bytes({.heap = *run.heap});
  return run.ran_out ? held >= run.reserved_bytes : held == run.reserved_bytes;
}

}  // namespace

CardTable make_card_table(Trace trace, const CardRun& run, std::vector<Card> cards) {
  CardTable table;
  table.run = run;
  const auto whole = std::make_shared<const Trace>(std::move(trace));
  MemoryNeed need(whole);
  table.is_exact = holds_what_the_run_held(need, run);
  if (run.sized) need = MemoryNeed(without(*whole, *run.sized));
  table.live_bytes = need.live_bytes();
  for (const Policy::Heap heap : kHeaps) table.held_bytes[index_of(heap)] = need.held_bytes({.heap = heap});
  if (run.sized) {
    const std::size_t fixed = fixed_bytes(table, run.card, run.heap.value_or(Policy::Heap::segments));
    const double taken = static_cast<double>(fixed + run.sized->bytes);
    table.part = std::min(1.0, taken / static_cast<double>(run.card.memory_bytes));
  }
  if (std::ranges::find(cards, run.card) == cards.end()) cards.push_back(run.card);
  std::ranges::stable_sort(cards, {}, &Card::memory_bytes);
  for (Card& card : cards) {
    if (!has_kernels(card, run.architectures)) {
      table.left_out.push_back(std::move(card));
      continue;
    }
    table.rows.push_back(row_of(std::move(card), table, need));
  }
  return table;
}

void add_to(Section& section, const CardTable& cards, bool verbose) {
  Table table{.title = "Which GPU, which policy",
              .columns = {{.title = "GPU", .is_left = true}, {.title = "memory"}},
              .label = "fits on",
              .is_wide = true,
              .indent = kIndent,
              .views = kForPeople};
  if (cards.run.sized) table.columns.push_back({.title = "sized to it"});
  for (const Policy::Heap heap : kHeaps) table.columns.push_back({.title = std::string(name_of(heap))});
  table.columns.push_back({.title = " "});
  for (const Group& group : groups_of(cards, verbose)) {
    std::vector<Cell> row = {text_of_cards(cards_of(group)), memory_text_of(cards_of(group))};
    if (cards.run.sized) row.emplace_back(sizes_text(group.front()->sized_bytes, group.back()->sized_bytes));
    for (const Policy::Heap heap : kHeaps) row.push_back(answer_of(*group.front(), heap));
    row.emplace_back(group.front()->card == cards.run.card ? "this run" : "");
    table.rows.push_back(std::move(row));
  }
  if (cards.run.sized) add_sized(section, cards);
  if (cards.run.ran_out) section.add_line("", "Up to the request that failed, with it; what comes later is not known:");
  section.add(std::move(table));
  for (std::string& line : settings_lines(cards)) section.add_line("", std::move(line));
  if (!cards.left_out.empty()) section.add_line("", left_out_text(cards.left_out));
  if (!cards.is_exact) section.add_line("", "approximate: the program does more with memory than allocate and free it");
  if (std::ranges::any_of(cards.rows, is_unsure)) section.add_line("", kUnsureText);
}

Json json_of(const CardTable& table) {
  Json json = {{"device", table.run.device},
               {"live_bytes", table.live_bytes},
               {"other_bytes", table.run.other_bytes},
               {"exact", table.is_exact}};
  for (const Policy::Heap heap : kHeaps) {
    json["held_bytes"][std::string(key_of(heap))] = table.held_bytes[index_of(heap)];
  }
  if (const std::optional<SizedMemory>& sized = table.run.sized) {
    json["sized"] = {{"bytes", sized->bytes},
                     {"blocks", sized->allocations.size()},
                     {"free_bytes", sized->by == SizedMemory::By::free ? Json(sized->told_bytes) : Json()},
                     {"at", sized->at},
                     {"part", table.part}};
  }
  json["left_out"] = Json::array();
  for (const Card& card : table.left_out) json["left_out"].push_back(card.key);
  json["cards"] = Json::array();
  for (const Row& row : table.rows) {
    Json card = {{"gpu", row.card.key},
                 {"name", row.card.product},
                 {"memory_bytes", row.card.memory_bytes},
                 {"context_bytes", row.card.context_bytes},
                 {"same_architecture", row.card.capability == table.run.card.capability},
                 {"spread", {{"less_bytes", row.card.less_bytes}, {"more_bytes", row.card.more_bytes}}},
                 {"unsure", Json::array()}};
    if (table.run.sized) card["sized_bytes"] = row.sized_bytes;
    for (const Policy::Heap heap : kHeaps) {
      card[std::string(key_of(heap))] = row.fits[index_of(heap)];
      if (row.is_unsure[index_of(heap)]) card["unsure"].push_back(key_of(heap));
    }
    json["cards"].push_back(std::move(card));
  }
  return json;
}

}  // namespace cachalot::tools
