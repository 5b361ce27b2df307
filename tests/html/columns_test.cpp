#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

// Decodes as a report does, in C++: the encoding is described in html_report.h.
class Decoder {
 public:
  explicit Decoder(const ColumnWriter& writer) : writer_(writer) {}

  Numbers decode(const std::string& name) const {
    const auto& [encoding, rows, at] = entry(name);
    Numbers numbers = plain(rows, at);
    if (encoding == "deltas") {
      std::uint64_t number = 0;
      for (std::uint64_t& code : numbers) code = number += (code >> 1) ^ (~(code & 1) + 1);
    }
    if (encoding == "ranked") {
      const Numbers values = decode(name + ".values");
      for (std::uint64_t& rank : numbers) rank = values.at(rank);
    }
    return numbers;
  }

 private:
  struct Entry {
    std::string encoding;
    std::size_t rows;
    std::size_t at;
  };

  Entry entry(const std::string& name) const {
    const auto& json = writer_.directory().at(name);
    return {json.at(0), json.at(1), json.at(2)};
  }

  Numbers plain(std::size_t rows, std::size_t at) const {
    Numbers numbers;
    for (; rows > 0; --rows) {
      std::uint64_t number = 0;
      int shift = 0;
      for (; (writer_.bytes().at(at) & 0x80) != 0; ++at, shift += 7) number |= digits(at) << shift;
      numbers.push_back(number | digits(at++) << shift);
    }
    return numbers;
  }

  std::uint64_t digits(std::size_t at) const { return static_cast<std::uint64_t>(writer_.bytes().at(at)) & 0x7f; }

  const ColumnWriter& writer_;
};

TEST(Columns, AreReadAsTheyWereWritten) {
  const Numbers values = {0, 1, 127, 128, 300, 7, kLargest, 0, kLargest - 1, 300};
  ColumnWriter writer;
  writer.add_plain("a", values);
  writer.add_deltas("b", values);
  writer.add_ranked("c", values);
  writer.add_plain("none", {});
  const Decoder decoder(writer);
  EXPECT_EQ(decoder.decode("a"), values);
  EXPECT_EQ(decoder.decode("b"), values);
  EXPECT_EQ(decoder.decode("c"), values);
  EXPECT_EQ(decoder.decode("none"), Numbers());
}

TEST(Columns, HaveTheMostFrequentValueFirst) {
  ColumnWriter writer;
  writer.add_ranked("a", Numbers{9, 5, 1000, 5, 1000, 5});
  EXPECT_EQ(Decoder(writer).decode("a.values"), (Numbers{5, 1000, 9}));
}

TEST(Columns, TakeOneByteForNumbersThatGrowSlowly) {
  Numbers values;
  for (std::uint64_t i = 0; i < 1000; ++i) values.push_back((std::uint64_t{1} << 40) + 50 * i);
  ColumnWriter writer;
  writer.add_deltas("a", values);
  EXPECT_LT(writer.bytes().size(), 2010U);
}

}  // namespace
}  // namespace cachalot::tools
