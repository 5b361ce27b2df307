// Least-squares Monte Carlo (Longstaff and Schwartz, "Valuing American Options by Simulation", Review of Financial Studies
// 14, 2001): backwards from maturity, the value of going on is regressed on the stock over the paths for which it
// matters, and each path's value is that of the decision which follows from it.
//
// The Brownian motion is drawn backwards, too, each date given the one after it (a Brownian bridge), so that a date's stock
// is needed on that date alone, and its buffer serves the next.
#pragma once

#include <cstddef>
#include <cstdint>

#include "examples/lsm_pricing/backend.h"
#include "examples/lsm_pricing/buffers.h"
#include "examples/lsm_pricing/contract.h"

namespace lsm {

struct Simulation {
  std::size_t pairs = 50'000;  // > 0; of paths
  std::uint64_t seed = 1;
};

struct Price {
  double value = 0;
  // The error of the mean over pairs, which are independent; the paths of a pair are not. It does not include the method's
  // own error: a rule of four functions is not the best one, so that a holder gets too little, and the paths that chose the
  // rule are valued by it, which gives too much.
  double standard_error = 0;
};

Price price(const Contract& contract, const Market& market, const Simulation& simulation, Backend& backend,
            Buffers& buffers);

}  // namespace lsm
