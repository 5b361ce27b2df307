// Requests to other processes of a program to write their reports and to end. SIGKILL leaves no time for a report.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace cachalot::simulator {

// The signal that asks for it; it means nothing in libc, Python or CUDA.
inline int request_to_end() {
  constexpr int kOffset = 17;
  return SIGRTMIN + kOffset;
}

// Returns a field of a process in /proc, such as "SigCgt"; "" if there is no such process.
inline std::string status_field(pid_t process, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  }
  return "";
}

inline bool handles_request(pid_t process) {
  constexpr int kHexadecimal = 16;
  const std::string handled = status_field(process, "SigCgt");
  return !handled.empty() && (std::stoull(handled, nullptr, kHexadecimal) >> (request_to_end() - 1) & 1) != 0;
}

inline bool has_ended(pid_t process) {
  const std::string state = status_field(process, "State");
  return state.empty() || state.front() == 'Z' || state.front() == 'X';
}

inline std::vector<pid_t> all_processes() {
  std::vector<pid_t> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) != 0) processes.push_back(std::stoi(name));
  }
  return processes;
}

// Asks those of the processes that handle the request, and waits until they have ended, half a minute at most.
inline void ask_to_end(std::vector<pid_t> processes) {
  constexpr std::chrono::seconds kPatience{30};
  constexpr std::chrono::milliseconds kTick{5};
  std::erase_if(processes, [](pid_t process) { return !handles_request(process); });
  for (const pid_t process : processes) kill(process, request_to_end());
  const auto latest = std::chrono::steady_clock::now() + kPatience;
  while (!std::ranges::all_of(processes, has_ended) && std::chrono::steady_clock::now() < latest)
    std::this_thread::sleep_for(kTick);
}

}  // namespace cachalot::simulator
