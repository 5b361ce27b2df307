#include "cachalot/span.h"

#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace cachalot::testing {
namespace {

int sum(Span<const int> values) {
  int sum = 0;
  for (const int value : values) sum += value;
  return sum;
}

void set_all(Span<int> values, int value) {
  for (int& each : values) each = value;
}

TEST(Span, ViewsNothingByDefault) {
  constexpr Span<int> kNothing;
  EXPECT_TRUE(kNothing.empty());
  EXPECT_EQ(kNothing.size(), 0u);
  EXPECT_EQ(kNothing.data(), nullptr);
  EXPECT_EQ(kNothing.begin(), kNothing.end());
}

TEST(Span, ViewsAnArray) {
  int array[] = {1, 2, 3};
  const Span<int> span = array;
  EXPECT_EQ(span.data(), array);
  EXPECT_EQ(span.size(), 3u);
  span[1] = 7;
  EXPECT_EQ(array[1], 7);
  EXPECT_EQ(sum(array), 11);
}

TEST(Span, ViewsContainersTheirConstantsAndTemporaries) {
  std::vector<int> vector = {1, 2, 3};
  const std::array<int, 2> array = {4, 5};
  EXPECT_EQ(sum(vector), 6);
  EXPECT_EQ(sum(array), 9);
  EXPECT_EQ(sum(std::vector<int>{10, 20}), 30);
  EXPECT_EQ(Span<const char>(std::string("abc")).size(), 3u);
  set_all(vector, 4);
  EXPECT_EQ(vector, (std::vector<int>{4, 4, 4}));
}

TEST(Span, ViewsABracedList) {
  EXPECT_EQ(sum({1, 2, 3}), 6);
  EXPECT_EQ(sum({}), 0);
}

TEST(Span, OfConstantElementsIsMadeOfOneOfOthers) {
  int array[] = {1, 2};
  const Span<int> span = array;
  const Span<const int> constant = span;
  EXPECT_EQ(constant.data(), array);
  EXPECT_EQ(constant.size(), 2u);
}

TEST(Span, ConvertsFromAndToTheStandardLibrarys) {
  int array[] = {1, 2, 3};
  const Span<int> ours = std::span(array);  // a temporary view of elements that may change
  EXPECT_EQ(ours.data(), array);
  EXPECT_EQ(ours.size(), 3u);
  const std::span<int> theirs = ours;
  EXPECT_EQ(theirs.data(), array);
  EXPECT_EQ(theirs.size(), 3u);
  const std::span<const int> constant = Span<int>(array);
  EXPECT_EQ(constant.size(), 3u);
  EXPECT_EQ(sum(std::span<const int>(array).first(2)), 3);
}

TEST(Span, HasParts) {
  int array[] = {1, 2, 3, 4};
  EXPECT_EQ(sum(Span<int>(array).subspan(1, 2)), 5);
  EXPECT_EQ(sum(Span<int>(array, 3)), 6);
  EXPECT_TRUE(Span<int>(array).subspan(4, 0).empty());
}

struct Base {};
struct Derived : Base {};

TEST(Span, RefusesWhatIsUnsafe) {
  static_assert(!std::is_convertible_v<std::vector<int>, Span<int>>, "a temporary's elements may not be written");
  static_assert(!std::is_convertible_v<const std::vector<int>&, Span<int>>, "constants may not be written");
  static_assert(!std::is_convertible_v<Span<const int>, Span<int>>, "constants may not be written");
  static_assert(!std::is_convertible_v<std::vector<Derived>&, Span<Base>>, "an array of Derived is none of Base");
  static_assert(!std::is_convertible_v<int, Span<const int>>, "a number is no container");
  static_assert(!std::is_convertible_v<std::initializer_list<int>, Span<int>>, "a list's elements are constants");
  static_assert(std::is_trivially_copyable_v<Span<int>>, "passed in registers");
}

}  // namespace
}  // namespace cachalot::testing
