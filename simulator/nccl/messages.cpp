#include "simulator/nccl/messages.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/process.h"
#include "simulator/nccl/nccl_calls.h"

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

// Why the ranks that have come cannot be a communicator; "" if they can.
std::string why_not(const std::vector<Join>& joins) {
  const Join& last = joins.back();
  for (const Join& other : joins) {
    if (&other == &last) break;
    if (other.ranks != last.ranks) {
      return formatted("rank {} says that the communicator has {} ranks, and rank {} says {}", other.rank, other.ranks,
                       last.rank, last.ranks);
    }
    if (other.rank == last.rank) return formatted("two callers are rank {} of the communicator", last.rank);
    if (other.member.device == last.member.device) {
      return formatted("Duplicate GPU detected: rank {} and rank {} both on CUDA device {}", other.rank, last.rank,
                       last.member.device);
    }
  }
  return "";
}

std::vector<Member> members_by_rank(const std::vector<Join>& joins) {
  std::vector<Member> members(joins.size());
  for (const Join& join : joins) members[static_cast<std::size_t>(join.rank)] = join.member;
  return members;
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

void MessageQueues::deliver(const QueueKey& key, Message message, bool is_empty) {
  const std::lock_guard lock(mutex_);
  if (forgotten_.contains({key.communicator, key.destination})) return;
  Queue& queue = queues_[key];
  queue.last_number = message.number;
  if (!is_empty) queue.messages.push_back(std::move(message));
  changed_.notify_all();
}

void MessageQueues::note_left(std::uint64_t communicator, int source, int destination) {
  const std::lock_guard lock(mutex_);
  if (forgotten_.contains({communicator, destination})) return;
  for (const Channel channel : {Channel::collectives, Channel::pairs})
    queues_[{communicator, channel, source, destination}].left = true;
  changed_.notify_all();
}

void MessageQueues::note_gone(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  gone_.insert(process);
  changed_.notify_all();
}

void MessageQueues::forget(std::uint64_t communicator, int destination) {
  const std::lock_guard lock(mutex_);
  forgotten_.insert({communicator, destination});
  std::erase_if(queues_, [&](const auto& entry) {
    return entry.first.communicator == communicator && entry.first.destination == destination;
  });
}

void MessageQueues::wake_all() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

MessageQueues::Outcome MessageQueues::take(const QueueKey& key, std::uint64_t number, const Endpoint& sender,
                                           const std::atomic<bool>& stop, std::chrono::steady_clock::time_point until,
                                           Message& message) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop) return Outcome::stopped;
    Queue& queue = queues_[key];
    while (!queue.messages.empty() && queue.messages.front().number < number) queue.messages.pop_front();
    if (!queue.messages.empty() && queue.messages.front().number == number) {
      message = std::move(queue.messages.front());
      queue.messages.pop_front();
      return Outcome::taken;
    }
    if (queue.last_number >= number) return Outcome::other_call;
    if (is_gone(queue, sender)) return Outcome::gone;
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) return Outcome::still_waiting;
  }
}

bool MessageQueues::may_arrive(const QueueKey& key, std::uint64_t number, const Endpoint& sender) {
  const std::lock_guard lock(mutex_);
  const Queue& queue = queues_[key];
  return queue.last_number >= number || !is_gone(queue, sender);
}

std::optional<Answer> Bootstrap::add(const Join& join) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = refused_.find(join.number); refused != refused_.end()) {
    Answer answer = refused->second;
    answer.to = {join};
    return answer;
  }
  std::vector<Join>& joins = waiting_[join.number];
  joins.push_back(join);
  Answer answer{.number = join.number, .reason = why_not(joins), .members = {}, .to = {}};
  if (!answer.reason.empty())
    answer.result = ncclInvalidUsage;
  else if (joins.size() < static_cast<std::size_t>(join.ranks))
    return std::nullopt;
  else
    answer.members = members_by_rank(joins);
  if (answer.result != ncclSuccess) refused_[join.number] = answer;
  answer.to = std::move(joins);
  waiting_.erase(join.number);
  return answer;
}

std::vector<Answer> Bootstrap::note_gone(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  std::vector<Answer> answers;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto gone = std::ranges::find(at->second, process, [](const Join& join) { return join.member.process; });
    if (gone == at->second.end()) {
      ++at;
      continue;
    }
    Answer answer{.number = at->first,
                  .result = ncclRemoteError,
                  .reason = formatted("the process of rank {} has ended before all ranks came", gone->rank),
                  .members = {},
                  .to = {}};
    refused_[at->first] = answer;
    answer.to = std::move(at->second);
    answers.push_back(std::move(answer));
    at = waiting_.erase(at);
  }
  return answers;
}

std::vector<char> pack(const Answer& answer) {
  const std::size_t bytes = answer.members.size() * sizeof(Member);
  std::vector<char> content(sizeof(answer.result) + bytes);
  std::memcpy(content.data(), &answer.result, sizeof(answer.result));
  if (bytes > 0) std::memcpy(content.data() + sizeof(answer.result), answer.members.data(), bytes);
  content.insert(content.end(), answer.reason.begin(), answer.reason.end());
  return content;
}

std::vector<Member> unpack_members(const std::vector<char>& content) {
  ncclResult_t result = ncclInternalError;
  if (content.size() < sizeof(result)) throw NcclError(result, "the bootstrap's answer is too short");
  std::memcpy(&result, content.data(), sizeof(result));
  const char* const rest = content.data() + sizeof(result);
  const std::size_t bytes = content.size() - sizeof(result);
  if (result != ncclSuccess) throw NcclError(result, std::string(rest, bytes));
  std::vector<Member> members(bytes / sizeof(Member));
  if (bytes > 0) std::memcpy(static_cast<void*>(members.data()), rest, members.size() * sizeof(Member));
  return members;
}

namespace {

std::atomic<Connections*> the_connections{nullptr};

}  // namespace

Connections& Connections::get() {
  static std::mutex making;
  const std::lock_guard lock(making);
  if (Connections* made = the_connections) return *made;
  auto* connections = new Connections;
  the_connections = connections;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  const BlockedSignals blocked;
  std::thread([connections] { connections->run(); }).detach();
  return *connections;
}

Connections::Connections()
    : endpoint_{random_number(), random_number()},
      listening_(listen_at(endpoint_)),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// A child that lives on must not keep the connections open: the others would not see that the parent has ended.
void Connections::before_fork() { the_connections.load()->mutex_.lock(); }
void Connections::after_fork_in_parent() { the_connections.load()->mutex_.unlock(); }
void Connections::after_fork_in_child() {
  Connections& connections = *the_connections.load();
  if (!std::exchange(connections.is_inherited_, true)) connections.close_all();
  connections.mutex_.unlock();
}

void Connections::close_all() {
  close(listening_);
  close(woken_);
  for (const auto& incoming : incoming_) close(incoming->socket);
  for (const auto& [process, outgoing] : outgoing_) {
    if (outgoing->socket >= 0) close(outgoing->socket);
  }
}

void Connections::join(const Endpoint& root, const Join& join) {
  const Header header{.kind = Kind::join, .bytes = sizeof(join)};
  write(root, header, &join);
}

void Connections::send(const Endpoint& process, const QueueKey& key, const Message& message, bool is_empty) {
  const auto& [content, kinds] = message.part;
  std::vector<char> payload = content;
  for (const auto kind : kinds) payload.push_back(static_cast<char>(kind));
  const Header header{is_empty ? Kind::empty_message : Kind::message,
                      key,
                      message.number,
                      message.signature,
                      kinds.empty() ? 0U : 1U,
                      payload.size()};
  write(process, header, payload.data());
}

void Connections::leave(const Endpoint& process, std::uint64_t communicator, int source, int destination) {
  const Header header{.kind = Kind::left, .key = {communicator, Channel::collectives, source, destination}};
  write(process, header, nullptr);
}

std::shared_ptr<Connections::Outgoing> Connections::connection_to(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  if (const auto known = outgoing_.find(process); known != outgoing_.end()) return known->second;
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->socket = connect_to(process);  // may throw: then there is no connection
  outgoing_.emplace(process, outgoing);
  if (outgoing->socket < 0) {
    queues_.note_gone(process);
    return outgoing;
  }
  const Header hello{.kind = Kind::hello, .bytes = sizeof(endpoint_)};
  write_all(outgoing->socket, &hello, sizeof(hello));
  write_all(outgoing->socket, &endpoint_, sizeof(endpoint_));
  eventfd_write(woken_, 1);
  return outgoing;
}

void Connections::write(const Endpoint& process, const Header& header, const void* content) {
  if (process == endpoint_) {
    Endpoint self = endpoint_;
    return receive(header, static_cast<const char*>(content), self);
  }
  const std::shared_ptr<Outgoing> outgoing = connection_to(process);
  const std::lock_guard lock(outgoing->writing);
  if (outgoing->socket < 0 || !write_all(outgoing->socket, &header, sizeof(header))) return;
  write_all(outgoing->socket, content, header.bytes);  // that the process has ended is seen by the thread
}

void Connections::receive(const Header& header, const char* content, Endpoint& sender) {
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
    case Kind::message:
    case Kind::empty_message: {
      const std::size_t kinds = header.has_kinds != 0 ? bytes / 2 : 0;
      Part part{{content, content + (bytes - kinds)}, std::vector<KnownContent::Kind>(kinds)};
      std::transform(content + (bytes - kinds), content + bytes, part.kinds.begin(),
                     [](char kind) { return static_cast<KnownContent::Kind>(kind); });
      return queues_.deliver(header.key, {header.number, header.signature, std::move(part)},
                             header.kind == Kind::empty_message);
    }
    case Kind::left:
      return queues_.note_left(header.key.communicator, header.key.source, header.key.destination);
  }
}

void Connections::answer(const Answer& answer) {
  const Message message{1, 0, {pack(answer)}};
  for (const Join& join : answer.to)
    send(join.member.process, {answer.number, Channel::bootstrap, 0, join.rank}, message, false);
}

void Connections::note_gone(const Endpoint& process) {
  queues_.note_gone(process);
  for (const Answer& each : bootstrap_.note_gone(process)) answer(each);
}

// Runs the thread. Data that a process wrote before it ended is read before it counts as gone.
void Connections::run() {
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
void Connections::wait_for_input(std::vector<Endpoint>& ended) {
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

void Connections::accept_all() {
  for (int made = accept_from(listening_); made >= 0; made = accept_from(listening_)) {
    auto incoming = std::make_unique<Incoming>();
    incoming->socket = made;
    const std::lock_guard lock(mutex_);
    incoming_.push_back(std::move(incoming));
  }
}

// Returns false if the other side has closed it, and all its data was taken.
bool Connections::read_from(Incoming& incoming) {
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

void Connections::take_messages(Incoming& incoming) {
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
