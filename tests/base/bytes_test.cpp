#include "base/bytes.h"

#include <gtest/gtest.h>

#include "cachalot/errors.h"

namespace cachalot {
namespace {

TEST(FormatBytes, WritesSizesAsPyTorchDoes) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1024), "1024 bytes");
  EXPECT_EQ(format_bytes(1025), "1.00 KiB");
  EXPECT_EQ(format_bytes(kMiB), "1024.00 KiB");
  EXPECT_EQ(format_bytes(20 * kMiB), "20.00 MiB");
  EXPECT_EQ(format_bytes(80 * kGiB + kGiB / 2), "80.50 GiB");
}

TEST(ParseBytes, ReadsBytesAndUnits) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("1024"), 1024u);
  EXPECT_EQ(parse_bytes("512KiB"), 512 * kKiB);
  EXPECT_EQ(parse_bytes("1.5 MiB"), kMiB + kMiB / 2);
  EXPECT_EQ(parse_bytes("80GiB"), 80 * kGiB);
  EXPECT_EQ(parse_bytes("2TiB"), 2048 * kGiB);
}

TEST(ParseBytes, TakesEveryWayPeopleWriteUnitsAndAlwaysCountsInStepsOf1024) {
  for (const char* text : {"24G", "24g", "24GB", "24gb", "24Gb", "24GiB", "24gib", "24 GB", "24 g", "24576MB"}) {
    EXPECT_EQ(parse_bytes(text), 24 * kGiB) << text;
  }
  EXPECT_EQ(parse_bytes("512m"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("24000MB"), 24000 * kMiB);
  EXPECT_EQ(parse_bytes("1k"), kKiB);
  EXPECT_EQ(parse_bytes("1T"), 1024 * kGiB);
  EXPECT_EQ(parse_bytes("512 bytes"), 512u);
  EXPECT_EQ(parse_bytes("512B"), 512u);
}

TEST(ParseBytes, RoundsPartsOfUnitsToWholeBytes) {
  EXPECT_EQ(parse_bytes("0.1GiB"), 107374182u);
  EXPECT_EQ(parse_bytes("23.7G"), 25447681229u);
}

TEST(ParseBytes, RefusesEverythingElseNamesItAndSaysWhatIsTaken) {
  for (const char* text : {"", "GiB", "-1", "-1GiB", "1GiB ", "nan", "inf", "1e40", "0.3", "12x", "1,5GiB", "1GBB",
                           "1GiBs", "1E", "24i"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << "'" << text << "' was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + text + "'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("such as 512MiB, 24GiB, 24GB or 24G"), std::string::npos);
    }
  }
}

TEST(Rounding, GoesToMultiples) {
  EXPECT_EQ(round_up(0, 512), 0u);
  EXPECT_EQ(round_up(1, 512), 512u);
  EXPECT_EQ(round_up(512, 512), 512u);
  EXPECT_EQ(round_down(1023, 512), 512u);
}

}  // namespace
}  // namespace cachalot
