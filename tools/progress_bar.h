// A bar on the terminal, on standard error, for work that takes longer than a second.
#pragma once

#include <chrono>
#include <string>

namespace cachalot::tools {

class ProgressBar {
 public:
  // Shows nothing, ever, where standard error is no terminal.
  explicit ProgressBar(std::string label);
  ~ProgressBar();  // wipes the bar away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` in [0, 1]. Cheap when called often: draws ten times a second.
  void show(double done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool is_terminal_;
  bool is_drawn_ = false;
  Clock::time_point next_draw_;
};

}  // namespace cachalot::tools
