#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace cachalot {
namespace {

std::string json_of(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string json_of(double number) {
  std::string out;
  append_json_number(out, number);
  return out;
}

TEST(JsonWriter, WritesNestedValuesInOrder) {
  JsonWriter json;
  json.begin_object().member("a", 1).member("b", "text").member("c", true).member("d", nullptr);
  json.key("list").list(std::vector<int>{1, 2});
  json.key("empty").begin_array().end_array();
  json.key("objects").list(std::vector<int>{1, 2},
                           [](JsonWriter& list, int item) { list.begin_object().member("item", item).end_object(); });
  json.key("raw").raw("[0]");
  EXPECT_EQ(
      json.end_object().take(),
      R"({"a":1,"b":"text","c":true,"d":null,"list":[1,2],"empty":[],"objects":[{"item":1},{"item":2}],"raw":[0]})");
}

TEST(JsonWriter, KeepsIntegersOf64Bits) {
  JsonWriter json;
  json.list(std::vector<std::uint64_t>{~std::uint64_t{0}, 0});
  EXPECT_EQ(json.take(), "[18446744073709551615,0]");
  JsonWriter least;
  EXPECT_EQ(least.value(std::numeric_limits<std::int64_t>::min()).take(), "-9223372036854775808");
}

TEST(JsonNumber, IsShortAndStaysReal) {
  EXPECT_EQ(json_of(0.1), "0.1");
  EXPECT_EQ(json_of(3.0), "3.0");
  EXPECT_EQ(json_of(-0.0), "-0.0");
  EXPECT_EQ(json_of(1e300), "1e+300");
  EXPECT_EQ(json_of(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_of(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(JsonString, EscapesWhatJsonAsksFor) {
  EXPECT_EQ(json_of("a\"b\\c\n\t\r\b\f\x01"), R"("a\"b\\c\n\t\r\b\f\u0001")");
  EXPECT_EQ(json_of(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(json_of("Ä€😀"), "\"Ä€😀\"");
}

TEST(JsonString, ReplacesEachByteThatIsNoCharacter) {
  EXPECT_EQ(json_of("\xff"), "\"\uFFFD\"");
  EXPECT_EQ(json_of("\xc3"), "\"\uFFFD\"");                                // cut short
  EXPECT_EQ(json_of("\xc0\xaf"), "\"\uFFFD\uFFFD\"");                      // overlong
  EXPECT_EQ(json_of("\xed\xa0\x80"), "\"\uFFFD\uFFFD\uFFFD\"");            // a surrogate
  EXPECT_EQ(json_of("\xf4\x90\x80\x80"), "\"\uFFFD\uFFFD\uFFFD\uFFFD\"");  // beyond U+10FFFF
}

TEST(JsonString, IsReadBackWhateverItsBytes) {
  std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same bytes in each run
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 12, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const auto read = nlohmann::json::parse(json_of(bytes), nullptr, false);
    ASSERT_TRUE(read.is_string()) << "round " << round;
    ASSERT_EQ(json_of(read.get<std::string>()), json_of(bytes)) << "round " << round;
  }
}

}  // namespace
}  // namespace cachalot
