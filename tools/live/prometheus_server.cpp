#include "tools/live/prometheus_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "cachalot/errors.h"
#include "tools/base/quoted.h"

namespace cachalot::tools::live {
namespace {

constexpr std::string_view kText = "text/plain; version=0.0.4; charset=utf-8";

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress address_of(const std::string& text, std::uint16_t port) {
  SocketAddress address;
  auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address.length = sizeof(v4);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address.length = sizeof(v6);
  } else {
    throw InvalidArgument(
        fmt::format("--prometheus-address {} is no IPv4 or IPv6 address, such as 127.0.0.1 or ::1", Quoted{text}));
  }
  return address;
}

std::string response(std::string_view status, std::string_view type, std::string_view body, bool with_body = true) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     type, body.size(), with_body ? body : "");
}

std::string error_response(std::string_view status) { return response(status, kText, fmt::format("{}\n", status)); }

}  // namespace

PrometheusServer::PrometheusServer(const std::string& address, std::uint16_t port) {
  SocketAddress wanted = address_of(address, port);
  const auto fail = [&] {
    throw InvalidArgument(
        fmt::format("cannot listen on {} port {}: {}", Printable{address}, port, std::strerror(errno)));
  };
  listener_ = Descriptor(socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener_) fail();
  const int yes = 1;
  setsockopt(listener_.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listener_.number(), wanted.get(), wanted.length) != 0) fail();
  if (listen(listener_.number(), kMostConnections) != 0) fail();
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(listener_.number(), bound.get(), &bound.length) != 0) fail();
  const bool is_v6 = bound.storage.ss_family == AF_INET6;
  const std::uint16_t bound_port = ntohs(is_v6 ? reinterpret_cast<sockaddr_in6&>(bound.storage).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(bound.storage).sin_port);
  name_ = fmt::format("{}{}{}:{}", is_v6 ? "[" : "", address, is_v6 ? "]" : "", bound_port);
}

void PrometheusServer::add_to(std::vector<pollfd>& polled) const {
  if (connections_.size() < kMostConnections) polled.push_back({listener_.number(), POLLIN, 0});
  for (const Connection& connection : connections_) {
    const short event = connection.answer.empty() ? POLLIN : POLLOUT;
    polled.push_back({connection.socket.number(), event, 0});
  }
}

void PrometheusServer::serve(std::chrono::steady_clock::time_point now) {
  accept_all(now);
  std::erase_if(connections_, [&](Connection& connection) { return now >= connection.until || !serve(connection); });
}

void PrometheusServer::accept_all(std::chrono::steady_clock::time_point now) {
  while (connections_.size() < kMostConnections) {
    Descriptor socket(accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    connections_.push_back({std::move(socket), now + kPatience, "", "", 0});
  }
}

// Returns false when the connection has ended.
bool PrometheusServer::serve(Connection& connection) const {
  if (connection.answer.empty() && !receive(connection)) return false;
  while (connection.sent < connection.answer.size()) {
    const std::string_view rest = std::string_view{connection.answer}.substr(connection.sent);
    const ssize_t count = send(connection.socket.number(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<std::size_t>(count);
  }
  if (connection.answer.empty()) return true;
  shutdown(connection.socket.number(), SHUT_WR);
  return false;
}

// Returns false if the client has gone. Sets the answer when the request is whole.
bool PrometheusServer::receive(Connection& connection) const {
  char bytes[2048];
  while (true) {
    const ssize_t count = recv(connection.socket.number(), bytes, sizeof(bytes), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    connection.request.append(bytes, static_cast<std::size_t>(count));
    if (connection.request.find("\r\n\r\n") != std::string::npos) {
      connection.answer = answer_to(connection.request);
      return true;
    }
    if (connection.request.size() > kMostRequest) {
      connection.answer = error_response("431 Request Header Fields Too Large");
      return true;
    }
  }
}

std::string PrometheusServer::answer_to(const std::string& request) const {
  const std::string_view line = std::string_view{request}.substr(0, request.find("\r\n"));
  const auto first = line.find(' ');
  const auto second = line.find(' ', first == std::string_view::npos ? first : first + 1);
  if (second == std::string_view::npos || !line.substr(second + 1).starts_with("HTTP/1.")) {
    return error_response("400 Bad Request");
  }
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view path = target.substr(0, target.find('?'));
  if (method != "GET" && method != "HEAD") return error_response("405 Method Not Allowed");
  if (path == "/") return response("200 OK", kText, "cachalot top: see /metrics\n", method == "GET");
  if (path != "/metrics") return error_response("404 Not Found");
  return response("200 OK", kText, text_, method == "GET");
}

}  // namespace cachalot::tools::live
