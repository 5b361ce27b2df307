#include "simulator/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "cachalot/errors.h"

namespace cachalot::simulator {

void Report::open(const std::string& log_path) {
  if (log_path.empty()) return;
  log_ = std::fopen(log_path.c_str(), "we");
  if (!log_) throw InvalidArgument(fmt::format("CACHALOT_SIM_LOG: '{}': {}", log_path, std::strerror(errno)));
}

void Report::log(int device, const std::vector<LoggedCall>& calls) {
  for (const LoggedCall& call : calls) {
    fmt::print(log_, "{} {} {} {:#x} {} {}\n", call.clock_ns, device, to_string(call.call), call.argument, call.bytes,
               call.failed ? "failed" : "ok");
  }
}

}  // namespace cachalot::simulator
