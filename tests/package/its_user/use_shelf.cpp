#include <cstddef>
#include <cstdio>

std::size_t shelf_bytes();

int main() {
  const bool right = shelf_bytes() == std::size_t{20} << 20;
  std::printf("a library that brings cachalot along: %s\n", right ? "right" : "WRONG");
  return right ? 0 : 1;
}
