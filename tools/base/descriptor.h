// A file descriptor of this process, closed at its end.
#pragma once

#include <unistd.h>

#include <utility>

namespace cachalot::tools {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close_now(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close_now();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }

  // -1: there is none.
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  void close_now() const {
    if (number_ >= 0) close(number_);
  }

  int number_ = -1;
};

}  // namespace cachalot::tools
