// Columns of numbers for a page, in few bytes: a page decodes them to typed arrays, without parsing text.
//
// A number is a LEB128: seven bits a byte, lowest first, the highest bit set in all bytes but the last. Three encodings:
//   plain    the numbers themselves
//   deltas   zigzag differences to the number before, the first to 0: for what mostly grows
//   ranked   numbers of the rows of a second column, "<name>.values", where the most frequent value comes first
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace cachalot::tools {

class ColumnWriter {
 public:
  void add_plain(std::string_view name, std::span<const std::uint64_t> values);
  void add_deltas(std::string_view name, std::span<const std::uint64_t> values);
  void add_ranked(std::string_view name, std::span<const std::uint64_t> values);

  // Returns the object {name: [encoding, rows, first byte]} of all columns.
  const nlohmann::ordered_json& directory() const { return directory_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view name, std::string_view encoding, std::size_t rows);
  void put(std::uint64_t number);

  nlohmann::ordered_json directory_ = nlohmann::ordered_json::object();
  std::string bytes_;
};

}  // namespace cachalot::tools
