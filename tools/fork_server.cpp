#include "tools/fork_server.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "tools/python_program.h"

namespace cachalot::tools {
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

}  // namespace cachalot::tools
