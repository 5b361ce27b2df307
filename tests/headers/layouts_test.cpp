// A program of C++17 and the library, which is C++20, mean the same by each public type.
#include <gtest/gtest.h>

#include "tests/headers/layouts.h"

static_assert(__cplusplus >= 202002L, "this file is compiled as the library is");

namespace cachalot::testing {
namespace {

TEST(Layouts, AreThoseOfCpp17InCpp20) {
  const std::vector<Layout> of_cpp17 = layouts_of_cpp17();
  const std::vector<Layout> of_cpp20 = layouts_here();
  ASSERT_EQ(of_cpp17.size(), of_cpp20.size());
  for (std::size_t i = 0; i < of_cpp17.size(); ++i) {
    SCOPED_TRACE(of_cpp20[i].type);
    EXPECT_STREQ(of_cpp17[i].type, of_cpp20[i].type);
    EXPECT_EQ(of_cpp17[i].bytes, of_cpp20[i].bytes);
    EXPECT_EQ(of_cpp17[i].alignment, of_cpp20[i].alignment);
    EXPECT_EQ(of_cpp17[i].in_registers, of_cpp20[i].in_registers);
  }
}

}  // namespace
}  // namespace cachalot::testing
