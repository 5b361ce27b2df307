// The work that pricing requests from the place of its numbers: kernels of a GPU, and a twin on the host for a device
// that computes nothing. All is work on one stream, in its order.
//
// Paths come in pairs, p and p + pairs: the second has the first's Brownian motion with the sign turned (antithetic).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cachalot/device.h"
#include "examples/lsm_pricing/contract.h"
#include "examples/lsm_pricing/regression.h"

namespace lsm {

// Doubles in the memory of the device: an address that the host must not follow.
struct Doubles {
  double* data = nullptr;
  std::size_t count = 0;
};

// The Brownian motion at a date, given the one at the date after it: keep * later + spread * normal.
struct Bridge {
  double keep = 0;  // 0: there is none after it
  double spread = 0;
};

// spot * exp(drift + volatility * motion)
struct Growth {
  double spot = 0;
  double drift = 0;
  double volatility = 0;
};

// The events of a date on all paths: the value of going on is discounted, holder or issuer decides, the coupon is paid.
struct Date {
  Contract contract;
  Coefficients coefficients;
  double discount = 1;
  double coupon = 0;
};

// Over pairs, of the mean of the two paths' values.
struct Sums {
  double value = 0;
  double square = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual cachalot::Stream stream() const = 0;  // that the work is queued on
  virtual const char* name() const = 0;

  virtual void seed(std::uint64_t seed) = 0;
  virtual void draw(Doubles normals) = 0;  // standard normal numbers, independent
  virtual void walk_back(Doubles motion, Doubles normals, const Bridge& bridge) = 0;
  virtual void find_spots(Doubles spots, Doubles motion, const Growth& growth) = 0;  // spots of both paths of each pair
  virtual void mature(Doubles values, Doubles spots, const Date& date) = 0;
  virtual Moments moments(Doubles spots, Doubles values, const Date& date) = 0;  // waits
  virtual void decide(Doubles values, Doubles spots, const Date& date) = 0;
  virtual Sums sum_pairs(Doubles values) = 0;  // waits
};

// ---- The work of each of them on one path ----

CACHALOT_HOST_DEVICE inline double walked_back(double motion, double normal, const Bridge& bridge) {
  return bridge.keep == 0 ? bridge.spread * normal : bridge.keep * motion + bridge.spread * normal;
}

CACHALOT_HOST_DEVICE inline double spot_of(double motion, const Growth& growth) {
  return growth.spot * exp(growth.drift + growth.volatility * motion);
}

CACHALOT_HOST_DEVICE inline double value_at_end(double spot, const Date& date) {
  return value_at_maturity(date.contract, spot) + date.coupon;
}

CACHALOT_HOST_DEVICE inline double value_on(double value, double spot, const Date& date) {
  const double estimated = estimate(date.coefficients, moneyness(date.contract, spot));
  return decide(date.contract, spot, estimated, date.discount * value) + date.coupon;
}

CACHALOT_HOST_DEVICE inline Sums sums_of(double first, double second) {
  const double mean = (first + second) / 2;
  return {mean, mean * mean};
}

}  // namespace lsm
