// Kills by SIGKILL: the processes that are to be killed write their reports first. Servers and schedulers, as Ray's, end their workers so.

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "cachalot/simulator.h"
#include "simulator/base/end_of_process.h"
#include "simulator/base/requests_to_end.h"

namespace cachalot::simulator {
namespace {

// `to` is as in kill(): a process, or a group of processes with a minus.
void ask_before_kill(pid_t to) {
  if (to == -1) return;  // all of the machine
  std::vector<pid_t> processes{to};
  if (to <= 0) {
    const pid_t group = to == 0 ? getpgrp() : -to;
    processes = all_processes();
    std::erase_if(processes, [&](pid_t process) { return getpgid(process) != group; });
  }
  const bool is_among_them = std::erase(processes, getpid()) != 0;
  ask_to_end(std::move(processes));
  if (is_among_them) write_before_kill();
}

}  // namespace
}  // namespace cachalot::simulator

// In place of the C library's.

extern "C" CACHALOT_SIMULATOR_API int kill(pid_t to, int number) noexcept {
  if (number == SIGKILL) cachalot::simulator::ask_before_kill(to);
  return static_cast<int>(syscall(SYS_kill, to, number));
}

extern "C" CACHALOT_SIMULATOR_API int killpg(pid_t group, int number) noexcept {
  if (group >= 0) return kill(-group, number);
  errno = EINVAL;
  return -1;
}
