#include "cachalot/version.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::testing {
namespace {

TEST(Version, IsTheProjects) { EXPECT_STREQ(CACHALOT_VERSION_STRING, CACHALOT_PROJECT_VERSION); }

TEST(Version, OfTheLibraryIsItsHeaders) { EXPECT_STREQ(version(), CACHALOT_VERSION_STRING); }

TEST(Version, AsTextAndAsNumbersIsTheSame) {
  EXPECT_EQ(CACHALOT_VERSION_STRING, std::to_string(CACHALOT_VERSION_MAJOR) + "." +
                                         std::to_string(CACHALOT_VERSION_MINOR) + "." +
                                         std::to_string(CACHALOT_VERSION_PATCH));
  EXPECT_EQ(CACHALOT_VERSION, 10000 * CACHALOT_VERSION_MAJOR + 100 * CACHALOT_VERSION_MINOR + CACHALOT_VERSION_PATCH);
  static_assert(CACHALOT_VERSION_MINOR < 100 && CACHALOT_VERSION_PATCH < 100, "each has two digits");
}

#if CACHALOT_VERSION < 100
#error "the preprocessor can compare versions, and 0.1.0 was the first"
#endif

}  // namespace
}  // namespace cachalot::testing
