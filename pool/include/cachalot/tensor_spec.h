// What makes tensors alike: shape, type of the elements, device. Tensors of a pool are dense and in row-major order.
// Thread safety: values; nothing here is shared.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

// The types of elements, by torch's names. (Names that C++ has taken end in an underscore here.)
enum class DType : std::uint8_t {
  bool_,
  uint8,
  uint16,
  uint32,
  uint64,
  int8,
  int16,
  int32,
  int64,
  float8_e4m3fn,
  float8_e4m3fnuz,
  float8_e5m2,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float16,
  bfloat16,
  float32,
  float64,
  complex32,
  complex64,
  complex128,
};

const char* to_string(DType dtype);           // "float32", "bool", …
std::size_t bytes_of(DType dtype);            // of one element
DType dtype_named(std::string_view name);     // InvalidArgument for a name that is none
std::vector<std::string_view> dtype_names();  // all of them

struct TensorSpec {
  std::vector<std::int64_t> shape;  // each > 0; empty: one element
  DType dtype = DType::float32;
  int device = 0;

  // Throw InvalidArgument where an extent is not positive, or the bytes are more than an allocation may have (1 EiB).
  std::size_t elements() const;
  std::size_t bytes() const;

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.shape == b.shape && a.dtype == b.dtype && a.device == b.device;
  }
  friend bool operator!=(const TensorSpec& a, const TensorSpec& b) { return !(a == b); }
};

// "float32 [2, 3] on device 0"
std::string to_string(const TensorSpec& spec);

}  // namespace cachalot

template <>
struct std::hash<cachalot::TensorSpec> {
  std::size_t operator()(const cachalot::TensorSpec& spec) const noexcept;
};
