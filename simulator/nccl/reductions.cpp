#include "simulator/nccl/reductions.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/format.h"
#include "simulator/nccl/nccl_calls.h"

namespace cachalot::simulator::nccl {
namespace {

// How an element is read as the type that is reduced in, and written.
template <typename Type>
struct Plain {
  using Wide = std::conditional_t<std::is_floating_point_v<Type>, double,
                                  std::conditional_t<std::is_signed_v<Type>, std::int64_t, std::uint64_t>>;
  static constexpr std::size_t kBytes = sizeof(Type);
  static Wide read(const char* from) {
    Type value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<Wide>(value);
  }
  static void write(char* to, Wide wide) {
    const Type value = static_cast<Type>(wide);
    std::memcpy(to, &value, sizeof(value));
  }
};

// A float of so many bits. Without infinities (e4m3, as OCP defines it) only the largest pattern is no number, and what is
// too large becomes the largest number.
template <typename Bits, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct Small {
  using Wide = double;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kTopExponent = (1 << kExponentBits) - 1;
  static constexpr int kImplicit = 1 << kMantissaBits;
  static constexpr int kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr int kNan = kSign - 1;
  static constexpr int kTooLarge = kHasInfinity ? kTopExponent << kMantissaBits : kNan - 1;

  static double read(const char* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof(bits));
    const int exponent = bits >> kMantissaBits & kTopExponent;
    const int mantissa = bits & (kImplicit - 1);
    const double sign = (bits & kSign) != 0 ? -1 : 1;
    if (kHasInfinity && exponent == kTopExponent) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
    if (!kHasInfinity && (bits & kNan) == kNan) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    return sign * std::ldexp(kImplicit + mantissa, exponent - kBias - kMantissaBits);
  }
  static void write(char* to, double value) {
    const int sign = std::signbit(value) && !std::isnan(value) ? kSign : 0;
    const Bits bits = static_cast<Bits>(sign | magnitude(std::fabs(value)));
    std::memcpy(to, &bits, sizeof(bits));
  }

 private:
  // Rounding up to the next power of two carries into the exponent, as it should.
  static int magnitude(double value) {
    if (std::isnan(value)) return kNan;
    if (std::isinf(value)) return kTooLarge;
    if (value == 0) return 0;
    int exponent = 0;
    std::frexp(value, &exponent);
    const int unit = std::max(exponent - 1, 1 - kBias);  // the exponent of the first bit of the mantissa
    const double scaled = std::nearbyint(std::ldexp(value, kMantissaBits - unit));
    const double bits = scaled + (static_cast<double>(unit + kBias - 1) * kImplicit);
    return bits >= kTooLarge ? kTooLarge : static_cast<int>(bits);
  }
};

using Half = Small<std::uint16_t, 5, 10, true>;
using Bfloat16 = Small<std::uint16_t, 8, 7, true>;
using Float8e4m3 = Small<std::uint8_t, 4, 3, false>;
using Float8e5m2 = Small<std::uint8_t, 5, 2, true>;

// Sums and products of signed integers wrap around, as those of unsigned ones do.
template <typename Wide>
Wide combine(ncclRedOp_t op, Wide a, Wide b) {
  using Wrapping = std::conditional_t<std::is_integral_v<Wide>, std::uint64_t, double>;
  switch (op) {
    case ncclProd:
      return static_cast<Wide>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case ncclMax:
      if constexpr (std::is_floating_point_v<Wide>) return std::fmax(a, b);
      return std::max(a, b);
    case ncclMin:
      if constexpr (std::is_floating_point_v<Wide>) return std::fmin(a, b);
      return std::min(a, b);
    default:
      return static_cast<Wide>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  }
}

template <typename Element>
std::vector<char> reduce_as(const Reduction& reduction, std::span<const std::vector<char>> arrays) {
  using Wide = typename Element::Wide;
  std::vector<char> result(arrays.front().size());
  const Wide factor = reduction.factor.empty() ? Wide{1} : Element::read(reduction.factor.data());
  for (std::size_t at = 0; at < result.size(); at += Element::kBytes) {
    const auto value = [&](const std::vector<char>& array) {
      return combine(ncclProd, Element::read(array.data() + at), factor);
    };
    Wide total = value(arrays.front());
    for (const std::vector<char>& array : arrays.subspan(1)) total = combine(reduction.op, total, value(array));
    if (reduction.op == ncclAvg) total /= static_cast<Wide>(arrays.size());
    Element::write(result.data() + at, total);
  }
  return result;
}

// Calls visit(element) with the description of the type.
template <typename Visit>
auto with_element(ncclDataType_t type, Visit&& visit) {
  switch (type) {
    case ncclInt8:
      return visit(Plain<std::int8_t>{});
    case ncclUint8:
      return visit(Plain<std::uint8_t>{});
    case ncclInt32:
      return visit(Plain<std::int32_t>{});
    case ncclUint32:
      return visit(Plain<std::uint32_t>{});
    case ncclInt64:
      return visit(Plain<std::int64_t>{});
    case ncclUint64:
      return visit(Plain<std::uint64_t>{});
    case ncclFloat16:
      return visit(Half{});
    case ncclFloat32:
      return visit(Plain<float>{});
    case ncclFloat64:
      return visit(Plain<double>{});
    case ncclBfloat16:
      return visit(Bfloat16{});
    case ncclFloat8e4m3:
      return visit(Float8e4m3{});
    case ncclFloat8e5m2:
      return visit(Float8e5m2{});
    default:
      throw NcclError(ncclInvalidArgument, formatted("there is no data type {}", static_cast<int>(type)));
  }
}

}  // namespace

std::size_t element_bytes(ncclDataType_t type) {
  return with_element(type, [](auto element) { return decltype(element)::kBytes; });
}

std::vector<char> reduce(ncclDataType_t type, const Reduction& reduction, std::span<const std::vector<char>> arrays) {
  return with_element(type, [&](auto element) { return reduce_as<decltype(element)>(reduction, arrays); });
}

}  // namespace cachalot::simulator::nccl
