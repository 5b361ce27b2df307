// One rank of a communicator: where the others are, what it has sent them and what it waits for.
//
// With absent_ranks:1 of CACHALOT_SIM there are no others: nothing is sent, and nothing comes.
//
// As in NCCL, only `abort` and `state` may be called while another thread uses the communicator.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "simulator/models/context_costs.h"
#include "simulator/nccl/messages.h"
#include "simulator/nccl/nccl_abi.h"
#include "simulator/state/calls.h"

namespace cachalot::simulator::nccl {

// The device memory that NCCL takes for a communicator, and the time of it: an estimate, from how NCCL 2.28.9 allocates
// (communicator.cpp names the files); and the memory itself.
//
// * When the communicator is made: tables of the other ranks for each channel, and the communicator itself.
// * When an algorithm is first used, its connections (NCCL_RUNTIME_CONNECT, the default since 2.22): for each channel, and each
//   rank that this one receives from, a buffer with a part for each protocol: Simple (NCCL_BUFFSIZE), LL and LL128. These are what
//   ncclCommSuspend gives back.
//
// The number of channels depends on links that are not simulated: see `channels`. simulator/README.md, "NCCL", has the spread.

// The user's limits: minCTAs and maxCTAs of the configuration, NCCL_MIN_CTAS and NCCL_MAX_CTAS (or _NCHANNELS). 0: none.
struct ChannelLimits {
  int least = 0;
  int most = 0;
};

// Reads the environment, which goes before the configuration's values, as in NCCL.
ChannelLimits limits_of(int config_least, int config_most);

// Returns the spread of `bytes` that a device was charged with: from half to twice of them.
Spread spread_of(std::size_t bytes);

// The device memory of one communicator, which grows when it is first used in a way. Not thread-safe, as a
// communicator is not.
class ChannelMemory {
 public:
  // Each takes memory of the device, unless it was taken before, and throws ncclUnhandledCudaError if there is none.
  void make(int device, int ranks, const ChannelLimits& limits);
  void connect_ring() { connect(kRing, channels_); }
  void connect_tree() { connect(kTree, channels_); }
  void connect_from(int peer) { connect(peer, channels_of_pair_); }

  ChannelMemory() = default;
  ~ChannelMemory() { free_all(); }
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;
  void free_all();

  // Return the bytes that the communicator keeps while it lives, and those of buffers, also while they are suspended.
  std::size_t lasting_bytes() const { return lasting_bytes_; }
  std::size_t buffer_bytes() const;
  // Gives the buffers back, and takes them again: NCCL keeps their content and their addresses. Throw ncclInvalidUsage if they are
  // suspended already, or are not; the second ncclUnhandledCudaError, and nothing is taken, if the memory is not there.
  void suspend();
  void resume();
  bool is_suspended() const { return is_suspended_; }

 private:
  struct Buffer {
    void* start = nullptr;  // null while it is suspended
    std::size_t bytes = 0;
  };

  // Connections by what they are for: a rank that sends to this one, or an algorithm.
  static constexpr int kRing = -1;
  static constexpr int kTree = -2;

  void connect(int what, int channels);
  void* take(std::size_t bytes);
  void give_back(void*& start) noexcept;

  int device_ = 0;
  int channels_ = 0;
  int channels_of_pair_ = 0;
  std::set<int> connected_;
  void* lasting_ = nullptr;
  std::size_t lasting_bytes_ = 0;
  std::vector<Buffer> buffers_;
  bool is_suspended_ = false;
};

// Memory that the program has registered with a communicator. NCCL keeps the pages that are behind the addresses when they are
// registered. Other pages there later are a mistake that it does not see, and that the simulator tells. Not thread-safe, as a
// communicator is not.
class RegisteredMemory {
 public:
  // Returns the handle. Takes the process's lock. Throws NcclError.
  void* add(const void* buffer, std::size_t bytes);
  // Both throw ncclInvalidArgument for another handle.
  void remove(const void* handle);
  void* begin_of(const void* handle) const;
  // Throws ncclInvalidUsage if an address lies in registered memory that has other pages now, or none. Takes the process's lock.
  void require_unchanged(const char* call, std::initializer_list<const void*> addresses) const;

 private:
  struct Range {
    Address begin = 0;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> pages;  // the physical byte at the begin, and at each 2 MiB behind it
  };

  static std::vector<std::uint64_t> pages_of(Process& process, Address begin, std::size_t bytes);

  std::map<const void*, Range> ranges_;
};

struct Reduction {
  ncclRedOp_t op = ncclSum;
  std::vector<char> factor;  // of ncclRedOpCreatePreMulSum, an element; empty: none. `op` is ncclSum then
};

// The kind of a call, as the ranks compare it: all must make the same calls in the same order.
enum class CallKind : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  all_to_all,
  gather,
  scatter,
  send_and_receive,
  split,
};

struct CallId {
  CallKind kind = CallKind::all_reduce;
  std::uint64_t bytes = 0;  // that one rank gives, or each gives to each
  std::uint64_t packed() const { return bytes << 8 | static_cast<std::uint64_t>(kind); }
};

class Communicator {
 public:
  // On the thread's device. Throws NcclError. A null configuration is the default one.
  Communicator(int size, int rank, const ncclConfig_t* config);
  // Tells the others, and gives the memory back.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Takes the members, takes memory and connects. The communicator can be used from then on.
  void open(std::uint64_t id, std::vector<Member> members);

  std::uint64_t id() const { return id_; }
  int size() const { return size_; }
  int rank() const { return rank_; }
  bool are_others_absent() const { return are_others_absent_; }
  bool is_absent(int peer) const { return are_others_absent_ && peer != rank_; }
  int device() const { return device_; }
  const std::vector<Member>& members() const { return members_; }
  // This process, with the device's number on the machine.
  Member own_member() const;
  ChannelMemory& memory() { return memory_; }
  const ChannelMemory& memory() const { return memory_; }
  RegisteredMemory& registered() { return registered_; }

  // Numbers of calls, from 1 on.
  std::uint64_t next_collective() { return ++collectives_; }
  std::uint64_t next_to(int peer) { return ++sent_[peer]; }
  std::uint64_t next_from(int peer) { return ++received_[peer]; }
  std::uint64_t next_child() { return ++children_; }

  // Blocks never for long: what the peer has not received is buffered.
  void send(int peer, Channel channel, std::uint64_t number, const CallId& call, Part part);
  // Sends, and expects from the peer, that the call was made: its data is not moved.
  void send_nothing(int peer, Channel channel, std::uint64_t number);
  void expect_nothing(int peer, Channel channel, std::uint64_t number);
  // Blocks until the peer has made its call number `number`, which must be this one. Throws ncclRemoteError when the peer is
  // gone, ncclInvalidUsage when it has called something else, and ncclInternalError when this communicator was aborted.
  Part receive(int peer, Channel channel, std::uint64_t number, const CallId& call);
  // Tells the bootstrap of the id that this rank has come.
  void join(const UniqueId& id);
  // Blocks for the answer of the bootstrap `number`.
  std::vector<Member> receive_members(const Endpoint& root, std::uint64_t number);

  // Ends the waits of other threads.
  void abort();
  // Returns the state as ncclCommGetAsyncError: ncclRemoteError if an expected message will never come.
  ncclResult_t state();

  // Operators of ncclRedOpCreatePreMulSum. Both throw ncclInvalidArgument for an invalid one.
  ncclRedOp_t add_operator(std::vector<char> factor);
  void remove_operator(ncclRedOp_t op);
  Reduction reduction(ncclRedOp_t op) const;

 private:
  struct Expected {
    QueueKey key;
    std::uint64_t number = 0;
  };

  Message wait(const QueueKey& key, std::uint64_t number, const Endpoint& sender, const std::string& whom);
  [[noreturn]] void fail(ncclResult_t code, const std::string& text);
  void leave() noexcept;
  const Endpoint& process_of(int peer) const { return members_[static_cast<std::size_t>(peer)].process; }

  const int size_;
  const int rank_;
  int device_ = 0;
  bool are_others_absent_ = false;
  ChannelLimits limits_;
  std::uint64_t id_ = 0;
  std::vector<Member> members_;
  ChannelMemory memory_;
  RegisteredMemory registered_;
  std::uint64_t collectives_ = 0;
  std::uint64_t children_ = 0;
  std::map<int, std::uint64_t> sent_;
  std::map<int, std::uint64_t> received_;
  std::map<int, std::vector<char>> factors_;
  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> state_{ncclSuccess};
  std::mutex expected_mutex_;
  std::map<QueueKey, std::uint64_t> expected_;  // the last number, of calls that are not waited for
};

// The communicators that the program has handles of. Both throw ncclInvalidArgument for another handle.
ncclComm_t publish(std::shared_ptr<Communicator> communicator);
std::shared_ptr<Communicator> find(ncclComm_t handle);
std::shared_ptr<Communicator> withdraw(ncclComm_t handle);

}  // namespace cachalot::simulator::nccl
