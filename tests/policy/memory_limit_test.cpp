#include "cachalot/options.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"
#include "cachalot/errors.h"

namespace cachalot {
namespace {

using Base = MemoryLimit::Base;

// On a device of 80 GiB of which 30 GiB are free and 10 GiB are held.
std::size_t bytes_of(const char* text) { return MemoryLimit::parse(text).in_bytes(80 * kGiB, 30 * kGiB, 10 * kGiB); }

TEST(MemoryLimits, AreSizes) {
  EXPECT_EQ(bytes_of("20GiB"), 20 * kGiB);
  EXPECT_EQ(bytes_of("512 MiB"), 512 * kMiB);
  EXPECT_EQ(bytes_of("1073741824"), kGiB);
  EXPECT_EQ(bytes_of("0"), 0u);
}

TEST(MemoryLimits, ArePartsOfTheDevice) {
  EXPECT_EQ(bytes_of("50%"), 40 * kGiB);
  EXPECT_EQ(bytes_of("12.5 %"), 10 * kGiB);
  EXPECT_EQ(bytes_of("100%"), 80 * kGiB);
}

TEST(MemoryLimits, AreWhatIsFreeAndHeld) {
  EXPECT_EQ(bytes_of("free"), 40 * kGiB);
  EXPECT_EQ(bytes_of("free-2GiB"), 38 * kGiB);
  EXPECT_EQ(bytes_of("free - 2 GiB"), 38 * kGiB);
  EXPECT_EQ(bytes_of("free-31GiB"), 10 * kGiB) << "what is held stays allowed";
}

TEST(MemoryLimits, MayBeNone) {
  EXPECT_EQ(bytes_of("none"), MemoryLimit::kNone);
  EXPECT_EQ(MemoryLimit(), MemoryLimit::parse("none"));
}

TEST(MemoryLimits, OfOtherTextsAreRefused) {
  for (const char* text : {"", "%", "0%", "101%", "-1%", "abc%", "80%%", "-2GiB", "free+2GiB", "free-", "free-2%",
                           "freed", "None", "20XB", "nan%"}) {
    try {
      MemoryLimit::parse(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("'" + std::string(text) + "'"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("free-2GiB"), std::string::npos) << error.what();
    }
  }
}

TEST(MemoryLimits, AreReadAgainFromTheirText) {
  for (const char* text : {"20GiB", "1500MiB", "1000001", "0", "80%", "12.5%", "free", "free-2GiB", "none"}) {
    EXPECT_EQ(to_string(MemoryLimit::parse(text)), text);
  }
  EXPECT_NE(MemoryLimit::parse("80%"), MemoryLimit::parse("81%"));
  EXPECT_NE(MemoryLimit::parse("free-1GiB"), MemoryLimit::parse("1GiB"));
}

TEST(MemoryLimits, AreAnOption) {
  EXPECT_EQ(parse_options("").limit, MemoryLimit());
  EXPECT_EQ(parse_options("limit:20GiB").limit, MemoryLimit::of_bytes(20 * kGiB));
  EXPECT_EQ(parse_options("limit:80%,heap:pages").limit.percent, 80);
  EXPECT_EQ(parse_options("limit:free-2GiB").limit.base, Base::free);
  EXPECT_EQ(parse_options("heap:pages", parse_options("limit:20GiB")).limit.bytes, 20 * kGiB)
      << "it stays if not named";
  EXPECT_EQ(parse_options("limit:none", parse_options("limit:20GiB")).limit, MemoryLimit());
  EXPECT_NE(parse_options("limit:20GiB"), parse_options("limit:21GiB"));
  EXPECT_THROW(parse_options("limit:much"), InvalidArgument);
  EXPECT_THROW(parse_options("limit:[1:2]"), InvalidArgument);
}

}  // namespace
}  // namespace cachalot
