
#include <gtest/gtest.h>

#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

TEST(Style, PutsCodesAroundTextOrLeavesItPlain) {
  EXPECT_EQ(Style(true).good("yes"), "\033[32myes\033[0m");
  EXPECT_EQ(Style(true).bold("title"), "\033[1mtitle\033[0m");
  EXPECT_EQ(Style(true).bad(""), "");
  EXPECT_EQ(Style(false).bad("NO"), "NO");
  EXPECT_EQ(Style().bad("NO"), "NO");
}

TEST(Colors, AreWantedAlwaysNeverOrOnTerminals) {
  EXPECT_TRUE(wants_color("always", -1));
  EXPECT_FALSE(wants_color("never", 1));
  EXPECT_FALSE(wants_color("auto", -1)) << "no terminal";
}

TEST(TextLayout, WrapsWordsAndKeepsParagraphs) {
  const std::string word(30, 'x');
  EXPECT_EQ(wrapped(word + " " + word + " " + word + " " + word, 4),
            word + " " + word + " " + word + "\n    " + word + "\n");
  EXPECT_EQ(wrapped("one\ntwo\n\nthree", 0), "one two\n\nthree\n");
  EXPECT_EQ(wrapped("", 0), "\n");
}

TEST(TextLayout, PutsNumbersIntoWords) {
  EXPECT_EQ(times_text(1), "once");
  EXPECT_EQ(times_text(2), "twice");
  EXPECT_EQ(times_text(12), "12 times");
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(1411921), "1,411,921");
  EXPECT_EQ(labelled_line("events", "3", 8), "  events   3\n");
}

}  // namespace
}  // namespace cachalot::tools
