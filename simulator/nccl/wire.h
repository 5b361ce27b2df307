// How processes reach each other: Unix sockets whose names are in Linux's abstract namespace, which has no files. The kernel
// closes them when a process ends, however it ends, so that nothing is left behind and the others see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace cachalot::simulator::nccl {

// A process that can be written to. No two have the same: the number is random.
struct Endpoint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Endpoint& a, const Endpoint& b) { return a.high == b.high && a.low == b.low; }
  friend bool operator<(const Endpoint& a, const Endpoint& b) {
    return std::tie(a.high, a.low) < std::tie(b.high, b.low);
  }
};

std::uint64_t random_number();

// A socket that listens at a new endpoint. Throws NcclError.
int listen_at(const Endpoint& endpoint);

// Returns the next connection of a process of the same user, or -1: there is none now.
int accept_from(int listening);

// Returns a connection, or -1: nobody listens there.
int connect_to(const Endpoint& endpoint);

// Returns whether everything was written: if not, the other process is gone. Blocks while the other reads nothing.
bool write_all(int socket, const void* data, std::size_t bytes);

}  // namespace cachalot::simulator::nccl
