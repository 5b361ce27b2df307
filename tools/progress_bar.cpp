#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace cachalot::tools {

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      next_draw_(Clock::now() + std::chrono::seconds(1)) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::show(double done) {
  constexpr std::size_t kWidth = 40;
  if (!is_terminal_ || Clock::now() < next_draw_) return;
  const auto filled = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(kWidth));
  const std::string bar =
      fmt::format("\r\033[K{} [{:<{}}] {:3.0f} %", label_, std::string(filled, '='), kWidth, 100 * done);
  std::fputs(bar.c_str(), stderr);
  std::fflush(stderr);
  is_drawn_ = true;
  next_draw_ = Clock::now() + std::chrono::milliseconds(100);
}

}  // namespace cachalot::tools
