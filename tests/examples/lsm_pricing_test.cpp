// The parts of examples/lsm_pricing: decisions, basis, regression, the tree, and a pricing as a whole.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cachalot/simulated_device.h"
#include "examples/lsm_pricing/host_backend.h"
#include "examples/lsm_pricing/pricer.h"
#include "examples/lsm_pricing/regression.h"
#include "examples/lsm_pricing/tree.h"

namespace lsm {
namespace {

constexpr Contract kPut{.kind = Kind::american_put, .years = 1, .dates = 50, .strike = 40};
constexpr Contract kBond{.kind = Kind::convertible_bond,
                         .years = 2,
                         .dates = 20,
                         .face = 100,
                         .shares = 1,
                         .call_price = 110,
                         .coupon = 2,
                         .coupon_every = 5};
constexpr Market kMarket{.spot = 36, .volatility = 0.2, .rate = 0.06};

// ---- Decisions ----

TEST(LsmDecisions, APutIsExercisedWhereThatIsWorthAsMuchAsGoingOn) {
  EXPECT_EQ(decide(kPut, 36, /*estimated=*/4.1, /*going_on=*/5), 5);
  EXPECT_EQ(decide(kPut, 36, 4, 5), 4);
  EXPECT_EQ(decide(kPut, 41, -1, 0), 0) << "out of the money nobody asks for the estimate";
  EXPECT_EQ(value_at_maturity(kPut, 39), 1);
  EXPECT_EQ(value_at_maturity(kPut, 41), 0);
}

TEST(LsmDecisions, ABondIsCalledConvertedOrKept) {
  EXPECT_EQ(decide(kBond, 90, /*estimated=*/105, /*going_on=*/107), 107);
  EXPECT_EQ(decide(kBond, 90, 111, 120), 110) << "called";
  EXPECT_EQ(decide(kBond, 108, 107, 120), 108) << "converted by will";
  EXPECT_EQ(decide(kBond, 115, 0, 0), 115) << "converted, whatever going on is worth";
  EXPECT_EQ(value_at_maturity(kBond, 90), 100);
  EXPECT_EQ(value_at_maturity(kBond, 130), 130);
  EXPECT_FALSE(is_undecided(kBond, 110));
}

// ---- Basis and regression ----

TEST(LsmBasis, IsAConstantAndWeightedLaguerrePolynomials) {
  for (const double x : {0.0, 0.5, 1.0, 2.5}) {
    const Basis basis = basis_at(x);
    const double weight = std::exp(-x / 2);
    EXPECT_EQ(basis.values[0], 1);
    EXPECT_DOUBLE_EQ(basis.values[1], weight);
    EXPECT_NEAR(basis.values[2], weight * (1 - x), 1e-15);
    // Their recurrence: (n + 1) L(n + 1) = (2 n + 1 - x) L(n) - n L(n - 1)
    EXPECT_NEAR(2 * basis.values[3], (3 - x) * basis.values[2] - basis.values[1], 1e-15);
  }
}

struct Point {
  double spot;
  double going_on;
};

Moments moments_of_all(const std::vector<Point>& points) {
  Moments sum{};
  for (const Point& point : points) sum = sum + moments_of(kPut, point.spot, point.going_on);
  return sum;
}

double fitted(const Coefficients& coefficients, double spot) { return estimate(coefficients, moneyness(kPut, spot)); }

// Spots in the money, and what `value` makes of them.
template <typename Value>
std::vector<Point> random_points(std::size_t count, Value&& value) {
  std::mt19937_64 engine(5);
  std::uniform_real_distribution<double> spot(28, 40);
  std::vector<Point> points;
  for (std::size_t i = 0; i < count; ++i) {
    const double at = spot(engine);
    points.push_back({at, value(at)});
  }
  return points;
}

TEST(LsmRegression, FindsAFunctionOfTheBasisAgain) {
  const auto value = [](double spot) {
    const Basis basis = basis_at(moneyness(kPut, spot));
    return 3 - 2 * basis.values[1] + basis.values[2] - 4 * basis.values[3];
  };
  const Coefficients solution = solve(moments_of_all(random_points(1000, value)));
  for (const double spot : {28.0, 31.0, 35.5, 39.9}) EXPECT_NEAR(fitted(solution, spot), value(spot), 1e-8) << spot;
}

TEST(LsmRegression, LeavesResidualsThatAreOrthogonalToTheBasis) {
  const auto points = random_points(1000, [](double spot) { return std::abs(spot - 33); });
  const Coefficients solution = solve(moments_of_all(points));
  double with_basis[kBasis] = {};
  for (const Point& point : points) {
    const Basis basis = basis_at(moneyness(kPut, point.spot));
    for (int i = 0; i < kBasis; ++i) with_basis[i] += (point.going_on - fitted(solution, point.spot)) * basis.values[i];
  }
  for (int i = 0; i < kBasis; ++i) EXPECT_NEAR(with_basis[i], 0, 1e-6) << i;
}

TEST(LsmRegression, OfNoPathsIsZero) {
  const Coefficients solution = solve(moments_of_all({{41, 5}, {50, 7}}));  // out of the money
  for (const double coefficient : solution.values) EXPECT_EQ(coefficient, 0);
}

TEST(LsmRegression, OfEqualPathsIsTheirMean) {
  const Coefficients solution = solve(moments_of_all({{36, 1}, {36, 2}, {36, 6}}));
  EXPECT_NEAR(fitted(solution, 36), 3, 1e-12);
  EXPECT_EQ(solution.values[1], 0) << "left out";
}

TEST(LsmRegression, OfTwoStocksGoesThroughBothMeans) {
  const Coefficients solution = solve(moments_of_all({{32, 7}, {32, 9}, {38, 2}, {38, 4}}));
  EXPECT_NEAR(fitted(solution, 32), 8, 1e-6);
  EXPECT_NEAR(fitted(solution, 38), 3, 1e-6);
}

// ---- The tree ----

double normal_cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

// Black and Scholes, a put that may be exercised at the end.
double european_put(const Contract& contract, const Market& market) {
  const double spread = market.volatility * std::sqrt(contract.years);
  const double d1 = (std::log(market.spot / contract.strike) + market.rate * contract.years) / spread + spread / 2;
  return contract.strike * std::exp(-market.rate * contract.years) * normal_cdf(spread - d1) -
         market.spot * normal_cdf(-d1);
}

Market on_stock(double spot) { return {.spot = spot, .volatility = 0.2, .rate = 0.06}; }

TEST(LsmTree, WithOneDateIsBlackAndScholes) {
  Contract european = kPut;
  european.dates = 1;
  for (const double spot : {36.0, 40.0, 44.0})
    EXPECT_NEAR(tree_price(european, on_stock(spot), 4000), european_put(european, on_stock(spot)), 1e-3) << spot;
}

TEST(LsmTree, AgreesWithTheFiniteDifferencesOfLongstaffAndSchwartz) {
  const Point published[] = {{36, 4.478}, {38, 3.250}, {40, 2.314}, {42, 1.617}, {44, 1.110}};
  for (const auto& [spot, value] : published) EXPECT_NEAR(tree_price(kPut, on_stock(spot), 40), value, 0.0012) << spot;
}

TEST(LsmTree, MoreDatesAreWorthMore) {
  Contract seldom = kPut;
  seldom.dates = 5;
  EXPECT_GT(tree_price(kPut, kMarket, 20), tree_price(seldom, kMarket, 200) + 0.01);
}

TEST(LsmTree, ABondThatCannotBeConvertedIsItsPayments) {
  Contract plain = kBond;
  plain.shares = 1e-6;
  plain.call_price = 1e6;
  double payments = plain.face * std::exp(-kMarket.rate * plain.years);
  for (int date = 5; date <= plain.dates; date += 5)
    payments += plain.coupon * std::exp(-kMarket.rate * date * plain.step_years());
  EXPECT_NEAR(tree_price(plain, on_stock(100), 10), payments, 1e-9);
}

TEST(LsmTree, TheRightToCallIsWorthSomethingToTheIssuer) {
  Contract not_callable = kBond;
  not_callable.call_price = 1e6;
  const double callable = tree_price(kBond, on_stock(95), 20);
  EXPECT_GT(tree_price(not_callable, on_stock(95), 20), callable + 0.5);
  EXPECT_GT(callable, 95);
}

TEST(LsmTree, RefusesStepsThatLeaveNoProbability) {
  const Market calm{.spot = 36, .volatility = 0.01, .rate = 0.2};
  EXPECT_THROW(tree_price(kPut, calm, 1), std::invalid_argument);
}

// ---- Pricing ----

class LsmPricing : public testing::Test {
 protected:
  Price price_of(const Contract& contract, const Market& market, Buffers& buffers, std::uint64_t seed = 1) {
    return price(contract, market, {.pairs = 4000, .seed = seed}, *backend_, buffers);
  }
  Price price_of(const Contract& contract, const Market& market, std::uint64_t seed = 1) {
    Buffers buffers(allocator_, Buffers::Keep::none);
    return price_of(contract, market, buffers, seed);
  }

  std::shared_ptr<cachalot::SimulatedDevice> device_ = std::make_shared<cachalot::SimulatedDevice>();
  cachalot::CachingAllocator allocator_{{device_}};
  std::unique_ptr<Backend> backend_ = host_backend(device_);
};

TEST_F(LsmPricing, OfAEuropeanPutIsBlackAndScholes) {
  Contract european = kPut;
  european.dates = 1;
  const Price priced = price_of(european, kMarket);
  EXPECT_NEAR(priced.value, european_put(european, kMarket), 3 * priced.standard_error);
  EXPECT_GT(priced.standard_error, 0);
}

TEST_F(LsmPricing, AgreesWithTheTreeOnFewPathsToo) {
  for (const auto seed : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{3}}) {
    const Price put = price_of(kPut, kMarket, seed);
    EXPECT_NEAR(put.value, tree_price(kPut, kMarket, 20), 3 * put.standard_error) << seed;
    const Price bond = price_of(kBond, on_stock(95), seed);
    EXPECT_NEAR(bond.value, tree_price(kBond, on_stock(95), 20), 3 * bond.standard_error) << seed;
  }
}

TEST_F(LsmPricing, WithoutVolatilityExercisesAtOnce) {
  const Market still{.spot = 36, .volatility = 0, .rate = 0.06};
  const Price priced = price_of(kPut, still);
  EXPECT_NEAR(priced.value, 40 * std::exp(-0.06 * kPut.step_years()) - 36, 1e-9);
  EXPECT_NEAR(priced.standard_error, 0, 1e-6);
}

TEST_F(LsmPricing, IsTheSameForTheSameSeedAndHoweverBuffersAreKept) {
  Buffers kept(allocator_, Buffers::Keep::all);
  Buffers reused(allocator_, Buffers::Keep::none);
  const double value = price_of(kPut, kMarket, kept).value;
  EXPECT_EQ(price_of(kPut, kMarket, reused).value, value);
  EXPECT_EQ(price_of(kPut, kMarket, reused).value, value) << "in buffers that have been used before";
  EXPECT_NE(price_of(kPut, kMarket, reused, /*seed=*/2).value, value);
  EXPECT_EQ(kept.stats().allocations, 102);
  EXPECT_EQ(reused.stats().allocations, 4);
}

TEST_F(LsmPricing, ThatFailsHalfWayHasGivenItsBuffersBack) {
  const double value = price_of(kPut, kMarket).value;
  const cachalot::Fault faults[] = {{.call = cachalot::DeviceCall::copy_to_host, .nth = 40},
                                    {.call = cachalot::DeviceCall::copy_from_host, .nth = 40}};
  for (const cachalot::Fault& fault : faults) {
    Buffers buffers(allocator_, Buffers::Keep::none);
    device_->set_faults({fault});
    EXPECT_THROW(price_of(kPut, kMarket, buffers), cachalot::CudaError);
    EXPECT_EQ(buffers.stats().live, 0);
    EXPECT_EQ(price_of(kPut, kMarket, buffers).value, value);
  }
  allocator_.empty_cache();
  device_->set_faults({{.call = cachalot::DeviceCall::malloc, .repeat = true}});
  EXPECT_THROW(price_of(kPut, kMarket), cachalot::OutOfMemory);
  device_->set_faults({});
  EXPECT_EQ(price_of(kPut, kMarket).value, value);
}

}  // namespace
}  // namespace lsm
