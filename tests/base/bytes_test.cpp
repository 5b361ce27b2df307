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

TEST(ParseBytes, RefusesEverythingElseAndNamesIt) {
  for (const char* text :
       {"", "GiB", "-1", "-1GiB", "1GB", "1 gib", "1GiB ", "nan", "inf", "1e40", "0.3", "12x", "1,5GiB"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << "'" << text << "' was accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("'") + text + "'"), std::string::npos) << error.what();
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
