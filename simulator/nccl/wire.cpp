#include "simulator/nccl/wire.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/format.h"
#include "simulator/nccl/errors.h"

namespace cachalot::simulator::nccl {
namespace {

struct SocketName {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// A zero in front of the name makes it abstract.
SocketName name_of(const Endpoint& endpoint) {
  const std::string name = formatted("cachalot-nccl-{:#x}-{:#x}", endpoint.high, endpoint.low);
  SocketName made;
  made.address.sun_family = AF_UNIX;
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

[[noreturn]] void fail_system(const char* call) {
  throw NcclError(ncclSystemError, formatted("{}: {}", call, std::strerror(errno)));
}

// Anyone on the machine may connect to an abstract name.
bool is_ours(int socket) {
  ucred other{};
  socklen_t bytes = sizeof(other);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 && other.uid == geteuid();
}

}  // namespace

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) fail_system("getrandom");
  return number;
}

int listen_at(const Endpoint& endpoint) {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) fail_system("socket");
  const SocketName at = name_of(endpoint);
  if (bind(made, reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0) fail_system("bind");
  if (listen(made, SOMAXCONN) != 0) fail_system("listen");
  return made;
}

int accept_from(int listening) {
  for (;;) {
    const int made = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (made < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (made < 0 || is_ours(made)) return made;
    close(made);
  }
}

int connect_to(const Endpoint& endpoint) {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) fail_system("socket");
  const SocketName at = name_of(endpoint);
  while (connect(made, reinterpret_cast<const sockaddr*>(&at.address), at.bytes) != 0) {
    if (errno == EINTR) continue;
    close(made);
    return -1;
  }
  return made;
}

bool write_all(int socket, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = send(socket, at, bytes, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace cachalot::simulator::nccl
