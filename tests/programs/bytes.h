// Numbers out of bytes: a fuzzer's, or random ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cachalot {

// Reads from the front; behind the end everything is 0.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 3; ++i) value = value << 8 | byte();
    return value;
  }
  std::uint32_t below(std::uint32_t bound) { return byte() % bound; }
  // All that is left.
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace cachalot
