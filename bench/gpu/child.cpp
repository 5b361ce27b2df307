#include "bench/gpu/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "base/process.h"

namespace cachalot::gpu {
namespace {

constexpr std::chrono::milliseconds kPollTime{20};

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

std::string ChildEnd::text() const {
  std::string end = timed_out ? "it took too long and was killed"
                    : signal  ? "signal " + std::to_string(signal)
                              : "exit status " + std::to_string(exit_code);
  const std::string said = last_line(output);
  return said.empty() ? end : end + ": " + said;
}

Child::Child(const std::vector<std::string>& arguments, int inherited) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe2: ") + std::strerror(errno));
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  std::vector<std::string> words = {"child", "--child"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const int error = posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, argument_vector(words).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
  if (error != 0) {
    close(output_);
    throw std::runtime_error(std::string("posix_spawn: ") + std::strerror(error));
  }
}

Child::~Child() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  close(output_);
}

void Child::read_output(ChildEnd& end) {
  char bytes[4096];
  for (ssize_t count; (count = read(output_, bytes, sizeof(bytes))) > 0;) {
    end.output.append(bytes, static_cast<std::size_t>(count));
  }
}

bool Child::ended(ChildEnd& end) {
  int status = 0;
  if (waitpid(process_, &status, WNOHANG) != process_) return false;
  process_ = -1;
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return true;
}

ChildEnd Child::wait(std::chrono::seconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  ChildEnd end;
  while (!ended(end)) {
    pollfd output = {output_, POLLIN, 0};
    poll(&output, 1, static_cast<int>(kPollTime.count()));
    read_output(end);
    if (std::chrono::steady_clock::now() > until && !end.timed_out) {
      end.timed_out = true;
      kill(process_, SIGKILL);
    }
  }
  read_output(end);
  return end;
}

ChildEnd run_child(const std::vector<std::string>& arguments, std::chrono::seconds limit, int inherited) {
  return Child(arguments, inherited).wait(limit);
}

}  // namespace cachalot::gpu
