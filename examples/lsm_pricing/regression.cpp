#include "examples/lsm_pricing/regression.h"

namespace lsm {

namespace {

// A pivot that elimination has reduced to less than this share of itself is a rounding error of zero.
constexpr double kNothing = 1e-13;

// The normal equations as L D L^T, L with ones on its diagonal. Where a pivot vanishes the column is left out: d is 0.
struct Factors {
  double l[kBasis][kBasis] = {};
  double d[kBasis] = {};
};

double pivot(const Factors& factors, const Moments& moments, int column) {
  double d = moments.products[column][column];
  for (int k = 0; k < column; ++k) d -= factors.l[column][k] * factors.l[column][k] * factors.d[k];
  return d > kNothing * moments.products[column][column] ? d : 0;
}

double below_pivot(const Factors& factors, const Moments& moments, int row, int column) {
  double sum = moments.products[column][row];
  for (int k = 0; k < column; ++k) sum -= factors.l[row][k] * factors.l[column][k] * factors.d[k];
  return sum / factors.d[column];
}

Factors factorize(const Moments& moments) {
  Factors factors;
  for (int column = 0; column < kBasis; ++column) {
    factors.d[column] = pivot(factors, moments, column);
    if (factors.d[column] == 0) continue;
    for (int row = column + 1; row < kBasis; ++row) factors.l[row][column] = below_pivot(factors, moments, row, column);
  }
  return factors;
}

}  // namespace

Coefficients solve(const Moments& moments) {
  const Factors factors = factorize(moments);
  double y[kBasis];
  for (int i = 0; i < kBasis; ++i) {
    y[i] = moments.with_value[i];
    for (int k = 0; k < i; ++k) y[i] -= factors.l[i][k] * y[k];
  }
  Coefficients solution;
  for (int i = kBasis - 1; i >= 0; --i) {
    if (factors.d[i] == 0) continue;
    solution.values[i] = y[i] / factors.d[i];
    for (int k = i + 1; k < kBasis; ++k) solution.values[i] -= factors.l[k][i] * solution.values[k];
  }
  return solution;
}

}  // namespace lsm
