#include "examples/async_transfer/batches.h"

#include <functional>

#include "examples/async_transfer/work.h"

namespace async_transfer {

namespace {

constexpr std::size_t kPeriod = 1000;  // values of a batch differ from their neighbours', and batches from each other

float value_of(int step, std::size_t i) { return static_cast<float>(step) + static_cast<float>(i % kPeriod); }

float computed(float value, int kernels) {
  for (int i = 0; i < kernels; ++i) value = value * kFactor + kAdded;
  return value;
}

bool every_value(const Job& job, const float* batch, const std::function<float(std::size_t)>& expected) {
  for (std::size_t i = 0; i < job.count; ++i) {
    if (batch[i] != expected(i)) return false;
  }
  return true;
}

}  // namespace

void fill(const Job& job, int step, float* batch) {
  for (std::size_t i = 0; i < job.count; ++i) batch[i] = value_of(step, i);
}

void Results::check(int step, const float* batch) {
  ++checked_;
  computed_ += every_value(job_, batch, [&](std::size_t i) { return computed(value_of(step, i), job_.kernels); });
  as_sent_ += every_value(job_, batch, [&](std::size_t i) { return value_of(step, i); });
  zeros_ += every_value(job_, batch, [](std::size_t) { return 0.0F; });
}

const char* Results::description() const {
  if (are_computed()) return "every value is right";
  if (are_as_sent()) return "kernels compute nothing here: every value came back as it was sent";
  if (are_zeros()) return "copies move nothing here: every value came back as zero";
  return "values are WRONG";
}

}  // namespace async_transfer
