#include "base/format.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace cachalot {
namespace {

TEST(Formatted, WritesEachKindOfValue) {
  EXPECT_EQ(formatted("{} {} {} {}", 1, -2L, std::size_t{3}, std::uint8_t{4}), "1 -2 3 4");
  EXPECT_EQ(formatted("{} {}", true, 'x'), "true x");
  EXPECT_EQ(formatted("{} {} {}", "text", std::string("string"), std::string_view("view")), "text string view");
  EXPECT_EQ(formatted("{} {} {} {} {}", 0.5, 1.0, 1e6, 1e300, 0.0), "0.5 1 1000000 1e+300 0");
  EXPECT_EQ(formatted("{}", static_cast<const void*>(nullptr)), "0x0");
  EXPECT_EQ(formatted("{}", reinterpret_cast<const void*>(0xabc)), "0xabc");
}

TEST(Formatted, WritesTheSmallestAndLargestIntegers) {
  EXPECT_EQ(formatted("{}", std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(formatted("{} {:#x}", ~std::uint64_t{0}, ~std::uint64_t{0}), "18446744073709551615 0xffffffffffffffff");
}

TEST(Formatted, FollowsEachPlaceholder) {
  EXPECT_EQ(formatted("{:#x}", 255), "0xff");
  EXPECT_EQ(formatted("{:06}|{:06}", 42, 1234567), "000042|1234567");
  EXPECT_EQ(formatted("{:.2f}|{:.1f}|{:.4f}", 1.239, 2.0, 0.99995), "1.24|2.0|1.0000");
  EXPECT_EQ(formatted("{:.3}|{:.3}", "abcdef", "ab"), "abc|ab");
}

TEST(Formatted, WritesTheLargestDoubleInFull) {
  EXPECT_EQ(formatted("{:.60f}", std::numeric_limits<double>::max()).size(), 309U + 1 + 60);
}

TEST(Formatted, LeavesTextAndDoubledBraces) {
  EXPECT_EQ(formatted("nothing"), "nothing");
  EXPECT_EQ(formatted("{{{}}} {{}}", 1), "{1} {}");
  EXPECT_EQ(formatted(""), "");
}

// FormatPattern's constructor is evaluated when a program is compiled; a pattern that breaks a rule throws there.
constexpr bool fits(Placeholder::Form form, auto value) { return Placeholder::fits<decltype(value)>(form); }

TEST(Formatted, ChecksPlaceholdersAgainstTypes) {
  using Form = Placeholder::Form;
  EXPECT_TRUE(fits(Form::hexadecimal, 1));
  EXPECT_FALSE(fits(Form::hexadecimal, 1.0));
  EXPECT_FALSE(fits(Form::hexadecimal, true));
  EXPECT_TRUE(fits(Form::fixed, 1.0));
  EXPECT_FALSE(fits(Form::fixed, 1));
  EXPECT_TRUE(fits(Form::cut, "text"));
  EXPECT_FALSE(fits(Form::cut, 1));
  for (const char* bad : {":", ":x", ":.f", "0", ":.2e", ":>5", "x#x"}) {
    EXPECT_ANY_THROW(Placeholder::read(bad)) << bad;
  }
}

TEST(Join, PutsTheSeparatorBetweenItems) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}, ", "), "1, 2, 3");
  EXPECT_EQ(join(std::array{"a"}, ", "), "a");
  EXPECT_EQ(join(std::vector<int>{}, ", "), "");
}

}  // namespace
}  // namespace cachalot
