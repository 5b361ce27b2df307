// The file descriptors of shared memory, handed to other processes of the user through a Unix socket. No right over the other process
// is needed for it, as pidfd_getfd needs one, which containers refuse.
//
// The protocol: a receiver connects, and sends the keys of exports as one packet. The answer is one packet, a
// DescriptorReply; if that is `here`, it carries a descriptor for each key, in their order.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/process.h"
#include "pytorch/plug/plug.h"

namespace cachalot {

inline constexpr std::size_t kMostDescriptors = 253;  // that a packet may carry: Linux's SCM_MAX_FD
// A receiver waits for the answer, and the sender for a request: it serves one receiver after the other.
inline constexpr int kReceiverPatienceS = 10;
inline constexpr int kSenderPatienceS = 1;

enum class DescriptorReply : std::uint32_t {
  here = 1,
  gone,  // a key is of no memory that is shared now
  full,  // the process may not open that many files
};

// A SocketAddress is that of the abstract socket with a number. An abstract socket needs no folder that both processes may
// write, and ends with its process.
struct SocketAddress {
  explicit SocketAddress(std::uint64_t number);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{};
  socklen_t bytes = 0;
};

// Returns whether the process at the other end of a connection is of the same user.
bool is_of_this_user(int connection);
// Bounds the waits of a socket's calls.
void set_patience(int socket, int seconds);

// DescriptorServer serves the descriptors of ExportedFiles. Its thread sleeps in accept, takes neither the GIL nor a lock of an
// allocator, and ends with the process. A forked child has a server of its own once it asks for one. Thread-safe.
class DescriptorServer final : public ForkAware {
 public:
  static DescriptorServer& instance();

  // Returns the random number of the socket, and starts the thread with the first call. Returns 0 if the system has no
  // socket or no thread for it; the next call tries again.
  std::uint64_t number();

 private:
  DescriptorServer() = default;
  void on_fork() noexcept override;
  void start();

  std::mutex mutex_;
  std::uint64_t number_ = 0;  // 0: not started
  int socket_ = -1;
};

// TakenDescriptors are open as long as the object lives.
//
// The sender's socket is tried first: it needs no right over the sender, and its answer is of this very export. pidfd_getfd takes
// whatever has the descriptor's number now, in the process that has the sender's number here. It is there for senders
// without a socket (PyTorch's own allocator), and for those whose network namespace is another.
class TakenDescriptors {
 public:
  TakenDescriptors() = default;
  ~TakenDescriptors() { close_all(); }
  TakenDescriptors(const TakenDescriptors&) = delete;
  TakenDescriptors& operator=(const TakenDescriptors&) = delete;

  // Replaces the sender's descriptors in `memory`; to be called once.
  // Throws InvalidArgument, which names both ways, if neither brings them; and if the sender has given up the memory.
  // Blocks: for the sender's thread, at most kReceiverPatienceS seconds for each 253 descriptors.
  void take(SharedMemory& memory, const Plug::Sender& sender);

 private:
  std::string take_by_socket(const std::vector<SharedMemory::Handle*>& handles, const Plug::Sender& sender);
  std::string ask(int connection, const std::vector<std::uint64_t>& keys, const Plug::Sender& sender);
  std::string receive(int connection, DescriptorReply& reply);
  std::string take_by_pidfd(const std::vector<SharedMemory::Handle*>& handles, const Plug::Sender& sender);
  void close_all();

  std::vector<int> descriptors_;
};

}  // namespace cachalot
