#include "tools/simulation/python_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/process.h"
#include "cachalot/errors.h"
#include "cachalot/version.h"
#include "tools/simulation/python_program.h"

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

// Returns a copy with a number that the server does not use.
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

// Reads a line from a pipe, without its end. Returns nullopt where the other end has gone.
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

// Waits until there is something to read from a pipe, or its other end has gone. Throws std::runtime_error once `stop`, if it is
// there, is true.
void wait_for_line(int pipe, const std::atomic<bool>* stop) {
  constexpr int kTickMs = 20;
  pollfd ready{.fd = pipe, .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, kTickMs) <= 0) {
    if (stop != nullptr && *stop) throw std::runtime_error("interrupted");
  }
}

}  // namespace

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

namespace {

PythonServer::Start start_of(std::vector<std::string> interpreter, const std::vector<std::string>& modules,
                             std::vector<std::string> environment) {
  interpreter.insert(interpreter.end(),
                     {"-c", fmt::format("from cachalot_simulator.fork_server import serve; exec(*serve({}, {}))",
                                        PythonServer::kSocket, PythonServer::kFile)});
  return {
      .words = std::move(interpreter), .environment = std::move(environment), .text = nlohmann::json(modules).dump()};
}

nlohmann::json object_of(const std::vector<std::string>& environment) {
  nlohmann::json object = nlohmann::json::object();
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    object[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return object;
}

// The number in "started <process>".
std::optional<pid_t> process_in(const std::optional<std::string>& line) {
  constexpr std::string_view kStarted = "started ";
  pid_t process = 0;
  if (!line || !line->starts_with(kStarted)) return std::nullopt;
  std::from_chars(line->data() + kStarted.size(), line->data() + line->size(), process);
  return process;
}

}  // namespace

std::optional<PythonWords> python_words(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 5> kSwitches = {"-B", "-O", "-OO", "-s", "-u"};
  if (words.empty() || !is_python_interpreter(words.front())) return std::nullopt;
  const auto is_switch = [&](const std::string& word) { return std::ranges::find(kSwitches, word) != kSwitches.end(); };
  const auto first = std::find_if_not(words.begin() + 1, words.end(), is_switch);
  if (first == words.end()) return std::nullopt;
  const bool has_argument = *first == "-c" || *first == "-m";
  if (first->starts_with('-') && !has_argument) return std::nullopt;
  if (has_argument && std::next(first) == words.end()) return std::nullopt;
  return PythonWords{.interpreter = {words.begin(), first}, .arguments = {first, words.end()}};
}

ForkServer::ForkServer(std::vector<std::string> interpreter, const std::vector<std::string>& modules,
                       std::vector<std::string> environment)
    : server_(start_of(std::move(interpreter), modules, std::move(environment))) {}

std::optional<RunningChild> ForkServer::start(const std::vector<std::string>& arguments,
                                              const std::vector<std::string>& environment,
                                              const std::string& output_path, const std::atomic<bool>* stop) {
  constexpr mode_t kMode = 0600;
  const Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor output(open(output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kMode));
  CACHALOT_REQUIRE(output, "'{}' cannot be written: {}", output_path, std::strerror(errno));
  std::error_code error;
  std::optional<Descriptor> replies = server_.ask({{"arguments", arguments},
                                                   {"environment", object_of(environment)},
                                                   {"folder", std::filesystem::current_path(error).string()},
                                                   {"search_at_end", false}},
                                                  {input.number(), output.number(), output.number()});
  if (!replies) return std::nullopt;
  wait_for_line(replies->number(), stop);
  const std::optional<pid_t> process = process_in(read_line(replies->number()));
  return process ? std::optional<RunningChild>(std::in_place, *process, std::move(*replies)) : std::nullopt;
}

namespace {

PythonServer::Start start_of(const std::string& python, const std::string& scheduler) {
  const std::string code = fmt::format("from cachalot_simulator.dask_runs import serve; serve({}, {})",
                                       PythonServer::kSocket, PythonServer::kFile);
  return {.words = {python, "-c", code},
          .environment = environment_of_helper(),
          .text = nlohmann::json({{"scheduler", scheduler}, {"version", CACHALOT_VERSION_STRING}}).dump()};
}

// The text of a reply "<what> <text>". Throws InvalidArgument for "failed <text>" and where there is no reply.
std::string reply_of(const std::optional<Descriptor>& replies, std::string_view what) {
  const std::optional<std::string> line = replies ? read_line(replies->number()) : std::nullopt;
  CACHALOT_REQUIRE(line, "the process that asks the Dask scheduler has ended");
  const std::size_t space = line->find(' ');
  std::string text = space == std::string::npos ? "" : line->substr(space + 1);
  CACHALOT_REQUIRE(line->substr(0, space) == what, "{}", text);
  return text;
}

// Returns the words of a `cachalot simulate` that records a run as the options say.
std::vector<std::string> words_of_record(const SimulationOptions& options) {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::string& value) {
    words.push_back(fmt::format("--{}={}", name, value));
  };
  if (options.gpu) add("gpu", *options.gpu);
  if (options.memory) add("memory", *options.memory);
  if (options.context) add("context", *options.context);
  add("devices", std::to_string(options.devices));
  if (options.rank) {
    add("world-size", std::to_string(options.rank->world_size));
    add("rank", std::to_string(options.rank->rank));
    add("local-rank", std::to_string(options.rank->local_rank));
  }
  add("compute", options.compute);
  add("unknown", options.unknown);
  if (options.max_steps) add("max-steps", std::to_string(*options.max_steps));
  if (options.max_seconds) add("max-seconds", fmt::format("{}", *options.max_seconds));
  words.emplace_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

}  // namespace

Cluster::Cluster(const std::string& python, const std::string& scheduler) : server_(start_of(python, scheduler)) {
  const std::string places = reply_of(server_.ask({{"ask", "places"}}, {}), "places");
  std::from_chars(places.data(), places.data() + places.size(), places_);
}

void Cluster::record(const SimulationOptions& options, const std::filesystem::path& folder) {
  const std::optional<Descriptor> replies = server_.ask({{"words", words_of_record(options)},
                                                         {"folder", std::filesystem::current_path().string()},
                                                         {"reports", folder.string()}},
                                                        {});
  if (replies) wait_for_line(replies->number(), options.stop);
  reply_of(replies, "done");
}

std::string Cluster::advise(const std::vector<std::string>& options, const std::string& file, bool sends_file) {
  const std::optional<Descriptor> replies = server_.ask({{"advise", options},
                                                         {"folder", std::filesystem::current_path().string()},
                                                         {"file", file},
                                                         {"sends_file", sends_file}},
                                                        {});
  std::string text;
  for (auto left = std::stoull(reply_of(replies, "lines")); left > 0; --left) {
    const std::optional<std::string> line = read_line(replies->number());
    CACHALOT_REQUIRE(line, "the process that asks the Dask scheduler has ended");
    text += *line + "\n";
  }
  return text;
}

}  // namespace cachalot::tools
