#include "tools/fit_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/bytes.h"
#include "tools/text_layout.h"

namespace cachalot::tools {
namespace {

using Cells = std::vector<std::string>;

// The rows of one card: one for each combination of fixed values.
using CardRows = std::span<const FitRow>;

std::vector<CardRows> by_card(const FitReport& report) {
  std::vector<CardRows> cards;
  const std::span<const FitRow> all = report.rows;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    while (end < all.size() && all[end].card == all[begin].card) ++end;
    cards.push_back(all.subspan(begin, end - begin));
  }
  return cards;
}

bool say_the_same(CardRows one, CardRows other) {
  return one.front().card.memory_bytes == other.front().card.memory_bytes &&
         std::ranges::equal(
             one, other, [](const FitRow& a, const FitRow& b) { return a.fixed == b.fixed && a.largest == b.largest; });
}

// Cards that are one line of the table, or as many lines as there are combinations.
struct Group {
  std::vector<CardRows> cards;

  std::string text() const {
    const std::string& first = cards.front().front().card.key;
    if (cards.size() == 1) return first;
    if (cards.size() == 2) return fmt::format("{}, {}", first, cards.back().front().card.key);
    return fmt::format("{} and {} more", first, cards.size() - 1);
  }
};

std::vector<Group> groups_of(const FitReport& report, bool verbose) {
  std::vector<Group> groups;
  for (const CardRows& card : by_card(report)) {
    const auto same = std::ranges::find_if(groups, [&](const Group& g) { return say_the_same(g.cards.front(), card); });
    if (verbose || same == groups.end()) {
      groups.push_back({{card}});
    } else {
      same->cards.push_back(card);
    }
  }
  return groups;
}

// "-": not even the smallest value; "256+": the largest that was asked for.
std::string largest_text(const std::optional<std::int64_t>& largest, const Vary& vary) {
  if (!largest) return "-";
  return fmt::format("{}{}", *largest, *largest == vary.values.back() ? "+" : "");
}

Cells heading_of(const FitReport& report) {
  Cells cells = {"GPU", "memory"};
  for (std::size_t i = 0; i + 1 < report.vary.size(); ++i) cells.push_back(report.vary[i].name);
  for (const Policy policy : kPolicies) cells.emplace_back(name_of(policy));
  return cells;
}

std::vector<Cells> cells_of(const FitReport& report, bool verbose) {
  std::vector<Cells> lines = {heading_of(report)};
  for (const Group& group : groups_of(report, verbose)) {
    std::string name = group.text();
    std::string memory = format_bytes(group.cards.front().front().card.memory_bytes);
    for (const FitRow& row : group.cards.front()) {
      Cells cells = {std::exchange(name, ""), std::exchange(memory, "")};
      for (const std::int64_t value : row.fixed) cells.push_back(std::to_string(value));
      for (const auto& largest : row.largest) cells.push_back(largest_text(largest, report.vary.back()));
      lines.push_back(std::move(cells));
    }
  }
  return lines;
}

std::string aligned(const std::vector<Cells>& lines, const Style& style) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line = fmt::format("{:<{}}", cells.front(), widths.front());
    for (std::size_t i = 1; i < cells.size(); ++i) line += fmt::format("  {:>{}}", cells[i], widths[i]);
    text += (text.empty() ? style.bold(line) : line) + "\n";
  }
  return text;
}

// "seq or layers", of those before the last; "" for none.
std::string names_of_ranges(const FitReport& report) {
  std::vector<std::string> names;
  for (auto one = report.vary.begin(); one + 1 < report.vary.end(); ++one) {
    if (one->is_range && one->values.size() > 1) names.push_back(one->name);
  }
  return fmt::format("{}", fmt::join(names, " or "));
}

// "1..256" or "1, 2, 8".
std::string values_text(const Vary& vary) {
  const std::vector<std::int64_t>& values = vary.values;
  const auto steps = static_cast<std::int64_t>(values.size() - 1);
  if (steps > 1 && values.back() - values.front() == steps) return fmt::format("{}..{}", values.front(), values.back());
  return fmt::format("{}", fmt::join(values, ", "));
}

std::string legend(const FitReport& report) {
  const Vary& last = report.vary.back();
  std::string text = fmt::format(
      "The largest {0} of {1} that fits; -: none; +: all. A program that fits with some {0} is assumed to fit with "
      "every "
      "smaller one. {2} runs.",
      last.name, values_text(last), with_commas(report.runs));
  if (const std::string names = names_of_ranges(report); !names.empty()) {
    text += fmt::format(" The same is assumed of {}: the rows are those above which, with one policy, {} is smaller.",
                        names, last.name);
  }
  if (!report.is_exact) text += " Approximate: the program does more with memory than allocate and free it.";
  if (!report.left_out.empty()) text += " " + left_out_text(report.left_out) + ".";
  for (const Policy policy : kPolicies) {
    if (!setting_of(policy).empty()) text += fmt::format("\n\n{}: {}", name_of(policy), setting_of(policy));
  }
  return text;
}

}  // namespace

std::string to_text(const FitReport& report, bool verbose, const Style& style) {
  return aligned(cells_of(report, verbose), style) + "\n" + wrapped(legend(report), 0);
}

std::string to_json(const FitReport& report) {
  nlohmann::ordered_json json = {{"vary", nlohmann::ordered_json::object()},
                                 {"runs", report.runs},
                                 {"exact", report.is_exact},
                                 {"assumes", "monotonicity"},
                                 {"left_out", nlohmann::ordered_json::array()},
                                 {"results", nlohmann::ordered_json::array()}};
  for (const Vary& vary : report.vary) json["vary"][vary.name] = vary.values;
  for (const Card& card : report.left_out) json["left_out"].push_back(card.key);
  for (const FitRow& row : report.rows) {
    nlohmann::ordered_json result = {
        {"gpu", row.card.key}, {"name", row.card.product}, {"memory_bytes", row.card.memory_bytes}};
    result["values"] = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < row.fixed.size(); ++i) result["values"][report.vary[i].name] = row.fixed[i];
    for (const Policy policy : kPolicies) {
      const std::optional<std::int64_t>& largest = row.largest[index_of(policy)];
      result[std::string(key_of(policy))] = nullptr;
      if (largest) result[std::string(key_of(policy))] = *largest;
    }
    json["results"].push_back(std::move(result));
  }
  return json.dump();
}

}  // namespace cachalot::tools
