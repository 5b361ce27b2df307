// What memory is for that was there before the recording began, and has no call stack: sizes tell.
#pragma once

#include <span>
#include <vector>

#include "tools/analysis/category_rules.h"
#include "tools/history/allocations.h"

namespace cachalot::tools {

// Finds the parameters and the optimizer's state among the unknown allocations from before, and changes their categories. A
// gradient is as large as its parameter, and an optimizer keeps as much once more (a momentum) or twice (Adam): where, when the
// gradients of a step are complete, nearly all of them find an allocation of their size, these are the parameters; where nearly
// all find another one, the others are the state. Of allocations of one size, those that are never freed are taken first, by
// address: which of them are the parameters is not known, but how much all of them are is.
void name_what_was_before(std::span<const Allocation> allocations, std::vector<Category>& categories);

}  // namespace cachalot::tools
