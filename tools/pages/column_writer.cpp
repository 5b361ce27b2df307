#include "tools/pages/column_writer.h"

#include <algorithm>
#include <vector>

namespace cachalot::tools {
namespace {

struct RankedValue {
  std::uint64_t value = 0;
  std::size_t count = 0;
  std::size_t rank = 0;
};

// The distinct values in their order, each with its rank by count.
std::vector<RankedValue> ranked(std::span<const std::uint64_t> values) {
  std::vector<std::uint64_t> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  std::vector<RankedValue> distinct;
  for (const std::uint64_t value : sorted) {
    if (distinct.empty() || distinct.back().value != value) distinct.push_back({.value = value});
    ++distinct.back().count;
  }
  std::vector<RankedValue*> by_count;
  by_count.reserve(distinct.size());
  for (RankedValue& value : distinct) by_count.push_back(&value);
  std::ranges::stable_sort(by_count, [](const RankedValue* a, const RankedValue* b) { return a->count > b->count; });
  for (std::size_t i = 0; i < by_count.size(); ++i) by_count[i]->rank = i;
  return distinct;
}

}  // namespace

void ColumnWriter::begin(std::string_view name, std::string_view encoding, std::size_t rows) {
  directory_[std::string(name)] = {encoding, rows, bytes_.size()};
}

void ColumnWriter::put(std::uint64_t number) {
  for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>((number & 0x7f) | 0x80);
  bytes_ += static_cast<char>(number);
}

void ColumnWriter::add_plain(std::string_view name, std::span<const std::uint64_t> values) {
  begin(name, "plain", values.size());
  for (const std::uint64_t value : values) put(value);
}

void ColumnWriter::add_deltas(std::string_view name, std::span<const std::uint64_t> values) {
  begin(name, "deltas", values.size());
  std::uint64_t before = 0;
  for (const std::uint64_t value : values) {
    const std::uint64_t difference = value - before;
    const std::uint64_t sign = (difference >> 63) != 0 ? ~std::uint64_t{0} : 0;
    put((difference << 1) ^ sign);
    before = value;
  }
}

void ColumnWriter::add_ranked(std::string_view name, std::span<const std::uint64_t> values) {
  const std::vector<RankedValue> distinct = ranked(values);
  begin(name, "ranked", values.size());
  for (const std::uint64_t value : values)
    put(std::ranges::lower_bound(distinct, value, {}, &RankedValue::value)->rank);
  std::vector<std::uint64_t> by_rank(distinct.size());
  for (const RankedValue& value : distinct) by_rank[value.rank] = value.value;
  add_plain(std::string(name) + ".values", by_rank);
}

}  // namespace cachalot::tools
