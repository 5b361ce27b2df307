#include "tools/child_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "base/argument_vector.h"
#include "base/check.h"
#include "tools/python_program.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kGrace = std::chrono::seconds(10);

// posix_spawn's two tables, given back.
class SpawnTables {
 public:
  SpawnTables() {
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_init(&actions_);
  }
  ~SpawnTables() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnTables(const SpawnTables&) = delete;
  SpawnTables& operator=(const SpawnTables&) = delete;

  // The child takes the signals that we ignore.
  void take_interrupts() {
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGQUIT);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF);
  }
  void write_to(const std::string& path) {
    constexpr mode_t kMode = 0600;
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, kMode);
    posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO);
  }
  const posix_spawnattr_t* attributes() const { return &attributes_; }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawnattr_t attributes_;
  posix_spawn_file_actions_t actions_;
};

std::atomic<pid_t> heir{0};  // has our signals

// While one of these lives, our signals are the program's.
class PassedSignals {
 public:
  PassedSignals()
      : interrupt_(std::signal(SIGINT, SIG_IGN)),
        quit_(std::signal(SIGQUIT, SIG_IGN)),
        terminate_(std::signal(SIGTERM, [](int number) {
          if (heir != 0) kill(heir, number);
        })) {}
  ~PassedSignals() {
    std::signal(SIGINT, interrupt_);
    std::signal(SIGQUIT, quit_);
    std::signal(SIGTERM, terminate_);
    heir = 0;
  }
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

 private:
  void (*interrupt_)(int);
  void (*quit_)(int);
  void (*terminate_)(int);
};

pid_t start(ChildProgram& program) {
  SpawnTables tables;
  tables.take_interrupts();
  if (!program.output_path.empty()) tables.write_to(program.output_path);
  pid_t child = 0;
  const std::string name = program.words.front();
  const int error = posix_spawnp(&child, name.c_str(), tables.actions(), tables.attributes(),
                                 argument_vector(program.words).data(), argument_vector(program.environment).data());
  CACHALOT_REQUIRE(error == 0, "'{}' cannot be run: {}{}", name, std::strerror(error),
                   error == ENOENT ? missing_program_hint(name) : "");
  return child;
}

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

// Nullopt: the child is still there at `end`.
std::optional<int> wait_until(pid_t child, Clock::time_point end) {
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return 0;  // nobody can say how it ended
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kTick);
  }
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// Ends the program and what it has started, which write their reports first.
int end_now(pid_t child) {
  const std::vector<pid_t> processes = descendants_of(child);
  const auto latest = Clock::now() + kGrace;
  send(processes, SIGTERM);
  const std::optional<int> status = wait_until(child, latest);
  while (Clock::now() < latest && std::ranges::any_of(processes, is_running)) std::this_thread::sleep_for(kTick);
  if (!status || std::ranges::any_of(processes, is_running)) send(processes, SIGKILL);
  return status ? *status : wait_for(child);
}

}  // namespace

ChildEnd run_to_end(ChildProgram program) {
  std::optional<PassedSignals> passed;
  if (program.has_our_signals) passed.emplace();
  const pid_t child = start(program);
  if (passed) heir = child;
  ChildEnd end{.process = child};
  int status = 0;
  if (!program.most_seconds) {
    status = wait_for(child);
  } else {
    const auto most = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*program.most_seconds));
    const std::optional<int> in_time = wait_until(child, Clock::now() + most);
    end.is_late = !in_time;
    status = in_time ? *in_time : end_now(child);
  }
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

}  // namespace cachalot::tools
