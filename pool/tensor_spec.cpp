#include "cachalot/tensor_pool.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/format.h"
#include "cachalot/events.h"

CACHALOT_BEGIN

namespace {

struct NamedType {
  DType dtype;
  const char* name;
  std::size_t bytes;
};

constexpr std::array kTypes = {
    NamedType{DType::bool_, "bool", 1},
    NamedType{DType::uint8, "uint8", 1},
    NamedType{DType::uint16, "uint16", 2},
    NamedType{DType::uint32, "uint32", 4},
    NamedType{DType::uint64, "uint64", 8},
    NamedType{DType::int8, "int8", 1},
    NamedType{DType::int16, "int16", 2},
    NamedType{DType::int32, "int32", 4},
    NamedType{DType::int64, "int64", 8},
    NamedType{DType::float8_e4m3fn, "float8_e4m3fn", 1},
    NamedType{DType::float8_e4m3fnuz, "float8_e4m3fnuz", 1},
    NamedType{DType::float8_e5m2, "float8_e5m2", 1},
    NamedType{DType::float8_e5m2fnuz, "float8_e5m2fnuz", 1},
    NamedType{DType::float8_e8m0fnu, "float8_e8m0fnu", 1},
    NamedType{DType::float16, "float16", 2},
    NamedType{DType::bfloat16, "bfloat16", 2},
    NamedType{DType::float32, "float32", 4},
    NamedType{DType::float64, "float64", 8},
    NamedType{DType::complex32, "complex32", 4},
    NamedType{DType::complex64, "complex64", 8},
    NamedType{DType::complex128, "complex128", 16},
};

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(is_in_order(), "a type is found by its number");

const NamedType& type(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  CACHALOT_REQUIRE(index < kTypes.size(), "{} is not the number of a DType (0 to {})", index, kTypes.size() - 1);
  return kTypes[index];
}

}  // namespace

const char* to_string(DType dtype) { return type(dtype).name; }

std::size_t bytes_of(DType dtype) { return type(dtype).bytes; }

DType dtype_named(std::string_view name) {
  const auto* found =
      std::ranges::find(kTypes, name, [](const NamedType& named) { return std::string_view(named.name); });
  CACHALOT_REQUIRE(found != kTypes.end(), "'{}' is not the name of a type: they are {}", name,
                   join(dtype_names(), ", "));
  return found->dtype;
}

std::vector<std::string_view> dtype_names() {
  std::vector<std::string_view> names;
  names.reserve(std::size(kTypes));
  for (const NamedType& named : kTypes) names.emplace_back(named.name);
  return names;
}

std::size_t TensorSpec::elements() const { return bytes() / bytes_of(dtype); }

std::size_t TensorSpec::bytes() const {
  std::size_t bytes = bytes_of(dtype);
  for (const std::int64_t extent : shape) {
    CACHALOT_REQUIRE(extent > 0, "the shape [{}] has an extent of {}: each is at least 1", join(shape, ", "), extent);
    const bool overflows = __builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes);
    CACHALOT_REQUIRE(!overflows && bytes < kMaxRequestBytes, "{} has more bytes than any allocation: less than 1 EiB",
                     to_string(*this));
  }
  return bytes;
}

std::string to_string(const TensorSpec& spec) {
  return formatted("{} [{}] on device {}", to_string(spec.dtype), join(spec.shape, ", "), spec.device);
}

CACHALOT_END

std::size_t std::hash<cachalot::TensorSpec>::operator()(const cachalot::TensorSpec& spec) const noexcept {
  constexpr std::size_t kOdd = 0x9E3779B97F4A7C15;  // the golden ratio's bits: spreads small numbers over all of a word
  std::size_t mixed = static_cast<std::size_t>(spec.dtype) + (static_cast<std::size_t>(spec.device) << 8);
  for (const std::int64_t extent : spec.shape)
    mixed = (mixed ^ (mixed >> 29) ^ static_cast<std::size_t>(extent)) * kOdd;
  return mixed ^ (mixed >> 32);
}
