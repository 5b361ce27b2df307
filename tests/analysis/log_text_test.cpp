// Tests that the changes of consoles, loggers and terminals to a text are undone.
#include "tools/analysis/log_text.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;

std::string squeezed(std::string_view text) { return std::string(LogText(text).squeezed()); }

TEST(LogText, LeavesOutWhiteSpaceWithinWordsToo) {
  EXPECT_EQ(squeezed("CUDA out of mem\nory.  Tried\tto"), "CUDAoutofmemory.Triedto");
  EXPECT_EQ(squeezed("2.00\xc2\xa0MiB\r\nfree"), "2.00MiBfree");
  EXPECT_EQ(squeezed(""), "");
}

TEST(LogText, DecodesUtf16WithAndWithoutAMark) {
  EXPECT_EQ(squeezed("\xff\xfeG\0P\0U\0\n\0"sv), "GPU");
  EXPECT_EQ(squeezed("\xfe\xff\0G\0P\0U"sv), "GPU");
  EXPECT_EQ(squeezed("G\0P\0U\0 \0000\0 \0h\0a\0s\0"sv), "GPU0has");
  EXPECT_EQ(squeezed("\0G\0P\0U\0 \0000\0 \0h\0a\0s"sv), "GPU0has");
  EXPECT_EQ(squeezed("\xff\xfe\x3d\xd8\x00\xde"sv), "\xf0\x9f\x98\x80");
  EXPECT_EQ(squeezed("\xef\xbb\xbfGPU"), "GPU");
}

TEST(LogText, LeavesOutColoursHoweverTheyWereWritten) {
  EXPECT_EQ(squeezed("\x1b[36m(pid=7)\x1b[0m \x1b[1;32m3.06\x1b[0m GiB"), "(pid=7)3.06GiB");
  EXPECT_EQ(squeezed("^[[1m3.06^[[0m GiB"), "3.06GiB");
  EXPECT_EQ(squeezed("#033[1m3.06#033[0m GiB"), "3.06GiB");
  EXPECT_EQ(squeezed("[1;32m3.06[0m GiB"), "3.06GiB");
  EXPECT_EQ(squeezed("\\u001b[1m3.06\\x1b[0m GiB"), "3.06GiB");
  EXPECT_EQ(squeezed("\x1b]0;title\a[rank0]: [0] [main]"), "[rank0]:[0][main]");
}

TEST(LogText, UndoesTheEscapesOfJsonAndPython) {
  EXPECT_EQ(squeezed(R"({"msg":"a\nb \"c\" \u0041\/"})"), R"({"msg":"ab"c"A/"})");
  EXPECT_EQ(squeezed(R"(a\\nb)"), "ab");
  EXPECT_EQ(squeezed(R"(C:\work\)"), R"(C:\work\)");
}

TEST(LogText, LeavesOutThePrefixThatALineSharesWithTheOneBefore) {
  EXPECT_EQ(squeezed("[rank0]: of which 2.61\n[rank0]: GiB is free"), "[rank0]:ofwhich2.61GiBisfree");
  EXPECT_EQ(squeezed("2025-07-11 09:30:40,445 - app - INFO - Process 7\n2025-07-11 09:30:41,2 - app - INFO -  has"),
            "2025-07-1109:30:40,445-app-INFO-Process7has");
  EXPECT_EQ(squeezed("\xe2\x94\x82 of which 2.61 \xe2\x94\x82\n\xe2\x94\x82 GiB is free \xe2\x94\x82"),
            "\xe2\x94\x82ofwhich2.61GiBisfree");
  EXPECT_EQ(squeezed("Process 1 has 2 GiB\nProcess 2 has 3 GiB"), "Process1has2GiBProcess2has3GiB");
}

TEST(LogText, LeavesOutWhatContainersWriteAroundLines) {
  EXPECT_EQ(squeezed(R"({"log":"of which 2.61\n","stream":"stderr","time":"1"})"
                     "\n"
                     R"({"log":" GiB\n","stream":"stderr","time":"2"})"),
            "ofwhich2.61GiB");
  EXPECT_EQ(squeezed("2025-07-11T09:30:40.1Z stderr P of which 2.6\n2025-07-11T09:30:40.2Z stderr F 1 GiB"),
            "ofwhich2.61GiB");
}

TEST(LogText, LeavesOutTheMarksOfMarkdown) {
  EXPECT_EQ(squeezed("allocate **3.06 GiB**, `GPU` 0"), "allocate3.06GiB,GPU0");
}

TEST(LogText, ReadsEntitiesAndFullWidthPunctuation) {
  EXPECT_EQ(squeezed("&gt;&nbsp;2.61 GiB&amp;more &quot;x&#x27;"), ">2.61GiB&more\"x'");
  EXPECT_EQ(squeezed("\xef\xbc\x88GPU 0\xef\xbc\x9b 15 GiB\xef\xbc\x89\xe3\x80\x82"), "(GPU0;15GiB).");
}

TEST(LogText, NumbersOfTwoLinesAreNotOne) {
  EXPECT_EQ(squeezed("size 2850\n2021-07-08: next"), "size2850 2021-07-08:next");
  EXPECT_EQ(squeezed("size 2850\n\n12"), "size2850 12");
  EXPECT_EQ(squeezed("size 28\n50"), "size2850");
}

TEST(LogText, LeavesOutThePlaceInTheCodeAtTheRightMargin) {
  EXPECT_EQ(squeezed("GPU 0 has     worker.py:88\na total"), "GPU0hasatotal");
}

TEST(LogText, KnowsTheLineOfACharacter) {
  const LogText text("first\n\n[rank3]: second\n[rank3]: third");
  EXPECT_EQ(text.line_of(text.squeezed().find("second")), "[rank3]: second");
  EXPECT_EQ(text.line_of(text.squeezed().find("third")), "[rank3]: third");
  EXPECT_EQ(LogText("").line_of(0), "");
}

}  // namespace
}  // namespace cachalot::tools
