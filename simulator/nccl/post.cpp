#include "simulator/nccl/post.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "simulator/nccl/errors.h"

namespace cachalot::simulator::nccl {
namespace {

std::atomic<Post*> the_post{nullptr};

}  // namespace

Post& Post::get() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (Post* made = the_post) return *made;
  auto* post = new Post;
  the_post = post;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  const BlockedSignals blocked;
  std::thread([post] { post->run(); }).detach();
  return *post;
}

Post::Post()
    : endpoint_{random_number(), random_number()},
      listening_(listen_at(endpoint_)),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// A child that lives on must not keep the connections open: the others would not see that the parent has ended.
void Post::before_fork() { the_post.load()->mutex_.lock(); }
void Post::after_fork_in_parent() { the_post.load()->mutex_.unlock(); }
void Post::after_fork_in_child() {
  Post& post = *the_post.load();
  if (!std::exchange(post.is_inherited_, true)) post.close_all();
  post.mutex_.unlock();
}

void Post::close_all() {
  close(listening_);
  close(woken_);
  for (const auto& incoming : incoming_) close(incoming->socket);
  for (const auto& [process, outgoing] : outgoing_) {
    if (outgoing->socket >= 0) close(outgoing->socket);
  }
}

void Post::join(const Endpoint& root, const Join& join) {
  const Header header{.kind = Kind::join, .bytes = sizeof(join)};
  write(root, header, &join);
}

void Post::send(const Endpoint& process, const BoxKey& key, const Letter& letter, bool is_empty) {
  const auto& [content, kinds] = letter.part;
  std::vector<char> message = content;
  for (const auto kind : kinds) message.push_back(static_cast<char>(kind));
  const Header header{is_empty ? Kind::empty_letter : Kind::letter,
                      key,
                      letter.number,
                      letter.signature,
                      kinds.empty() ? 0U : 1U,
                      message.size()};
  write(process, header, message.data());
}

void Post::leave(const Endpoint& process, std::uint64_t communicator, int source, int destination) {
  const Header header{.kind = Kind::left, .key = {communicator, Channel::collectives, source, destination}};
  write(process, header, nullptr);
}

std::shared_ptr<Post::Outgoing> Post::connection_to(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  if (const auto known = outgoing_.find(process); known != outgoing_.end()) return known->second;
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->socket = connect_to(process);  // may throw: then there is no connection
  outgoing_.emplace(process, outgoing);
  if (outgoing->socket < 0) {
    mailboxes_.note_gone(process);
    return outgoing;
  }
  const Header hello{.kind = Kind::hello, .bytes = sizeof(endpoint_)};
  write_all(outgoing->socket, &hello, sizeof(hello));
  write_all(outgoing->socket, &endpoint_, sizeof(endpoint_));
  eventfd_write(woken_, 1);
  return outgoing;
}

void Post::write(const Endpoint& process, const Header& header, const void* content) {
  if (process == endpoint_) {
    Endpoint self = endpoint_;
    return receive(header, static_cast<const char*>(content), self);
  }
  const std::shared_ptr<Outgoing> outgoing = connection_to(process);
  const std::lock_guard lock(outgoing->writing);
  if (outgoing->socket < 0 || !write_all(outgoing->socket, &header, sizeof(header))) return;
  write_all(outgoing->socket, content, header.bytes);  // that the process has ended is seen by the thread
}

void Post::receive(const Header& header, const char* content, Endpoint& sender) {
  const std::size_t bytes = header.bytes;
  switch (header.kind) {
    case Kind::hello:
      std::memcpy(&sender, content, std::min(bytes, sizeof(sender)));
      return;
    case Kind::join: {
      Join join;
      std::memcpy(static_cast<void*>(&join), content, std::min(bytes, sizeof(join)));
      if (const auto answer_to_all = bootstrap_.add(join)) answer(*answer_to_all);
      return;
    }
    case Kind::letter:
    case Kind::empty_letter: {
      const std::size_t kinds = header.has_kinds != 0 ? bytes / 2 : 0;
      Part part{{content, content + (bytes - kinds)}, std::vector<KnownContent::Kind>(kinds)};
      std::transform(content + (bytes - kinds), content + bytes, part.kinds.begin(),
                     [](char kind) { return static_cast<KnownContent::Kind>(kind); });
      return mailboxes_.deliver(header.key, {header.number, header.signature, std::move(part)},
                                header.kind == Kind::empty_letter);
    }
    case Kind::left:
      return mailboxes_.note_left(header.key.communicator, header.key.source, header.key.destination);
  }
}

void Post::answer(const Answer& answer) {
  const Letter letter{1, 0, {pack(answer)}};
  for (const Join& join : answer.to)
    send(join.member.process, {answer.number, Channel::bootstrap, 0, join.rank}, letter, false);
}

void Post::note_gone(const Endpoint& process) {
  mailboxes_.note_gone(process);
  for (const Answer& each : bootstrap_.note_gone(process)) answer(each);
}

// What a process wrote before it ended is read before it counts as gone.
void Post::run() {
  for (;;) {
    std::vector<Endpoint> ended;
    wait_for_input(ended);
    accept_all();
    for (std::size_t at = 0; at < incoming_.size();) {
      if (read_from(*incoming_[at])) {
        ++at;
        continue;
      }
      ended.push_back(incoming_[at]->sender);
      const std::lock_guard lock(mutex_);
      close(incoming_[at]->socket);
      incoming_.erase(incoming_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    for (const Endpoint& process : ended) note_gone(process);
  }
}

// Blocks until there is something to read. Adds the processes that no longer listen to `ended`.
void Post::wait_for_input(std::vector<Endpoint>& ended) {
  std::vector<pollfd> polled{{woken_, POLLIN, 0}, {listening_, POLLIN, 0}};
  std::vector<std::pair<Endpoint, std::shared_ptr<Outgoing>>> watched;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [process, outgoing] : outgoing_) {
      if (outgoing->socket >= 0) watched.emplace_back(process, outgoing);
    }
    for (const auto& [process, outgoing] : watched) polled.push_back({outgoing->socket, 0, 0});
    for (const auto& incoming : incoming_) polled.push_back({incoming->socket, POLLIN, 0});
  }
  while (poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
  }
  eventfd_t ignored = 0;
  eventfd_read(woken_, &ignored);
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if ((polled[2 + i].revents & (POLLHUP | POLLERR)) == 0) continue;
    const std::lock_guard lock(mutex_);
    const std::lock_guard writing(watched[i].second->writing);
    close(std::exchange(watched[i].second->socket, -1));
    ended.push_back(watched[i].first);
  }
}

void Post::accept_all() {
  for (int made = accept_from(listening_); made >= 0; made = accept_from(listening_)) {
    auto incoming = std::make_unique<Incoming>();
    incoming->socket = made;
    const std::lock_guard lock(mutex_);
    incoming_.push_back(std::move(incoming));
  }
}

// False: the other side has closed it, and all it wrote was taken.
bool Post::read_from(Incoming& incoming) {
  constexpr std::size_t kPartBytes = std::size_t{64} << 10;
  for (;;) {
    const std::size_t before = incoming.input.size();
    incoming.input.resize(before + kPartBytes);
    const ssize_t read = recv(incoming.socket, incoming.input.data() + before, kPartBytes, 0);
    incoming.input.resize(before + static_cast<std::size_t>(std::max<ssize_t>(read, 0)));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (read == 0) return false;
    take_messages(incoming);
  }
}

void Post::take_messages(Incoming& incoming) {
  std::vector<char>& input = incoming.input;
  std::size_t taken = 0;
  Header header;
  while (input.size() - taken >= sizeof(header)) {
    std::memcpy(static_cast<void*>(&header), input.data() + taken, sizeof(header));
    if (input.size() - taken - sizeof(header) < header.bytes) break;
    receive(header, input.data() + taken + sizeof(header), incoming.sender);
    taken += sizeof(header) + header.bytes;
  }
  input.erase(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(taken));
}

}  // namespace cachalot::simulator::nccl
