#include "tools/simulation/running_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/process.h"
#include "tools/simulation/python_program.h"
#include "tools/simulation/python_server.h"

namespace cachalot::tools {
namespace {

namespace fs = std::filesystem;
using Clock = RunningChild::Clock;

constexpr auto kGrace = std::chrono::seconds(10);
constexpr int kStatusOfKilled = SIGKILL;  // as a status

// The fields of /proc/<process>/stat: "<process> (<name>) <state> <parent> …".
struct ProcessState {
  char state = 'X';  // Z: it has ended, and has not been waited for
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

// The process itself among them.
std::vector<pid_t> descendants_of(pid_t ancestor) {
  std::map<pid_t, pid_t> parents;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) == 0) continue;
    const pid_t process = std::stoi(name);
    parents[process] = state_of(process).parent;
  }
  std::vector<pid_t> descendants;
  for (const auto& [process, parent] : parents) {
    auto line = parents.find(process);
    while (line != parents.end() && line->first != ancestor) line = parents.find(line->second);
    if (line != parents.end()) descendants.push_back(process);
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

namespace {

// Ends a program and all that it has started: by SIGTERM, so that they write their reports, and by SIGKILL those that are
// still there ten seconds later. Returns the program's status.
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
std::atomic<int> early{0};   // a signal that arrived before there was an heir

// While one of these lives, our signals are the program's.
class PassedSignals {
 public:
  PassedSignals()
      : interrupt_(std::signal(SIGINT, SIG_IGN)),
        quit_(std::signal(SIGQUIT, SIG_IGN)),
        terminate_(std::signal(SIGTERM, [](int number) {
          if (const pid_t to = heir; to != 0)
            kill(to, number);
          else
            early = number;
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

pid_t spawn(ChildProgram& program) {
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

RunningChild start(ChildProgram& program) {
  if (program.fork_server != nullptr) {
    const std::optional<PythonWords> words = python_words(program.words);
    CACHALOT_REQUIRE(words.has_value(), "'{}' is no program of Python's", program.words.front());
    std::optional<RunningChild> child =
        program.fork_server->start(words->arguments, program.environment, program.output_path, program.stop);
    if (child) return std::move(*child);
  }
  return RunningChild(spawn(program));
}

// Returns nullopt if the program must be ended now: its time is over, or all are to stop.
std::optional<int> wait_in_time(RunningChild& child, const ChildProgram& program) {
  std::optional<Clock::time_point> latest;
  if (program.most_seconds)
    latest = Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*program.most_seconds));
  if (!latest && program.stop == nullptr) return child.wait();
  while (true) {
    if (const std::optional<int> status = child.status()) return status;
    if ((latest && Clock::now() >= *latest) || (program.stop != nullptr && *program.stop)) return std::nullopt;
    std::this_thread::sleep_for(RunningChild::kTick);
  }
}

}  // namespace

ChildEnd run_to_end(ChildProgram program) {
  std::optional<PassedSignals> passed;
  if (program.has_our_signals) passed.emplace();
  RunningChild child = start(program);
  if (passed) {
    heir = child.process();
    if (const int number = early.exchange(0); number != 0) kill(child.process(), number);
  }
  const std::optional<int> in_time = wait_in_time(child, program);
  const int status = in_time ? *in_time : end_with_descendants(child);
  return {.process = child.process(),
          .exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
          .is_late = !in_time};
}

}  // namespace cachalot::tools
