// Messages between ranks: the sockets, the message queues of a process, the meeting point of new communicators
// (Bootstrap), and over all of them the process's Connections.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "simulator/nccl/nccl_abi.h"
#include "simulator/state/content.h"

namespace cachalot::simulator::nccl {

// Connections between processes: Unix sockets whose names are in Linux's abstract namespace, which has no files. The kernel
// closes them when a process ends, however it ends, so that nothing is left behind and the other processes see it.

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

// Returns a connection, or -1 if no process listens there.
int connect_to(const Endpoint& endpoint);

// Returns whether everything was written: if not, the other process is gone. Blocks while the other reads nothing.
bool write_all(int socket, const void* data, std::size_t bytes);

// Collectives of a communicator have one order, sends and receives between two of its ranks another.
enum class Channel : std::uint32_t { bootstrap, collectives, pairs };

struct QueueKey {
  std::uint64_t communicator = 0;
  Channel channel = Channel::collectives;
  int source = 0;
  int destination = 0;
  friend bool operator<(const QueueKey& a, const QueueKey& b) {
    return std::tie(a.communicator, a.channel, a.source, a.destination) <
           std::tie(b.communicator, b.channel, b.source, b.destination);
  }
};

// The data that one rank gives to another.
struct Part {
  std::vector<char> content;
  // The kind of each byte, as a GPU would have it (simulator/state/content.h); empty: all of them are known.
  std::vector<KnownContent::Kind> kinds = {};
};

struct Message {
  std::uint64_t number = 0;
  std::uint64_t signature = 0;  // of the call that sent it
  Part part;
};

// The messages that other ranks have sent and that were not taken yet: a queue for each rank that sends to a rank of this
// process. Messages of a queue are numbered from 1, in the order of the sender's calls. Thread-safe.
class MessageQueues {
 public:
  // A message has arrived. An empty one, of a call that moves nothing, is only counted.
  void deliver(const QueueKey& key, Message message, bool is_empty);
  // The rank sends no more: it has left the communicator.
  void note_left(std::uint64_t communicator, int source, int destination);
  // The process sends no more: it has ended.
  void note_gone(const Endpoint& process);
  // No message to this rank of the communicator will be taken any more.
  void forget(std::uint64_t communicator, int destination);
  // Lets waiting threads read their `stop` again.
  void wake_all();

  enum class Outcome : std::uint8_t { taken, other_call, gone, stopped, still_waiting };
  // Takes message `number` of the queue into `message`; blocks until it has arrived, or never will, or `until`.
  // other_call: the sender made that call without sending, or has sent another size (a later number is there).
  Outcome take(const QueueKey& key, std::uint64_t number, const Endpoint& sender, const std::atomic<bool>& stop,
               std::chrono::steady_clock::time_point until, Message& message);
  // Returns whether message `number` has arrived or may still do.
  bool may_arrive(const QueueKey& key, std::uint64_t number, const Endpoint& sender);

 private:
  struct Queue {
    std::deque<Message> messages;
    std::uint64_t last_number = 0;  // that has arrived
    bool left = false;
  };

  bool is_gone(const Queue& queue, const Endpoint& sender) const { return queue.left || gone_.contains(sender); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<QueueKey, Queue> queues_;
  std::set<Endpoint> gone_;
  std::set<std::pair<std::uint64_t, int>> forgotten_;
};

// The ranks of new communicators meet in the process that made the unique id: each tells it where it can be reached, and
// gets the list of all when the last has come. Thread-safe.

// The place of a rank.
struct Member {
  Endpoint process;
  int device = 0;  // by its number on the machine, whatever CUDA_VISIBLE_DEVICES makes of it
};

// The content of ncclUniqueId.
struct UniqueId {
  char magic[8] = {'c', 'a', 'c', 'h', 'a', 'l', 'o', 't'};
  Endpoint root;
  std::uint64_t number = 0;  // of the communicator
};

struct Join {
  std::uint64_t number = 0;
  int ranks = 0;
  int rank = 0;
  Member member;
};

// The answer to every rank of a communicator: its members, or why there is none.
struct Answer {
  std::uint64_t number = 0;
  ncclResult_t result = ncclSuccess;
  std::string reason;
  std::vector<Member> members;  // by rank, if there is no error
  std::vector<Join> to;
};

class Bootstrap {
 public:
  // Returns the answer when it can be given: the last rank has come, or this one does not fit.
  std::optional<Answer> add(const Join& join);
  // A process has ended: returns the answers for the communicators that it was to be in.
  std::vector<Answer> note_gone(const Endpoint& process);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<Join>> waiting_;
  std::map<std::uint64_t, Answer> refused_;  // by number: ranks that come later get the same answer
};

// An answer as the content of a message.
std::vector<char> pack(const Answer& answer);
// Returns the members. Throws the NcclError that the answer is.
std::vector<Member> unpack_members(const std::vector<char>& content);

// The process's connections to the others. A thread reads whatever arrives, at once, so that a sender never waits for long:
// sends are buffered. The thread also sees when another process has ended. Thread-safe.
class Connections {
 public:
  // Returns the process's connections; the first call opens them. They are never destroyed. Throws NcclError. Must not be
  // called in a forked child.
  static Connections& get();

  const Endpoint& endpoint() const { return endpoint_; }
  MessageQueues& queues() { return queues_; }

  // Tells the root of an id that a rank has come. The answer is a message of the channel bootstrap, from 0 to the rank.
  void join(const Endpoint& root, const Join& join);
  // Sends to a rank in the process. `is_empty`: only that there was a call. To a process that has ended nothing is sent.
  void send(const Endpoint& process, const QueueKey& key, const Message& message, bool is_empty);
  // Tells the rank `destination` that `source` sends no more.
  void leave(const Endpoint& process, std::uint64_t communicator, int source, int destination);

 private:
  enum class Kind : std::uint32_t { hello, join, message, empty_message, left };
  // In front of the content of each message.
  struct Header {
    Kind kind = Kind::hello;
    QueueKey key = {};
    std::uint64_t number = 0;
    std::uint64_t signature = 0;
    std::uint64_t has_kinds = 0;  // behind the content are the kinds of its bytes
    std::uint64_t bytes = 0;
  };
  struct Incoming {
    int socket = -1;
    Endpoint sender;
    std::vector<char> input;
  };
  struct Outgoing {
    std::mutex writing;
    int socket = -1;  // -1: the process is gone
  };

  Connections();
  std::shared_ptr<Outgoing> connection_to(const Endpoint& process);
  void write(const Endpoint& process, const Header& header, const void* content);
  void receive(const Header& header, const char* content, Endpoint& sender);
  void answer(const Answer& answer);
  void note_gone(const Endpoint& process);

  // The functions of its thread.
  [[noreturn]] void run();
  void wait_for_input(std::vector<Endpoint>& ended);
  void accept_all();
  bool read_from(Incoming& incoming);
  void take_messages(Incoming& incoming);

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  void close_all();

  const Endpoint endpoint_;
  const int listening_;
  const int woken_;  // an eventfd: there is another connection to look at
  MessageQueues queues_;
  Bootstrap bootstrap_;
  bool is_inherited_ = false;  // in a forked child, which has closed its copies
  std::mutex mutex_;           // guards the two below, except the content of an Outgoing
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::map<Endpoint, std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace cachalot::simulator::nccl
