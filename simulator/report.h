// What CACHALOT_SIM_LOG and CACHALOT_SIM_REPORT write.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cachalot/simulated_device.h"

namespace cachalot::simulator {

class Report {
 public:
  // Opens the log. Throws InvalidArgument when a file cannot be written.
  void open(const std::string& log_path);
  bool logs() const { return log_ != nullptr; }
  void log(int device, const std::vector<LoggedCall>& calls);

 private:
  std::FILE* log_ = nullptr;
};

}  // namespace cachalot::simulator
