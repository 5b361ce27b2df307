// Specs: their bytes, their names, and invalid ones.
#include "cachalot/tensor_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <unordered_set>

#include "tests/allocator/testing.h"

namespace cachalot {
namespace {

TEST(TensorSpec, BytesAreElementsTimesTheirSize) {
  EXPECT_EQ((TensorSpec{{2, 3, 5}, DType::float32}).bytes(), 120u);
  EXPECT_EQ((TensorSpec{{2, 3, 5}, DType::float32}).elements(), 30u);
  EXPECT_EQ((TensorSpec{{7}, DType::complex128}).bytes(), 112u);
}

TEST(TensorSpec, AnEmptyShapeIsOneElement) {
  EXPECT_EQ((TensorSpec{{}, DType::int64}).elements(), 1u);
  EXPECT_EQ((TensorSpec{{}, DType::int64}).bytes(), 8u);
}

TEST(TensorSpec, EveryTypeIsFoundByItsName) {
  ASSERT_EQ(dtype_names().size(), 21u);
  for (const std::string_view name : dtype_names()) EXPECT_EQ(to_string(dtype_named(name)), name);
  EXPECT_EQ(dtype_named("bool"), DType::bool_);
  EXPECT_EQ(bytes_of(dtype_named("bfloat16")), 2u);
  EXPECT_EQ(bytes_of(dtype_named("float8_e4m3fn")), 1u);
  EXPECT_EQ(bytes_of(dtype_named("complex64")), 8u);
}

TEST(TensorSpec, AnUnknownTypeIsRefusedByName) {
  EXPECT_CONTAINS(refusal([] { dtype_named("float31"); }), "'float31' is not the name of a type");
  EXPECT_CONTAINS(refusal([] { bytes_of(static_cast<DType>(200)); }), "200 is not the number of a DType");
}

TEST(TensorSpec, ExtentsBelowOneAreRefused) {
  EXPECT_CONTAINS(refusal([] { static_cast<void>(TensorSpec{{2, 0}, DType::int8}.bytes()); }), "an extent of 0");
  EXPECT_CONTAINS(refusal([] { static_cast<void>(TensorSpec{{-4}, DType::int8}.bytes()); }), "an extent of -4");
}

TEST(TensorSpec, MoreBytesThanAnAllocationMayHaveAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_CONTAINS(refusal([] { static_cast<void>(TensorSpec{{kMost, kMost}, DType::int8}.bytes()); }), "1 EiB");
  EXPECT_CONTAINS(refusal([] {
                    static_cast<void>(TensorSpec{{std::int64_t{1} << 57}, DType::float64}.bytes());
                  }),
                  "1 EiB");
}

TEST(TensorSpec, SpecsAreKeysOfHashTables) {
  std::unordered_set<TensorSpec> specs;
  for (std::int64_t i = 1; i <= 100; ++i) {
    specs.insert({{i, 2}, DType::float32});
    specs.insert({{2, i}, DType::float32});
    specs.insert({{i, 2}, DType::float16});
    specs.insert({{i, 2}, DType::float32, 1});
  }
  EXPECT_EQ(specs.size(), 399u);  // [2, 2] came twice
  EXPECT_TRUE(specs.contains({{7, 2}, DType::float16}));
  EXPECT_FALSE(specs.contains({{7, 2, 1}, DType::float16}));
}

}  // namespace
}  // namespace cachalot
