// Hashes at which a file's writer cannot aim: each process has its own seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string_view>

namespace cachalot::tools {

class SeededHash {
 public:
  std::uint64_t operator()(std::uint64_t value, std::uint64_t more = 0) const {
    return mixed(value ^ seed().first, more ^ seed().second);
  }
  std::uint64_t operator()(std::string_view text) const { return of_bytes(text.data(), text.size()); }
  std::uint64_t operator()(std::span<const std::uint32_t> numbers) const {
    return of_bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  }

 private:
  struct Seed {
    std::uint64_t first;
    std::uint64_t second;
  };

  static std::uint64_t random() {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }
  static const Seed& seed() {
    static const Seed seed_of_process = {random(), random()};
    return seed_of_process;
  }

  // Both halves of the product: each bit of the one factor reaches all bits of the result by way of the other.
  static std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{a} * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  static std::uint64_t of_bytes(const char* bytes, std::size_t count) {
    const auto [first, second] = seed();
    std::uint64_t hash = mixed(count ^ first, second);
    for (; count >= 16; bytes += 16, count -= 16) hash = mixed(word(bytes, 8) ^ first, word(bytes + 8, 8) ^ hash);
    const std::uint64_t low = word(bytes, count < 8 ? count : 8);
    return mixed(low ^ first, (count > 8 ? word(bytes + 8, count - 8) : 0) ^ hash);
  }
  static std::uint64_t word(const char* bytes, std::size_t count) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, count);
    return value;
  }
};

}  // namespace cachalot::tools
