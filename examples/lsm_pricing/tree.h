// Prices the contract on a binomial tree (Cox, Ross and Rubinstein 1979): the reference.
#pragma once

#include "examples/lsm_pricing/contract.h"

namespace lsm {

// `steps_per_date` > 0 steps of the tree from one exercise date to the next. More steps are nearer to the contract's
// value; an American option is one whose dates are many. Throws std::invalid_argument for a step so coarse that the
// tree would have arbitrage.
double tree_price(const Contract& contract, const Market& market, int steps_per_date);

}  // namespace lsm
