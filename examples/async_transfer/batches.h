// Batches of floats: what is in them, and whether what came back is right.
#pragma once

#include <cstddef>

namespace async_transfer {

struct Job {
  std::size_t count = 0;  // floats in a batch
  int steps = 0;          // batches
  int kernels = 0;        // on each
  std::size_t bytes() const { return count * sizeof(float); }
};

// The host's part of a step, a data loader's: it writes a batch to where the copy takes it from.
void fill(const Job& job, int step, float* batch);

// The results that came back, batch by batch.
class Results {
 public:
  explicit Results(const Job& job) : job_(job) {}
  void check(int step, const float* batch);

  // On the simulated runtime kernels compute nothing, and copies beyond `copy_bytes` of CACHALOT_SIM give zeros.
  bool are_computed() const { return computed_ == checked_; }
  bool are_as_sent() const { return as_sent_ == checked_; }
  bool are_zeros() const { return zeros_ == checked_; }
  bool are_right() const { return are_computed() || are_as_sent() || are_zeros(); }
  const char* description() const;

 private:
  Job job_;
  int checked_ = 0;
  int computed_ = 0;
  int as_sent_ = 0;
  int zeros_ = 0;
};

}  // namespace async_transfer
