// The process's connections to the others. A thread reads whatever arrives, at once, so that a sender never waits for long:
// sends are buffered. The thread also sees when another process has ended. Thread-safe. New communicators begin here (Bootstrap).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "simulator/nccl/abi.h"
#include "simulator/nccl/mailboxes.h"
#include "simulator/nccl/wire.h"

namespace cachalot::simulator::nccl {

// The ranks of new communicators meet in the process that made the unique id: each tells it where it can be reached, and
// gets the list of all when the last has come. Thread-safe.

// Where a rank is.
struct Member {
  Endpoint process;
  int device = 0;  // by its number on the machine, whatever CUDA_VISIBLE_DEVICES makes of it
};

// What ncclUniqueId holds.
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

// An answer as the content of a letter.
std::vector<char> pack(const Answer& answer);
// Returns the members. Throws the NcclError that the answer is.
std::vector<Member> unpack_members(const std::vector<char>& content);

class Post {
 public:
  // The process's, which the first call makes. Never destroyed. Throws NcclError. Not for a forked child.
  static Post& get();

  const Endpoint& endpoint() const { return endpoint_; }
  Mailboxes& mailboxes() { return mailboxes_; }

  // Tells the root of an id that a rank has come. The answer is a letter of the channel bootstrap, from 0 to the rank.
  void join(const Endpoint& root, const Join& join);
  // Sends to a rank in the process. `is_empty`: only that there was a call. To a process that has ended nothing is sent.
  void send(const Endpoint& process, const BoxKey& key, const Letter& letter, bool is_empty);
  // Tells the rank `destination` that `source` sends no more.
  void leave(const Endpoint& process, std::uint64_t communicator, int source, int destination);

 private:
  enum class Kind : std::uint32_t { hello, join, letter, empty_letter, left };
  // In front of the content of each message.
  struct Header {
    Kind kind = Kind::hello;
    BoxKey key = {};
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

  Post();
  std::shared_ptr<Outgoing> connection_to(const Endpoint& process);
  void write(const Endpoint& process, const Header& header, const void* content);
  void receive(const Header& header, const char* content, Endpoint& sender);
  void answer(const Answer& answer);
  void note_gone(const Endpoint& process);

  // The thread's.
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
  Mailboxes mailboxes_;
  Bootstrap bootstrap_;
  bool is_inherited_ = false;  // in a forked child, which has closed its copies
  std::mutex mutex_;           // guards the two below, but for what is in an Outgoing
  std::vector<std::unique_ptr<Incoming>> incoming_;
  std::map<Endpoint, std::shared_ptr<Outgoing>> outgoing_;
};

}  // namespace cachalot::simulator::nccl
