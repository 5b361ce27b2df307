// The words in which cached blocks say that they are lent.
#include "caches/depot.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "base/check.h"

namespace cachalot {
namespace {

constexpr std::size_t kMany = 500;

std::uintptr_t line_of(const std::uint16_t* word) { return reinterpret_cast<std::uintptr_t>(word) / kCacheLine; }

TEST(LentWords, OfTwoThreadsLieOnDifferentLines) {
  DepotBudget budget;
  Depot depot(budget);
  std::set<std::uintptr_t> lines[2];
  for (auto& of_thread : lines) {
    LentWords& words = depot.add_words();
    for (std::size_t i = 0; i < kMany; ++i) of_thread.insert(line_of(words.allocate()));
  }
  for (const std::uintptr_t line : lines[0]) EXPECT_FALSE(lines[1].contains(line));
}

TEST(LentWords, ComeBackToTheThreadThatHadThem) {
  DepotBudget budget;
  Depot depot(budget);
  EXPECT_TRUE(depot.all_words_are_free());
  LentWords& some = depot.add_words();
  LentWords& others = depot.add_words();
  std::vector<std::uint16_t*> words;
  std::set<std::uintptr_t> lines;
  for (std::size_t i = 0; i < kMany; ++i) {
    words.push_back(some.allocate());
    lines.insert(line_of(words.back()));
    words.push_back(others.allocate());
  }
  for (std::uint16_t* const word : words) {
    EXPECT_FALSE(depot.all_words_are_free());
    LentWords::free(word);
  }
  EXPECT_TRUE(depot.all_words_are_free());
  const std::size_t bytes = depot.metadata_bytes();
  for (std::size_t i = 0; i < kMany; ++i) EXPECT_TRUE(lines.contains(line_of(some.allocate())));
  EXPECT_EQ(depot.metadata_bytes(), bytes) << "words are used again";
}

}  // namespace
}  // namespace cachalot
