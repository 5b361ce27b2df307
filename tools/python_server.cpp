#include "tools/python_server.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/process.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

// A file in memory with this text, at its beginning.
Descriptor file_with(const std::string& text) {
  Descriptor file(memfd_create("cachalot", MFD_CLOEXEC));
  CACHALOT_REQUIRE(file, "no file can be made in memory: {}", std::strerror(errno));
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count =
        pwrite(file.number(), text.data() + written, text.size() - written, static_cast<off_t>(written));
    CACHALOT_REQUIRE(count > 0, "a file in memory cannot be written: {}", std::strerror(errno));
    written += static_cast<std::size_t>(count);
  }
  return file;
}

std::pair<Descriptor, Descriptor> socket_pair() {
  int ends[2];
  CACHALOT_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "no socket can be made: {}",
                   std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::pair<Descriptor, Descriptor> pipe_pair() {
  int ends[2];
  CACHALOT_REQUIRE(pipe2(ends, O_CLOEXEC) == 0, "no pipe can be made: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string text_of(const nlohmann::json& request) {
  try {
    return request.dump();
  } catch (const nlohmann::json::type_error&) {
    throw InvalidArgument("a word, a variable or the folder of the program is not UTF-8");
  }
}

// A copy whose number is none that the server finds something under.
Descriptor moved_away(const Descriptor& descriptor) {
  return Descriptor(fcntl(descriptor.number(), F_DUPFD_CLOEXEC, PythonServer::kFile + 1));
}

pid_t spawn_server(PythonServer::Start& start, const Descriptor& socket, const Descriptor& file) {
  const Descriptor socket_away = moved_away(socket);
  const Descriptor file_away = moved_away(file);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, socket_away.number(), PythonServer::kSocket);
  posix_spawn_file_actions_adddup2(&actions, file_away.number(), PythonServer::kFile);
  pid_t process = 0;
  const std::string name = start.words.front();
  const int error = posix_spawnp(&process, name.c_str(), &actions, nullptr, argument_vector(start.words).data(),
                                 argument_vector(start.environment).data());
  posix_spawn_file_actions_destroy(&actions);
  CACHALOT_REQUIRE(error == 0, "'{}' cannot be run: {}", name, std::strerror(error));
  return process;
}

}  // namespace

std::optional<std::string> read_line(int pipe) {
  std::string line;
  char byte = 0;
  while (true) {
    const ssize_t count = read(pipe, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    if (byte == '\n') return line;
    line.push_back(byte);
  }
}

void wait_for_line(int pipe, const std::atomic<bool>* stop) {
  constexpr int kTickMs = 20;
  pollfd ready{.fd = pipe, .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, kTickMs) <= 0) {
    if (stop != nullptr && *stop) throw std::runtime_error("interrupted");
  }
}

PythonServer::PythonServer(Start start) {
  auto [ours, servers] = socket_pair();
  process_ = spawn_server(start, servers, file_with(start.text));
  socket_ = std::move(ours);
}

PythonServer::~PythonServer() {
  socket_ = Descriptor();
  constexpr auto kTick = std::chrono::milliseconds(10);
  constexpr int kMostTicks = 1000;  // it may be importing
  for (int tick = 0; waitpid(process_, nullptr, WNOHANG) == 0; ++tick) {
    if (tick == kMostTicks) kill(process_, SIGKILL);
    std::this_thread::sleep_for(kTick);
  }
}

std::optional<Descriptor> PythonServer::ask(const nlohmann::json& request, const std::vector<int>& descriptors) {
  const Descriptor file = file_with(text_of(request));
  auto [replies, servers] = pipe_pair();
  std::vector<int> sent = {file.number()};
  sent.insert(sent.end(), descriptors.begin(), descriptors.end());
  sent.push_back(servers.number());
  if (!send(sent)) return std::nullopt;
  return std::move(replies);
}

bool PythonServer::send(const std::vector<int>& descriptors) {
  char byte = 'r';
  iovec data{.iov_base = &byte, .iov_len = 1};
  const std::size_t bytes = descriptors.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(bytes));
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  const std::lock_guard lock(mutex_);
  return sendmsg(socket_.number(), &message, MSG_NOSIGNAL) == 1;
}

}  // namespace cachalot::tools
