// A PrometheusServer answers GET /metrics over HTTP/1.1 with a text, in the thread that polls.
//
// Clients are not trusted: a request has at most kMostRequest bytes and kPatience to come and be answered, and at most
// kMostConnections are open; further ones wait. Each connection is closed after its answer.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "tools/base/descriptor.h"

namespace cachalot::tools::live {

class PrometheusServer {
 public:
  static constexpr std::size_t kMostRequest = 8192;
  static constexpr std::size_t kMostConnections = 32;
  static constexpr std::chrono::seconds kPatience{5};

  // Listens. Port 0 takes a free one. Throws InvalidArgument for an address that is neither IPv4 nor IPv6, and where the system
  // refuses.
  PrometheusServer(const std::string& address, std::uint16_t port);

  // "127.0.0.1:9400", "[::1]:9400"
  const std::string& name() const { return name_; }
  // Sets what requests from now on are answered with.
  void set_text(std::string text) { text_ = std::move(text); }
  // Appends what is to be polled.
  void add_to(std::vector<pollfd>& polled) const;
  // Serves what is ready, without blocking; ends connections that have had their time. `now` is for tests.
  void serve(std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

 private:
  struct Connection {
    Descriptor socket;
    std::chrono::steady_clock::time_point until;
    std::string request;
    std::string answer;  // "" until the request is whole
    std::size_t sent = 0;
  };

  void accept_all(std::chrono::steady_clock::time_point now);
  bool serve(Connection& connection) const;
  bool receive(Connection& connection) const;
  std::string answer_to(const std::string& request) const;

  Descriptor listener_;
  std::string name_;
  std::string text_;
  std::list<Connection> connections_;
};

}  // namespace cachalot::tools::live
