/// @file
/// The shape, element type and device of tensors.
#pragma once

#include "cachalot/require_cpp17.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

CACHALOT_BEGIN_API

/// The types of elements, under torch's names. A name that C++ reserves ends in an underscore.
enum class DType : std::uint8_t {
  bool_,            ///< torch.bool, 1 byte
  uint8,            ///< 1 byte
  uint16,           ///< 2 bytes
  uint32,           ///< 4 bytes
  uint64,           ///< 8 bytes
  int8,             ///< 1 byte
  int16,            ///< 2 bytes
  int32,            ///< 4 bytes
  int64,            ///< 8 bytes
  float8_e4m3fn,    ///< 1 byte
  float8_e4m3fnuz,  ///< 1 byte
  float8_e5m2,      ///< 1 byte
  float8_e5m2fnuz,  ///< 1 byte
  float8_e8m0fnu,   ///< 1 byte
  float16,          ///< 2 bytes
  bfloat16,         ///< 2 bytes
  float32,          ///< 4 bytes
  float64,          ///< 8 bytes
  complex32,        ///< two float16, 4 bytes
  complex64,        ///< two float32, 8 bytes
  complex128,       ///< two float64, 16 bytes
};

/// Returns torch's name of the type: "float32", "bool", ...
const char* to_string(DType dtype);
/// Returns the bytes of one element.
std::size_t bytes_of(DType dtype);
/// Returns the type of that name. Throws InvalidArgument for an unknown name.
DType dtype_named(std::string_view name);
/// Returns the names of all types.
std::vector<std::string_view> dtype_names();

/// A TensorSpec says what makes tensors alike: shape, element type and device. Tensors of a pool
/// are dense and in row-major order. A plain value.
struct TensorSpec {
  std::vector<std::int64_t> shape;  ///< extents, each at least 1; empty: one element
  DType dtype = DType::float32;     ///< type of the elements
  int device = 0;                   ///< index of the device

  /// Returns the number of elements.
  /// Throws InvalidArgument if an extent is below 1, or if the tensor would reach 1 EiB.
  std::size_t elements() const;
  /// Returns the bytes of the tensor. Throws as elements().
  std::size_t bytes() const;

  /// Compares all members.
  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.shape == b.shape && a.dtype == b.dtype && a.device == b.device;
  }
  /// Returns !(a == b).
  friend bool operator!=(const TensorSpec& a, const TensorSpec& b) { return !(a == b); }
};

/// Returns the spec as text: "float32 [2, 3] on device 0".
std::string to_string(const TensorSpec& spec);

CACHALOT_END_API

namespace std {

/// Hashes a TensorSpec; equal specs have equal hashes.
template <>
struct hash<cachalot::TensorSpec> {
  /// Returns the hash.
  std::size_t operator()(const cachalot::TensorSpec& spec) const noexcept;
};

}  // namespace std
