#include "pytorch/plug/descriptor_exchange.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/exported_files.h"
#include "base/format.h"

// The numbers of all architectures, for C libraries that do not know these calls (new in Linux 5.3 and 5.6).
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace cachalot {

SocketAddress::SocketAddress(std::uint64_t number) {
  const std::string text = formatted("cachalot-{}", number);
  name.sun_family = AF_UNIX;
  text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);  // the zero before it makes it abstract
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

bool is_of_this_user(int connection) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

void set_patience(int socket, int seconds) {
  const timeval patience{.tv_sec = seconds, .tv_usec = 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

namespace {

// Calls again what a signal interrupted.
template <typename Call>
ssize_t repeated(Call call) {
  ssize_t result = 0;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

// Duplicates are closed when the packet is on its way, which keeps the files open. They need no memory of the host: its lack
// would end the thread, and the process with it.
class Duplicates {
 public:
  Duplicates() = default;
  ~Duplicates() {
    for (std::size_t i = 0; i < count_; ++i) close(files_[i]);
  }
  Duplicates(const Duplicates&) = delete;
  Duplicates& operator=(const Duplicates&) = delete;

  DescriptorReply add(std::uint64_t key) {
    const int file = ExportedFiles::instance().duplicate(key);
    if (file < 0) return errno == ENOENT ? DescriptorReply::gone : DescriptorReply::full;
    files_[count_++] = file;
    return DescriptorReply::here;
  }
  // Returns whether the packet was sent.
  bool send_to(int connection) const;

 private:
  std::size_t count_ = 0;
  std::array<int, kMostDescriptors> files_{};
};

bool Duplicates::send_to(int connection) const {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  DescriptorReply reply = DescriptorReply::here;
  iovec text{.iov_base = &reply, .iov_len = sizeof(reply)};
  const std::size_t bytes = count_ * sizeof(int);
  msghdr packet{};
  packet.msg_iov = &text;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&packet);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(header), files_.data(), bytes);
  return sendmsg(connection, &packet, MSG_NOSIGNAL) >= 0;
}

void serve(int connection) {
  if (!is_of_this_user(connection)) return;
  set_patience(connection, kSenderPatienceS);
  std::array<std::uint64_t, kMostDescriptors> keys{};
  const ssize_t received = recv(connection, keys.data(), sizeof(keys), MSG_TRUNC);  // also of a longer packet
  if (received <= 0) return;
  const auto bytes = static_cast<std::size_t>(received);
  if (bytes % sizeof(keys[0]) != 0 || bytes > sizeof(keys)) return;
  Duplicates duplicates;
  DescriptorReply reply = DescriptorReply::here;
  for (std::size_t i = 0; i < bytes / sizeof(keys[0]) && reply == DescriptorReply::here; ++i) {
    reply = duplicates.add(keys[i]);
  }
  if (reply == DescriptorReply::here && duplicates.send_to(connection)) return;
  if (reply == DescriptorReply::here) reply = DescriptorReply::full;  // too many are on their way
  send(connection, &reply, sizeof(reply), MSG_NOSIGNAL);              // a receiver that has gone needs no answer
}

void serve_all(int socket) {
  pthread_setname_np(pthread_self(), "cachalot-share");
  for (;;) {
    const int connection = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) {
      serve(connection);
      close(connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      usleep(100'000);  // until others have closed some
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;  // the program closed the socket
    }
  }
}

}  // namespace

DescriptorServer& DescriptorServer::instance() {
  static DescriptorServer& server = *new DescriptorServer;  // its thread may run until the process ends
  return server;
}

std::uint64_t DescriptorServer::number() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ == 0) start();
  return number_;
}

void DescriptorServer::start() {
  const std::uint64_t number = ExportedFiles::random_key();
  const SocketAddress address(number);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  try {
    if (bind(socket, address.get(), address.bytes) != 0 || listen(socket, SOMAXCONN) != 0) {
      throw std::system_error(errno, std::generic_category());
    }
    const BlockedSignals blocked;
    std::thread([socket] { serve_all(socket); }).detach();
    socket_ = socket;
    number_ = number;
  } catch (const std::system_error&) {
    close(socket);
  }
}

// The parent's socket must not stay open here: receivers would connect to it and wait after the parent's end.
void DescriptorServer::on_fork() noexcept {
  new (&mutex_) std::mutex;
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  number_ = 0;
  adopt();
}

// --- the receiver's end ------------------------------------------------------------------------------------------------

void TakenDescriptors::take(SharedMemory& memory, const Plug::Sender& sender) {
  std::vector<SharedMemory::Handle*> handles;
  for (SharedMemory::Handle& handle : memory.handles) {
    if (handle.shared.kind == ShareableHandle::Kind::descriptor) handles.push_back(&handle);
  }
  if (handles.empty()) return;
  descriptors_.reserve(handles.size() + kMostDescriptors);
  const std::string by_socket = take_by_socket(handles, sender);
  if (!by_socket.empty()) {
    close_all();
    const std::string by_pidfd = take_by_pidfd(handles, sender);
    CACHALOT_REQUIRE(by_pidfd.empty(),
                     "the file descriptors of the CUDA memory that process {} shares could not be received: {}; {}",
                     sender.process, by_socket, by_pidfd);
  }
  for (std::size_t i = 0; i < handles.size(); ++i) handles[i]->shared.descriptor = descriptors_[i];
}

// --- by its socket ------------------------------------------------------------------------------------------------------

namespace {

std::string failure(const std::string& call, int error) { return formatted("{}: {}", call, std::strerror(error)); }

class Connection {
 public:
  Connection() : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    if (socket_ >= 0) set_patience(socket_, kReceiverPatienceS);
  }
  ~Connection() {
    if (socket_ >= 0) close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connect_to(const SocketAddress& address) const {
    return repeated([&] { return connect(socket_, address.get(), address.bytes); }) == 0;
  }
  int get() const { return socket_; }

 private:
  int socket_;
};

}  // namespace

// Returns why it failed, or "". A connection is for one packet, so that no receiver occupies the sender's thread.
std::string TakenDescriptors::take_by_socket(const std::vector<SharedMemory::Handle*>& handles,
                                             const Plug::Sender& sender) {
  if (sender.socket == 0) return "the sender named no socket (it uses PyTorch's own allocator, or an older cachalot)";
  const SocketAddress address(sender.socket);
  std::string failed;
  for (std::size_t begin = 0; begin < handles.size() && failed.empty(); begin += kMostDescriptors) {
    std::vector<std::uint64_t> keys;
    const std::size_t end = std::min(handles.size(), begin + kMostDescriptors);
    for (std::size_t i = begin; i < end; ++i) keys.push_back(handles[i]->key);
    const Connection connection;
    if (connection.get() < 0) return failure("socket", errno);
    if (!connection.connect_to(address)) {
      const std::string call = formatted("connect to its socket @{}", address.name.sun_path + 1);
      return failure(call, errno) + " (it has ended, or this process is in another network namespace)";
    }
    failed = ask(connection.get(), keys, sender);
  }
  return failed;
}

std::string TakenDescriptors::ask(int connection, const std::vector<std::uint64_t>& keys, const Plug::Sender& sender) {
  if (!is_of_this_user(connection)) return "its socket is another user's";
  const std::size_t bytes = keys.size() * sizeof(keys[0]);
  const auto send_keys = [&] { return send(connection, keys.data(), bytes, MSG_NOSIGNAL); };
  if (repeated(send_keys) < 0) return failure("send to its socket", errno);
  const std::size_t before = descriptors_.size();
  DescriptorReply reply{};
  if (std::string failed = receive(connection, reply); !failed.empty()) return failed;
  CACHALOT_REQUIRE(
      reply != DescriptorReply::gone,
      "process {} has given up the CUDA memory that it shared: keep the tensor there until it is opened here",
      sender.process);
  if (reply == DescriptorReply::full) return "the sender may not open or send more files (ulimit -n)";
  if (descriptors_.size() - before == keys.size()) return "";
  return formatted("{} of {} descriptors arrived: this process may not open more files (ulimit -n)",
                   descriptors_.size() - before, keys.size());
}

// Adds the descriptors of a packet.
std::string TakenDescriptors::receive(int connection, DescriptorReply& reply) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  iovec text{.iov_base = &reply, .iov_len = sizeof(reply)};
  msghdr packet{};
  packet.msg_iov = &text;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  const ssize_t received = repeated([&] { return recvmsg(connection, &packet, MSG_CMSG_CLOEXEC); });
  if (received < 0 && errno == EAGAIN) return formatted("its socket has not answered for {} s", kReceiverPatienceS);
  if (received < 0) return failure("recvmsg from its socket", errno);
  if (received == 0) return "its socket refuses this process (another user)";
  for (cmsghdr* header = CMSG_FIRSTHDR(&packet); header != nullptr; header = CMSG_NXTHDR(&packet, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t before = descriptors_.size();
    const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
    descriptors_.resize(before + bytes / sizeof(int));
    std::memcpy(descriptors_.data() + before, CMSG_DATA(header), bytes);
  }
  return "";
}

// --- by pidfd_getfd -------------------------------------------------------------------------------------------------------

std::string TakenDescriptors::take_by_pidfd(const std::vector<SharedMemory::Handle*>& handles,
                                            const Plug::Sender& sender) {
  const auto reason = [&](const char* call) {
    const int error = errno;
    const char* const hint = error == EPERM ? " (another user, a container without ptrace, or kernel.yama.ptrace_scope)"
                             : error == ENOSYS ? " (it needs Linux 5.6)"
                                               : "";
    return failure(formatted("{} of process {}", call, sender.process), error) + hint;
  };
  const int process = static_cast<int>(syscall(SYS_pidfd_open, sender.process, 0));
  if (process < 0) return reason("pidfd_open");
  std::string failed;
  for (const SharedMemory::Handle* const handle : handles) {
    const int taken = static_cast<int>(syscall(SYS_pidfd_getfd, process, handle->shared.descriptor, 0));
    if (taken < 0) failed = reason("pidfd_getfd");
    if (taken < 0) break;
    descriptors_.push_back(taken);
  }
  close(process);
  return failed;
}

void TakenDescriptors::close_all() {
  for (const int descriptor : descriptors_) close(descriptor);
  descriptors_.clear();
}

}  // namespace cachalot
