// What other ranks have sent and nobody has taken yet: a box for each rank that sends to a rank of this process. Letters of a
// box are numbered from 1, in the order of the sender's calls. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "simulator/content.h"
#include "simulator/nccl/wire.h"

namespace cachalot::simulator::nccl {

// Collectives of a communicator have one order, sends and receives between two of its ranks another.
enum class Channel : std::uint32_t { bootstrap, collectives, pairs };

struct BoxKey {
  std::uint64_t communicator = 0;
  Channel channel = Channel::collectives;
  int source = 0;
  int destination = 0;
  friend bool operator<(const BoxKey& a, const BoxKey& b) {
    return std::tie(a.communicator, a.channel, a.source, a.destination) <
           std::tie(b.communicator, b.channel, b.source, b.destination);
  }
};

// What one rank gives to another.
struct Part {
  std::vector<char> content;
  // Of each byte, as a GPU would have it (simulator/content.h); empty: all of them are known.
  std::vector<KnownContent::Kind> kinds = {};
};

struct Letter {
  std::uint64_t number = 0;
  std::uint64_t signature = 0;  // of the call that sent it
  Part part;
};

class Mailboxes {
 public:
  // A letter has arrived. An empty one, of a call that moves nothing, is only counted.
  void deliver(const BoxKey& key, Letter letter, bool is_empty);
  // The rank sends no more: it has left the communicator.
  void note_left(std::uint64_t communicator, int source, int destination);
  // The process sends no more: it has ended.
  void note_gone(const Endpoint& process);
  // No letter to this rank of the communicator will be taken any more.
  void forget(std::uint64_t communicator, int destination);
  // Those who wait look at their `stop` again.
  void wake_all();

  enum class Outcome : std::uint8_t { taken, other_call, gone, stopped, still_waiting };
  // Takes letter `number` of the box into `letter`; blocks until it has arrived, or never will, or `until`.
  // other_call: the sender made that call without sending, or has sent another size (a later number is there).
  Outcome take(const BoxKey& key, std::uint64_t number, const Endpoint& sender, const std::atomic<bool>& stop,
               std::chrono::steady_clock::time_point until, Letter& letter);
  // Returns whether letter `number` has arrived or may still do.
  bool may_arrive(const BoxKey& key, std::uint64_t number, const Endpoint& sender);

 private:
  struct Box {
    std::deque<Letter> letters;
    std::uint64_t last_number = 0;  // that has arrived
    bool left = false;
  };

  bool is_gone(const Box& box, const Endpoint& sender) const { return box.left || gone_.contains(sender); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<BoxKey, Box> boxes_;
  std::set<Endpoint> gone_;
  std::set<std::pair<std::uint64_t, int>> forgotten_;
};

}  // namespace cachalot::simulator::nccl
