#include "tools/simulation/card_table.h"

#include <fmt/format.h>

#include <cctype>
#include <functional>
#include <iterator>
#include <string_view>

#include "base/bytes.h"

namespace cachalot::tools {
namespace {

using Row = CardTable::Row;
constexpr std::size_t kIndent = 16;

bool policies_differ(const Row& row) {
  return std::ranges::any_of(row.fits, [&](bool fits) { return fits != row.fits.front(); });
}

// Rows that are one line of the report: all of the same answers.
struct Group {
  std::vector<const Row*> rows;

  const Row& first() const { return *rows.front(); }
  const Row& last() const { return *rows.back(); }
};

bool are_one_line(const Row& row, const Row& next, const Card& run) {
  if (row.fits != next.fits || row.is_unsure != next.is_unsure || row.card == run || next.card == run) return false;
  return !policies_differ(row) || row.card.memory_bytes == next.card.memory_bytes;
}

std::vector<Group> groups_of(const CardTable& table, bool verbose) {
  std::vector<Group> groups;
  for (const Row& row : table.rows) {
    const bool joins = !verbose && !groups.empty() && are_one_line(groups.back().last(), row, table.run.card);
    if (!joins) groups.emplace_back();
    groups.back().rows.push_back(&row);
  }
  return groups;
}

std::string memory_text(const Group& group) {
  const std::string least = format_bytes(group.first().card.memory_bytes);
  const std::string most = format_bytes(group.last().card.memory_bytes);
  return least == most ? least : fmt::format("{} to {}", least, most);
}

// "t4", "gtx1660, rtx2060" or "gtx1650 to p4 (9 cards)".
std::string cards_text(const Group& group) {
  constexpr std::size_t kMostNamed = 2;
  if (group.rows.size() > kMostNamed) {
    return fmt::format("{} to {} ({} cards)", group.first().card.key, group.last().card.key, group.rows.size());
  }
  std::string text = group.first().card.key;
  if (group.rows.size() == kMostNamed) text += ", " + group.last().card.key;
  return text;
}

// A cell is padded before it is coloured.
std::string answer_cell(const Row& row, Policy policy, const Style& style) {
  const bool fits = row.fits[index_of(policy)];
  const std::string answer = fmt::format("{}{}", fits ? "yes" : "no", row.is_unsure[index_of(policy)] ? "?" : "");
  const std::string cell = fmt::format("  {:>{}}", answer, name_of(policy).size());
  return fits ? style.good(cell) : style.bad(cell);
}

// The widths of the columns of names and of memory.
struct Widths {
  std::size_t cards = 0;
  std::size_t memory = 0;
};

Widths widths_of(const std::vector<Group>& groups) {
  Widths widths{.cards = 0, .memory = std::string_view("memory").size()};
  for (const Group& group : groups) {
    widths.cards = std::max(widths.cards, cards_text(group).size());
    widths.memory = std::max(widths.memory, memory_text(group).size());
  }
  return widths;
}

std::string row_text(const Group& group, const CardTable& table, const Widths& widths, const Style& style) {
  std::string text = fmt::format("{:<{}}  {:>{}}", cards_text(group), widths.cards, memory_text(group), widths.memory);
  for (const Policy policy : kPolicies) {
    text += answer_cell(group.first(), policy, style);
  }
  return text + (group.first().card == table.run.card ? "  this run" : "");
}

std::string heading(const Widths& widths, const Style& style) {
  std::string text = fmt::format("{:<{}}  {:>{}}", "GPU", widths.cards, "memory", widths.memory);
  for (const Policy policy : kPolicies) text += fmt::format("  {}", name_of(policy));
  return style.bold(text);
}

// The settings that make a program fit on some card on which it does not fit by default.
std::vector<std::string> settings_lines(const CardTable& table) {
  std::vector<std::string> lines;
  for (const Policy policy : kPolicies) {
    const bool decides = std::ranges::any_of(
        table.rows, [&](const Row& row) { return row.fits[index_of(policy)] && !row.fits[index_of(Policy::pytorch)]; });
    if (decides) lines.push_back(fmt::format("{}: {}", name_of(policy), setting_of(policy)));
  }
  return lines;
}

// Returns whether the program fits into `usable_bytes`. Memory on which it ran is enough, and so is more.
bool fits_into(std::size_t usable_bytes, Policy policy, const CardRun& run, PolicyFit& fit) {
  if (run.policy == policy && usable_bytes >= run.card.usable_bytes()) return true;
  return fit.fits(policy, usable_bytes - std::min(usable_bytes, run.other_bytes));
}

Row row_of(Card card, const CardRun& run, PolicyFit& fit) {
  Row row{.card = std::move(card), .fits = {}, .is_unsure = {}};
  for (const Policy policy : kPolicies) {
    const bool fits = fits_into(row.card.usable_bytes(), policy, run, fit);
    const std::size_t otherwise = fits ? row.card.least_usable_bytes() : row.card.most_usable_bytes();
    row.fits[index_of(policy)] = fits;
    row.is_unsure[index_of(policy)] = fits_into(otherwise, policy, run, fit) != fits;
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

std::string left_out_text(const std::vector<Card>& cards) {
  if (cards.empty()) return "";
  const std::string& first = cards.front().key;
  const std::string what = cards.size() == 1 ? first : fmt::format("{} cards, such as {}", cards.size(), first);
  return fmt::format("PyTorch as installed here has no kernels for {}", what);
}

CardTable make_card_table(Trace trace, const CardRun& run, std::vector<Card> cards) {
  CardTable table;
  table.run = run;
  PolicyFit fit(std::move(trace));
  table.live_bytes = fit.live_bytes();
  for (const Policy policy : kPolicies) table.held_bytes[index_of(policy)] = fit.held_bytes(policy);
  table.is_exact = !run.policy || table.held_bytes[index_of(*run.policy)] == run.reserved_bytes;
  if (std::ranges::find(cards, run.card) == cards.end()) cards.push_back(run.card);
  std::ranges::stable_sort(cards, {}, &Card::memory_bytes);
  for (Card& card : cards) {
    if (!has_kernels(card, run.architectures)) {
      table.left_out.push_back(std::move(card));
      continue;
    }
    table.rows.push_back(row_of(std::move(card), run, fit));
  }
  return table;
}

std::string to_text(const CardTable& table, bool verbose, const Style& style) {
  const std::vector<Group> groups = groups_of(table, verbose);
  const Widths widths = widths_of(groups);
  std::vector<std::string> lines = {heading(widths, style)};
  for (const Group& group : groups) lines.push_back(row_text(group, table, widths, style));
  std::ranges::move(settings_lines(table), std::back_inserter(lines));
  if (!table.left_out.empty()) lines.push_back(left_out_text(table.left_out));
  if (!table.is_exact) lines.emplace_back("approximate: the program does more with memory than allocate and free it");
  if (std::ranges::any_of(table.rows, is_unsure)) lines.emplace_back(kUnsureText);
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : std::string(kIndent, ' ')) + line + "\n";
  return text;
}

nlohmann::json json_of(const CardTable& table) {
  nlohmann::json json = {{"device", table.run.device},
                         {"live_bytes", table.live_bytes},
                         {"other_bytes", table.run.other_bytes},
                         {"exact", table.is_exact}};
  for (const Policy policy : kPolicies) {
    json["held_bytes"][std::string(key_of(policy))] = table.held_bytes[index_of(policy)];
  }
  json["left_out"] = nlohmann::json::array();
  for (const Card& card : table.left_out) json["left_out"].push_back(card.key);
  json["cards"] = nlohmann::json::array();
  for (const Row& row : table.rows) {
    nlohmann::json card = {{"gpu", row.card.key},
                           {"name", row.card.product},
                           {"memory_bytes", row.card.memory_bytes},
                           {"context_bytes", row.card.context_bytes},
                           {"same_architecture", row.card.capability == table.run.card.capability},
                           {"spread", {{"less_bytes", row.card.less_bytes}, {"more_bytes", row.card.more_bytes}}},
                           {"unsure", nlohmann::json::array()}};
    for (const Policy policy : kPolicies) {
      card[std::string(key_of(policy))] = row.fits[index_of(policy)];
      if (row.is_unsure[index_of(policy)]) card["unsure"].push_back(key_of(policy));
    }
    json["cards"].push_back(std::move(card));
  }
  return json;
}

}  // namespace cachalot::tools
