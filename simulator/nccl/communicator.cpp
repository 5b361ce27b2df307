#include "simulator/nccl/communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "simulator/end_of_process.h"
#include "simulator/nccl/nccl_calls.h"
#include "simulator/report.h"

namespace cachalot::simulator::nccl {
namespace {

constexpr std::array<const char*, 10> kCallNames{
    "ncclAllReduce", "ncclReduce", "ncclReduceScatter", "ncclBroadcast",         "ncclAllGather",
    "ncclAlltoAll",  "ncclGather", "ncclScatter",       "ncclSend and ncclRecv", "ncclCommSplit"};

std::string call_text(std::uint64_t packed) {
  const std::size_t kind = std::min<std::size_t>(packed & 0xff, kCallNames.size() - 1);
  return formatted("{} of {} bytes", kCallNames[kind], packed >> 8);
}

// The program's handles. Never destroyed: static destructors of the program still call.
struct Handles {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Communicator>> communicators;
};
Handles& handles() {
  static auto& handles = *new Handles;
  return handles;
}

[[noreturn]] void refuse_handle() { throw NcclError(ncclInvalidArgument, "not a communicator, or one that is gone"); }

}  // namespace

Communicator::Communicator(int size, int rank, const ncclConfig_t* config) : size_(size), rank_(rank) {
  if (size < 1 || rank < 0 || rank >= size)
    throw NcclError(ncclInvalidArgument, formatted("invalid rank requested: {} of {} ranks", rank, size));
  const ncclConfig_t unset{0, 0, 0, kNcclUndefined, kNcclUndefined, kNcclUndefined, kNcclUndefined};
  if (config && config->magic != kNcclConfigMagic)
    throw NcclError(ncclInvalidArgument, "the ncclConfig_t was not initialized with NCCL_CONFIG_INITIALIZER");
  const ncclConfig_t& used = config ? *config : unset;
  limits_ = limits_of(used.minCTAs, used.maxCTAs);
  on_process("cudaGetDevice", [&](Process& process) {
    device_ = process.contexts().current().ordinal;
    are_others_absent_ = process.config().are_ranks_absent;
  });
}

Communicator::~Communicator() { leave(); }

Member Communicator::own_member() const {
  Member member{Post::get().endpoint(), device_};
  on_process("cudaGetDevice", [&](Process& process) {
    member.device = process.config().physical_devices[static_cast<std::size_t>(device_)];
  });
  return member;
}

// The empty letter is what opens the connection, over which a rank sees that another has ended.
void Communicator::open(std::uint64_t id, std::vector<Member> members) {
  id_ = id;
  members_ = std::move(members);
  memory_.make(device_, size_, limits_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) send_nothing(peer, Channel::collectives, 0);
  }
}

void Communicator::send(int peer, Channel channel, std::uint64_t number, const CallId& call, Part part) {
  if (is_absent(peer)) return;
  Post::get().send(process_of(peer), {id_, channel, rank_, peer}, {number, call.packed(), std::move(part)}, false);
}

void Communicator::send_nothing(int peer, Channel channel, std::uint64_t number) {
  if (is_absent(peer)) return;
  Post::get().send(process_of(peer), {id_, channel, rank_, peer}, {number, 0, Part{}}, true);
}

void Communicator::expect_nothing(int peer, Channel channel, std::uint64_t number) {
  if (is_absent(peer)) return;
  const std::lock_guard lock(expected_mutex_);
  expected_[{id_, channel, peer, rank_}] = number;
}

void Communicator::fail(ncclResult_t code, const std::string& text) {
  state_ = code;
  throw NcclError(code, text);
}

Letter Communicator::wait(const BoxKey& key, std::uint64_t number, const Endpoint& sender, const std::string& whom) {
  using Outcome = Mailboxes::Outcome;
  constexpr std::chrono::seconds kPatience{60};
  Letter letter;
  for (;;) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    switch (Post::get().mailboxes().take(key, number, sender, aborted_, until, letter)) {
      case Outcome::taken:
        return letter;
      case Outcome::other_call:
        fail(ncclInvalidUsage,
             formatted("rank {} and {} have made different calls: all ranks of a communicator must make "
                       "the same calls in the same order",
                       rank_, whom));
      case Outcome::gone:
        fail(ncclRemoteError,
             formatted("rank {} waits for {}, which is gone: its process has ended, or it has left the "
                       "communicator",
                       rank_, whom));
      case Outcome::stopped:
        fail(ncclInternalError, formatted("the communicator of rank {} was aborted", rank_));
      case Outcome::still_waiting:
        note_once(formatted("NCCL: rank {} of {} has waited a minute for {}", rank_, size_, whom));
    }
  }
}

Part Communicator::receive(int peer, Channel channel, std::uint64_t number, const CallId& call) {
  Letter letter = wait({id_, channel, peer, rank_}, number, process_of(peer), formatted("rank {}", peer));
  if (letter.signature != call.packed()) {
    fail(ncclInvalidUsage,
         formatted("rank {} calls {} and rank {} calls {}: all ranks of a communicator must make the same "
                   "calls in the same order",
                   rank_, call_text(call.packed()), peer, call_text(letter.signature)));
  }
  return std::move(letter.part);
}

void Communicator::join(const UniqueId& id) {
  if (!are_others_absent_) Post::get().join(id.root, {id.number, size_, rank_, own_member()});
}

std::vector<Member> Communicator::receive_members(const Endpoint& root, std::uint64_t number) {
  if (are_others_absent_) return std::vector<Member>(static_cast<std::size_t>(size_), own_member());
  const BoxKey key{number, Channel::bootstrap, 0, rank_};
  const Letter letter = wait(key, 1, root, "all ranks to come");
  return unpack_members(letter.part.content);
}

void Communicator::abort() {
  aborted_ = true;
  Post::get().mailboxes().wake_all();
}

ncclResult_t Communicator::state() {
  if (state_ != ncclSuccess) return state_;
  const std::lock_guard lock(expected_mutex_);
  for (const auto& [key, number] : expected_) {
    if (!Post::get().mailboxes().may_arrive(key, number, process_of(key.source))) state_ = ncclRemoteError;
  }
  return state_;
}

void Communicator::leave() noexcept {
  try {
    for (int peer = 0; peer < size_ && !members_.empty(); ++peer) {
      if (peer != rank_ && !is_absent(peer)) Post::get().leave(process_of(peer), id_, rank_, peer);
    }
    if (!members_.empty()) Post::get().mailboxes().forget(id_, rank_);
  } catch (const std::exception&) {  // the others see that the process ends
  }
}

ncclRedOp_t Communicator::add_operator(std::vector<char> factor) {
  int op = ncclNumOps;
  while (factors_.contains(op)) ++op;
  factors_[op] = std::move(factor);
  return static_cast<ncclRedOp_t>(op);
}

void Communicator::remove_operator(ncclRedOp_t op) {
  if (factors_.erase(op) == 0)
    throw NcclError(ncclInvalidArgument, formatted("there is no operator {}", static_cast<int>(op)));
}

Reduction Communicator::reduction(ncclRedOp_t op) const {
  if (op >= 0 && op < ncclNumOps) return {op, {}};
  const auto at = factors_.find(op);
  if (at == factors_.end())
    throw NcclError(ncclInvalidArgument, formatted("there is no operator {}", static_cast<int>(op)));
  return {ncclSum, at->second};
}

ncclComm_t publish(std::shared_ptr<Communicator> communicator) {
  hold_other_threads_at_end();
  const std::lock_guard lock(handles().mutex);
  auto* const handle = reinterpret_cast<ncclComm_t>(communicator.get());
  handles().communicators[handle] = std::move(communicator);
  return handle;
}

std::shared_ptr<Communicator> find(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  const auto at = handles().communicators.find(handle);
  if (at == handles().communicators.end()) refuse_handle();
  return at->second;
}

std::shared_ptr<Communicator> withdraw(ncclComm_t handle) {
  const std::lock_guard lock(handles().mutex);
  const auto at = handles().communicators.find(handle);
  if (at == handles().communicators.end()) refuse_handle();
  std::shared_ptr<Communicator> communicator = std::move(at->second);
  handles().communicators.erase(at);
  return communicator;
}

}  // namespace cachalot::simulator::nccl
