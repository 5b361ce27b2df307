#include "examples/lsm_pricing/tree.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace lsm {

namespace {

struct Step {
  double up;           // the stock's factor; down is 1 / up
  double probability;  // of it, risk-neutral
  double discount;
};

Step step_of(const Market& market, double years) {
  const double up = std::exp(market.volatility * std::sqrt(years));
  const double growth = std::exp((market.rate - market.dividend_yield) * years);
  const double probability = (growth - 1 / up) / (up - 1 / up);
  if (!(probability > 0 && probability < 1)) {
    throw std::invalid_argument(fmt::format(
        "a step of {} years gives the tree a probability of {}; it must be between 0 and 1: take more steps", years,
        probability));
  }
  return {up, probability, std::exp(-market.rate * years)};
}

// The stock after `level` steps of which `ups` went up.
double spot_at(const Market& market, const Step& step, int level, int ups) {
  return market.spot * std::pow(step.up, 2 * ups - level);
}

}  // namespace

double tree_price(const Contract& contract, const Market& market, int steps_per_date) {
  const int levels = contract.dates * steps_per_date;
  const Step step = step_of(market, contract.years / levels);
  std::vector<double> values(static_cast<std::size_t>(levels) + 1);
  for (int level = levels; level >= 0; --level) {
    for (int ups = 0; ups <= level; ++ups) {
      double& value = values[static_cast<std::size_t>(ups)];
      if (level < levels) {
        const double higher = values[static_cast<std::size_t>(ups) + 1];
        value = step.discount * (step.probability * higher + (1 - step.probability) * value);
      }
      if (level == 0 || level % steps_per_date != 0) continue;
      const double spot = spot_at(market, step, level, ups);
      value = level == levels ? value_at_maturity(contract, spot) : decide(contract, spot, value, value);
      value += contract.coupon_at(level / steps_per_date);
    }
  }
  return values[0];
}

}  // namespace lsm
