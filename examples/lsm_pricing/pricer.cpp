#include "examples/lsm_pricing/pricer.h"

#include <algorithm>
#include <cmath>

namespace lsm {

namespace {

class Induction {
 public:
  Induction(const Contract& contract, const Market& market, const Simulation& simulation, Backend& backend,
            Buffers& buffers)
      : contract_(contract),
        market_(market),
        pairs_(simulation.pairs),
        backend_(backend),
        buffers_(buffers),
        motion_(buffers, pairs_, backend.stream()),
        values_(buffers, 2 * pairs_, backend.stream()) {
    backend.seed(simulation.seed);
  }

  Price run() {
    for (int date = contract_.dates; date > 0; --date) {
      walk_to(date);
      decide_on(date);
    }
    return mean();
  }

 private:
  double time_of(int date) const { return date * contract_.step_years(); }

  Bridge bridge_to(int date) const {
    const double time = time_of(date);
    if (date == contract_.dates) return {.keep = 0, .spread = std::sqrt(time)};
    const double later = time_of(date + 1);
    return {.keep = time / later, .spread = std::sqrt(time * (later - time) / later)};
  }

  Growth growth_until(int date) const {
    const double drift = market_.rate - market_.dividend_yield - market_.volatility * market_.volatility / 2;
    return {.spot = market_.spot, .drift = drift * time_of(date), .volatility = market_.volatility};
  }

  void walk_to(int date) {
    const Buffer normals(buffers_, pairs_, backend_.stream());
    backend_.draw(normals);
    backend_.walk_back(motion_, normals, bridge_to(date));
  }

  void decide_on(int date) {
    const Buffer spots(buffers_, 2 * pairs_, backend_.stream());
    backend_.find_spots(spots, motion_, growth_until(date));
    Date today{.contract = contract_, .coefficients = {}, .discount = discount(), .coupon = contract_.coupon_at(date)};
    if (date == contract_.dates) return backend_.mature(values_, spots, today);
    today.coefficients = solve(backend_.moments(spots, values_, today));
    backend_.decide(values_, spots, today);
  }

  double discount() const { return std::exp(-market_.rate * contract_.step_years()); }

  Price mean() {
    const auto count = static_cast<double>(pairs_);
    const Sums sums = backend_.sum_pairs(values_);
    const double mean = sums.value / count;
    const double variance = std::max(0.0, sums.square / count - mean * mean);
    return {discount() * mean, discount() * std::sqrt(variance / count)};
  }

  const Contract contract_;
  const Market market_;
  const std::size_t pairs_;
  Backend& backend_;
  Buffers& buffers_;
  const Buffer motion_;
  const Buffer values_;
};

}  // namespace

Price price(const Contract& contract, const Market& market, const Simulation& simulation, Backend& backend,
            Buffers& buffers) {
  return Induction(contract, market, simulation, backend, buffers).run();
}

}  // namespace lsm
