#include "base/suggestions.h"

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "base/format.h"

CACHALOT_BEGIN
namespace {

constexpr std::size_t kLongestWord = 256;  // whatever is longer is not a misspelt word

char folded(char letter) {
  return letter == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

std::string folded(std::string_view word) {
  std::string result(word);
  std::ranges::transform(word, result.begin(), [](char letter) { return folded(letter); });
  return result;
}

bool is_near(std::size_t distance, std::size_t letters) { return distance <= std::max<std::size_t>(letters / 3, 1); }

// The shortest known word that begins with a word of some length.
std::string_view completion(const std::string& word, std::span<const std::string_view> known) {
  constexpr std::size_t kTelling = 3;  // fewer letters begin too many words
  std::string_view best;
  if (word.size() < kTelling) return best;
  for (const std::string_view candidate : known) {
    if (!folded(candidate).starts_with(word)) continue;
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
}

}  // namespace

// The optimal string alignment distance: row i has the distances of the first i letters of `one` from each beginning of `other`.
std::size_t edit_distance(std::string_view one, std::string_view other) {
  const std::string a = folded(one);
  const std::string b = folded(other);
  std::vector<std::size_t> before_last(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known) {
  if (word.empty() || word.size() > kLongestWord) return "";
  std::string_view best;
  std::size_t least = kLongestWord;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= least || !is_near(distance, std::min(word.size(), candidate.size()))) continue;
    best = candidate;
    least = distance;
  }
  return best.empty() ? completion(folded(word), known) : best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view nearest = nearest_word(word, known);
  return nearest.empty() ? "" : formatted("did you mean '{}'?", nearest);
}

CACHALOT_END
