// The priced contracts, and the decision at an exercise date. The same code runs in kernels, in the host twin and in the
// tree.
//
// The stock follows a geometric Brownian motion under the risk-neutral measure; interest rate and dividend yield are
// constant, and there is no default.
#pragma once

#include "cachalot/host_device.h"

namespace lsm {

struct Market {
  double spot = 0;
  double volatility = 0;  // a year
  double rate = 0;        // continuously compounded, a year
  double dividend_yield = 0;
};

enum class Kind { american_put, convertible_bond };

struct Contract {
  Kind kind = Kind::american_put;
  double years = 1;
  int dates = 50;     // exercise dates, evenly spaced; the last is maturity
  double strike = 0;  // of the put
  // Terms of the bond: paid back at maturity; shares that it converts into; the price at which the issuer may call it on
  // any date; paid on every `coupon_every`-th date, before any decision.
  double face = 0;
  double shares = 0;
  double call_price = 0;
  double coupon = 0;
  int coupon_every = 1;

  double step_years() const { return years / dates; }
  double coupon_at(int date) const { return date % coupon_every == 0 ? coupon : 0; }
};

// Returns the holder's gain from ending the contract now: exercise, or conversion.
CACHALOT_HOST_DEVICE inline double exercise_value(const Contract& contract, double spot) {
  if (contract.kind == Kind::convertible_bond) return contract.shares * spot;
  return contract.strike > spot ? contract.strike - spot : 0;
}

CACHALOT_HOST_DEVICE inline double value_at_maturity(const Contract& contract, double spot) {
  const double exercised = exercise_value(contract, spot);
  return contract.kind == Kind::convertible_bond && exercised < contract.face ? contract.face : exercised;
}

// Returns whether the decision here depends on the value of going on: not where a put is out of the money, nor where a
// bond converts into the call price or more (the holder converts, if not by will then because the issuer calls). Only
// such paths are asked about that value (Longstaff and Schwartz take the paths in the money).
CACHALOT_HOST_DEVICE inline bool is_undecided(const Contract& contract, double spot) {
  const double exercised = exercise_value(contract, spot);
  return contract.kind == Kind::convertible_bond ? exercised < contract.call_price : exercised > 0;
}

// The stock in units of what it is compared with, so that the basis is of numbers near 1.
CACHALOT_HOST_DEVICE inline double moneyness(const Contract& contract, double spot) {
  return contract.kind == Kind::convertible_bond ? spot * contract.shares / contract.face : spot / contract.strike;
}

// Returns the value of the contract if going on is worth `estimated` by estimate and turns out to be worth `going_on`.
// The issuer calls a contract worth more than the call price, and the holder ends one worth less than its exercise.
CACHALOT_HOST_DEVICE inline double decide(const Contract& contract, double spot, double estimated, double going_on) {
  const double exercised = exercise_value(contract, spot);
  if (!is_undecided(contract, spot)) return contract.kind == Kind::convertible_bond ? exercised : going_on;
  if (contract.kind == Kind::convertible_bond && estimated > contract.call_price) return contract.call_price;
  return exercised >= estimated ? exercised : going_on;
}

}  // namespace lsm
