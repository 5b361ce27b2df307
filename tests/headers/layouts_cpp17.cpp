#include "tests/headers/layouts.h"

static_assert(__cplusplus == 201703L, "this file is compiled as C++17");

namespace cachalot::testing {

std::vector<Layout> layouts_of_cpp17() { return layouts_here(); }

}  // namespace cachalot::testing
