// Which of the policies that were replayed to take, in one sentence.
#pragma once

#include "tools/advice/advice.h"

namespace cachalot::tools {

// Returns the policy with the least driver time of all that fail as seldom as the best and reserve less than 1 % more: PyTorch's
// default where it is one of these. Requires policies, the best first.
Recommendation recommendation_of(const Advice& advice);

}  // namespace cachalot::tools
