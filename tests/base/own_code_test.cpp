#include "base/own_code.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace cachalot {
namespace {

std::uintptr_t address_of(const char* function) {
  return reinterpret_cast<std::uintptr_t>(dlsym(RTLD_DEFAULT, function));
}

TEST(OwnCode, IsTheWholeLibraryAroundAnAddressAndNothingElse) {
  const std::uintptr_t within = address_of("_ZSt9terminatev");  // of libstdc++
  ASSERT_FALSE(is_own_code(within));
  add_own_code(reinterpret_cast<const void*>(within));
  EXPECT_TRUE(is_own_code(within));
  EXPECT_TRUE(is_own_code(address_of("_ZSt18uncaught_exceptionv")));
  EXPECT_FALSE(is_own_code(address_of("malloc")));
  EXPECT_FALSE(is_own_code(reinterpret_cast<std::uintptr_t>(&address_of)));
}

TEST(OwnCode, IsNotWhatLiesInNoLibrary) {
  int variable = 0;
  add_own_code(&variable);
  add_own_code(nullptr);
  EXPECT_FALSE(is_own_code(reinterpret_cast<std::uintptr_t>(&variable)));
  EXPECT_FALSE(is_own_code(0));
}

}  // namespace
}  // namespace cachalot
