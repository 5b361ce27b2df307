// The value of going on as a function of the stock: least squares on a constant and the first three weighted Laguerre
// polynomials, the basis of Longstaff and Schwartz (2001).
#pragma once

#include <cmath>

#include "cachalot/host_device.h"
#include "examples/lsm_pricing/contract.h"

namespace lsm {

inline constexpr int kBasis = 4;

// exp(-x/2) is not lost to underflow as long as x is near 1.
struct Basis {
  double values[kBasis];
};
CACHALOT_HOST_DEVICE inline Basis basis_at(double x);

struct Coefficients {
  double values[kBasis] = {};
};

CACHALOT_HOST_DEVICE inline double estimate(const Coefficients& coefficients, double x);

// Sums over paths, which is all that least squares needs: of the basis' products, and of the basis times the value of
// going on. A sum of sums is the sums of all; all zeros stand for no path.
struct Moments {
  double products[kBasis][kBasis];  // i <= j
  double with_value[kBasis];
  double paths;
};
static_assert(sizeof(Moments) == (kBasis * kBasis + kBasis + 1) * sizeof(double));

// Returns the moments of one path: zeros if it is decided without regression.
CACHALOT_HOST_DEVICE inline Moments moments_of(const Contract& contract, double spot, double going_on);
CACHALOT_HOST_DEVICE inline Moments operator+(const Moments& left, const Moments& right);

// The coefficients of the least squares; all zeros for no paths. Where the paths do not tell functions of the basis
// apart, as on few or equal paths, the later of them get no coefficient.
Coefficients solve(const Moments& moments);

// ---- Inline, for kernels ----

CACHALOT_HOST_DEVICE inline Basis basis_at(double x) {
  const double weight = exp(-x / 2);
  return {{1, weight, weight * (1 - x), weight * (1 - 2 * x + x * x / 2)}};
}

CACHALOT_HOST_DEVICE inline double estimate(const Coefficients& coefficients, double x) {
  const Basis basis = basis_at(x);
  double sum = 0;
  for (int i = 0; i < kBasis; ++i) sum += coefficients.values[i] * basis.values[i];
  return sum;
}

CACHALOT_HOST_DEVICE inline Moments moments_of(const Contract& contract, double spot, double going_on) {
  Moments moments{};
  if (!is_undecided(contract, spot)) return moments;
  const Basis basis = basis_at(moneyness(contract, spot));
  for (int i = 0; i < kBasis; ++i) {
    for (int j = i; j < kBasis; ++j) moments.products[i][j] = basis.values[i] * basis.values[j];
    moments.with_value[i] = basis.values[i] * going_on;
  }
  moments.paths = 1;
  return moments;
}

CACHALOT_HOST_DEVICE inline Moments operator+(const Moments& left, const Moments& right) {
  Moments sum = left;
  for (int i = 0; i < kBasis; ++i) {
    for (int j = i; j < kBasis; ++j) sum.products[i][j] += right.products[i][j];
    sum.with_value[i] += right.with_value[i];
  }
  sum.paths += right.paths;
  return sum;
}

}  // namespace lsm
