#include "tools/running_child.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;
using Clock = RunningChild::Clock;

constexpr auto kGrace = std::chrono::seconds(10);
constexpr int kStatusOfKilled = SIGKILL;  // as a status

// What /proc/<process>/stat says: "<process> (<name>) <state> <parent> …".
struct ProcessState {
  char state = 'X';  // Z: it has ended, and nobody has asked how
  pid_t parent = 0;
};

ProcessState state_of(pid_t process) {
  std::stringstream text;
  text << std::ifstream(fmt::format("/proc/{}/stat", process)).rdbuf();
  const std::string stat = text.str();
  ProcessState result;
  std::istringstream words(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  words >> result.state >> result.parent;
  return result;
}

bool is_running(pid_t process) {
  const char state = state_of(process).state;
  return state != 'X' && state != 'Z';
}

std::map<pid_t, pid_t> parents() {
  std::map<pid_t, pid_t> parents;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) == 0) continue;
    const pid_t process = std::stoi(name);
    parents[process] = state_of(process).parent;
  }
  return parents;
}

// The process itself among them.
std::vector<pid_t> descendants_of(pid_t ancestor) {
  const std::map<pid_t, pid_t> all = parents();
  std::vector<pid_t> descendants;
  for (const auto& [process, parent] : all) {
    auto line = all.find(process);
    while (line != all.end() && line->first != ancestor) line = all.find(line->second);
    if (line != all.end()) descendants.push_back(process);
  }
  return descendants;
}

void send(const std::vector<pid_t>& processes, int number) {
  for (const pid_t process : processes) kill(process, number);
}

}  // namespace

int RunningChild::wait() {
  if (replies_) {
    while (true) {
      if (const std::optional<int> status = status_told()) return *status;
      pollfd ready{.fd = replies_.number(), .events = POLLIN, .revents = 0};
      poll(&ready, 1, -1);
    }
  }
  int status = 0;
  while (waitpid(process_, &status, 0) < 0) {
    if (errno != EINTR) return kStatusOfKilled;
  }
  return status;
}

std::optional<int> RunningChild::status() {
  if (replies_) return status_told();
  int status = 0;
  const pid_t ended = waitpid(process_, &status, WNOHANG);
  if (ended == process_) return status;
  return ended < 0 && errno != EINTR ? std::optional(kStatusOfKilled) : std::nullopt;
}

std::optional<int> RunningChild::status_told() {
  pollfd ready{.fd = replies_.number(), .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, 0) > 0) {
    char bytes[32];
    const ssize_t count = read(replies_.number(), bytes, sizeof bytes);
    if (count <= 0) return kStatusOfKilled;  // the server has gone, and its programs with it
    told_.append(bytes, static_cast<std::size_t>(count));
    constexpr std::string_view kEnded = "ended ";
    if (!told_.ends_with('\n')) continue;
    int status = kStatusOfKilled;
    if (told_.starts_with(kEnded)) std::from_chars(told_.data() + kEnded.size(), told_.data() + told_.size(), status);
    return status;
  }
  return std::nullopt;
}

int end_with_descendants(RunningChild& child) {
  std::vector<pid_t> processes = descendants_of(child.process());
  const auto latest = Clock::now() + kGrace;
  send(processes, SIGTERM);
  std::optional<int> status = child.status();
  while (Clock::now() < latest && (!status || std::ranges::any_of(processes, is_running))) {
    std::this_thread::sleep_for(RunningChild::kTick);
    if (!status) status = child.status();
  }
  std::erase_if(processes,
                [](pid_t process) { return !is_running(process); });  // another may have such a number by now
  send(processes, SIGKILL);
  return status ? *status : child.wait();
}

}  // namespace cachalot::tools
