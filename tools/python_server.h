// A process of Python that answers requests: each is JSON, and has a pipe of its own for the replies.
//
// The process finds a socket as descriptor 3 and a file with a text as descriptor 4. For each request it receives a byte with
// these descriptors: a file with the request, those that the caller sends along, and the pipe, into which it writes lines.
// When the socket ends, it must end.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/descriptor.h"

namespace cachalot::tools {

// Reads a line from a pipe, without its end. Returns nullopt where the other end has gone.
std::optional<std::string> read_line(int pipe);
// Waits until there is something to read from a pipe, or its other end has gone. Throws std::runtime_error once `stop`, if it is
// there, is true.
void wait_for_line(int pipe, const std::atomic<bool>* stop);

// Thread-safe.
class PythonServer {
 public:
  static constexpr int kSocket = 3;  // its number there
  static constexpr int kFile = 4;

  struct Start {
    std::vector<std::string> words;        // the interpreter, found on PATH, and its arguments
    std::vector<std::string> environment;  // "NAME=value"
    std::string text;
  };

  // Throws InvalidArgument where the interpreter cannot be run.
  explicit PythonServer(Start start);
  // Waits for the process's end; after ten seconds it is killed.
  ~PythonServer();
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  // Returns the pipe with the replies, and nullopt if the server has gone. Throws InvalidArgument where the request has text
  // that is not UTF-8.
  std::optional<Descriptor> ask(const nlohmann::json& request, const std::vector<int>& descriptors);

 private:
  bool send(const std::vector<int>& descriptors);

  std::mutex mutex_;  // of the socket
  Descriptor socket_;
  pid_t process_ = 0;
};

}  // namespace cachalot::tools
