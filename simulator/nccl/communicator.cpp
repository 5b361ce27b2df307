#include "simulator/nccl/communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/environment.h"
#include "base/format.h"
#include "simulator/base/end_of_process.h"
#include "simulator/base/report.h"
#include "simulator/nccl/nccl_calls.h"

namespace cachalot::simulator::nccl {
namespace {

// All from the sources of NCCL 2.28.9 (github.com/NVIDIA/nccl, tag v2.28.9-1), unless it is called an estimate.
//
// src/include/device.h: NCCL_STEPS of a buffer; then lines or elements per thread, threads, and bytes of each
// (NCCL_LL_LINES_PER_THREAD, NCCL_LL_MAX_NTHREADS, ncclLLFifoLine; NCCL_LL128_ELEMS_PER_THREAD, NCCL_LL128_MAX_NTHREADS,
// std::uint64_t). src/init.cc, computeBuffSizes, makes buffers of them.
constexpr std::size_t kSteps = 8;
constexpr std::size_t kLlBytes = kSteps * 8 * 512 * 16;
constexpr std::size_t kLl128Bytes = kSteps * 120 * 640 * 8;
constexpr std::size_t kSimpleBytes = 4 * kMiB;  // src/init.cc, DEFAULT_BUFFSIZE; NCCL_BUFFSIZE
// src/include/comm.h, ncclRecvMem, which src/transport/p2p.cc, p2pRecvSetup, allocates in front of the buffers.
constexpr std::size_t kFlagBytes = 4 * kKiB;

constexpr int kMostChannels = 64;                      // src/include/device.h, MAXCHANNELS
constexpr std::size_t kPeerBytes = 640;                // ncclDevChannelPeer, an estimate: four connections
constexpr std::size_t kCommunicatorBytes = 64 * kKiB;  // allocated by src/init.cc, devCommSetup, an estimate

// A whole number from 1 on; 0 otherwise.
long positive(const char* variable) {
  return std::max(0L, std::strtol(std::string(environment(variable).value_or("")).c_str(), nullptr, 10));
}

int limit(const char* variable, const char* older, int config) {
  for (const char* name : {variable, older}) {
    if (const long value = positive(name); value > 0) return static_cast<int>(std::min<long>(value, kMostChannels));
  }
  return config == kNcclUndefined ? 0 : std::clamp(config, 0, kMostChannels);
}

// GPUs for servers with NVLink: of the capability x.0.
bool has_nvlink(const GpuModel& gpu) { return gpu.minor == 0 && gpu.major < 12; }

int limited(int count, const ChannelLimits& limits) {
  if (limits.most > 0) count = std::min(count, limits.most);
  return std::max(count, limits.least);
}

// Returns the number of channels of collectives: an estimate, as NCCL_DEBUG=INFO prints for servers with NVSwitch and for cards on PCIe: src/graph/search.cc and
// src/graph/connect.cc count channels by links that are not simulated.
int channels(const GpuModel& gpu, const ChannelLimits& limits) {
  constexpr int kVolta = 7;
  if (!has_nvlink(gpu)) return limited(2, limits);
  return limited(gpu.major == kVolta ? 12 : 24, limits);
}

// Returns the number of channels between two ranks that send and receive.
int channels_of_pair(const GpuModel& gpu, const ChannelLimits& limits) {
  return std::min(channels(gpu, limits), has_nvlink(gpu) ? 4 : 2);
}

// Both in bytes, as they are asked for: the device gives units of 2 MiB.
std::size_t communicator_bytes(int channels, int ranks) {
  return kCommunicatorBytes + static_cast<std::size_t>(channels) * static_cast<std::size_t>(ranks) * kPeerBytes;
}

std::size_t receive_buffer_bytes() {
  const long simple = positive("NCCL_BUFFSIZE");
  return kFlagBytes + kLlBytes + kLl128Bytes + (simple > 0 ? static_cast<std::size_t>(simple) : kSimpleBytes);
}

}  // namespace

ChannelLimits limits_of(int config_least, int config_most) {
  return {limit("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", config_least),
          limit("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", config_most)};
}

// An estimate: the number of channels of a machine is half or twice that of `channels`.
Spread spread_of(std::size_t bytes) { return {bytes / 2, bytes}; }

std::vector<std::uint64_t> RegisteredMemory::pages_of(Process& process, Address begin, std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{2} << 20;
  std::vector<std::uint64_t> pages;
  for (Address at = begin; at < begin + bytes; at += kStep) {
    const DeviceState* const device = process.devices().find_owner(at);
    pages.push_back(device == nullptr ? 0 : device->simulated->memory_at(at)->physical);
  }
  return pages;
}

void* RegisteredMemory::add(const void* buffer, std::size_t bytes) {
  Range range{reinterpret_cast<Address>(buffer), bytes, {}};
  on_process("ncclCommRegister", [&](Process& process) { range.pages = pages_of(process, range.begin, bytes); });
  void* const handle = reinterpret_cast<void*>(fresh_handle());
  ranges_.emplace(handle, std::move(range));
  return handle;
}

void RegisteredMemory::remove(const void* handle) {
  if (ranges_.erase(handle) == 0) throw NcclError(ncclInvalidArgument, "no memory is registered by this handle");
}

void* RegisteredMemory::begin_of(const void* handle) const {
  const auto found = ranges_.find(handle);
  if (found == ranges_.end()) throw NcclError(ncclInvalidArgument, "no memory is registered by this handle");
  return reinterpret_cast<void*>(found->second.begin);
}

void RegisteredMemory::require_unchanged(const char* call, std::initializer_list<const void*> addresses) const {
  for (const auto& [handle, range] : ranges_) {
    const bool is_used = std::ranges::any_of(addresses, [&range = range](const void* address) {
      const auto at = reinterpret_cast<Address>(address);
      return at >= range.begin && at < range.begin + range.bytes;
    });
    if (!is_used) continue;
    std::vector<std::uint64_t> pages;
    on_process(call, [&, &range = range](Process& process) { pages = pages_of(process, range.begin, range.bytes); });
    if (pages == range.pages) continue;
    throw NcclError(ncclInvalidUsage, formatted("{}: other memory is at {} than when its {} bytes were registered "
                                                "(ncclCommRegister)",
                                                call, reinterpret_cast<const void*>(range.begin), range.bytes));
  }
}

void ChannelMemory::make(int device, int ranks, const ChannelLimits& limits) {
  device_ = device;
  const GpuModel* gpu = nullptr;
  on_process("cudaGetDevice", [&](Process& process) { gpu = process.config().gpu; });
  channels_ = channels(*gpu, limits);
  channels_of_pair_ = channels_of_pair(*gpu, limits);
  const std::size_t bytes = communicator_bytes(channels_, ranks);
  lasting_ = take(bytes);
  lasting_bytes_ = bytes;
}

void ChannelMemory::connect(int what, int channels) {
  if (connected_.contains(what)) return;
  for (int channel = 0; channel < channels; ++channel) {
    const std::size_t bytes = receive_buffer_bytes();
    buffers_.reserve(buffers_.size() + 1);
    buffers_.push_back({take(bytes), bytes});
  }
  connected_.insert(what);
}

void* ChannelMemory::take(std::size_t bytes) {
  void* start = nullptr;
  require_cuda("NCCL's cudaMalloc", guarded([&](Process& process) {
                 start =
                     process.allocations().malloc_for_nccl(process.devices().at(device_), NcclMemory::buffers, bytes);
                 return start ? cudaSuccess : cudaErrorMemoryAllocation;
               }));
  return start;
}

// After a reset of the device there is nothing to free.
void ChannelMemory::give_back(void*& start) noexcept {
  if (start == nullptr) return;
  guarded([&](Process& process) {
    process.allocations().free_of_nccl(NcclMemory::buffers, reinterpret_cast<Address>(start));
  });
  start = nullptr;
}

void ChannelMemory::free_all() {
  give_back(lasting_);
  for (Buffer& buffer : buffers_) give_back(buffer.start);
  lasting_bytes_ = 0;
  buffers_.clear();
  connected_.clear();
}

std::size_t ChannelMemory::buffer_bytes() const {
  std::size_t sum = 0;
  for (const Buffer& buffer : buffers_) sum += buffer.bytes;
  return sum;
}

void ChannelMemory::suspend() {
  if (is_suspended_) throw NcclError(ncclInvalidUsage, "ncclCommSuspend: the communicator is suspended already");
  for (Buffer& buffer : buffers_) give_back(buffer.start);
  is_suspended_ = true;
}

void ChannelMemory::resume() {
  if (!is_suspended_) throw NcclError(ncclInvalidUsage, "ncclCommResume: the communicator is not suspended");
  try {
    for (Buffer& buffer : buffers_) buffer.start = take(buffer.bytes);
  } catch (const NcclError&) {
    for (Buffer& buffer : buffers_) give_back(buffer.start);
    throw;
  }
  is_suspended_ = false;
}

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
  Member member{Connections::get().endpoint(), device_};
  on_process("cudaGetDevice", [&](Process& process) { member.device = process.config().machine_number(device_); });
  return member;
}

// An empty message opens the connection, over which a rank sees that another has ended.
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
  Connections::get().send(process_of(peer), {id_, channel, rank_, peer}, {number, call.packed(), std::move(part)},
                          false);
}

void Communicator::send_nothing(int peer, Channel channel, std::uint64_t number) {
  if (is_absent(peer)) return;
  Connections::get().send(process_of(peer), {id_, channel, rank_, peer}, {number, 0, Part{}}, true);
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

Message Communicator::wait(const QueueKey& key, std::uint64_t number, const Endpoint& sender, const std::string& whom) {
  using Outcome = MessageQueues::Outcome;
  constexpr std::chrono::seconds kPatience{60};
  Message message;
  for (;;) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    switch (Connections::get().queues().take(key, number, sender, aborted_, until, message)) {
      case Outcome::taken:
        return message;
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
  Message message = wait({id_, channel, peer, rank_}, number, process_of(peer), formatted("rank {}", peer));
  if (message.signature != call.packed()) {
    fail(ncclInvalidUsage,
         formatted("rank {} calls {} and rank {} calls {}: all ranks of a communicator must make the same "
                   "calls in the same order",
                   rank_, call_text(call.packed()), peer, call_text(message.signature)));
  }
  return std::move(message.part);
}

void Communicator::join(const UniqueId& id) {
  if (!are_others_absent_) Connections::get().join(id.root, {id.number, size_, rank_, own_member()});
}

std::vector<Member> Communicator::receive_members(const Endpoint& root, std::uint64_t number) {
  if (are_others_absent_) return std::vector<Member>(static_cast<std::size_t>(size_), own_member());
  const QueueKey key{number, Channel::bootstrap, 0, rank_};
  const Message message = wait(key, 1, root, "all ranks to come");
  return unpack_members(message.part.content);
}

void Communicator::abort() {
  aborted_ = true;
  Connections::get().queues().wake_all();
}

ncclResult_t Communicator::state() {
  if (state_ != ncclSuccess) return state_;
  const std::lock_guard lock(expected_mutex_);
  for (const auto& [key, number] : expected_) {
    if (!Connections::get().queues().may_arrive(key, number, process_of(key.source))) state_ = ncclRemoteError;
  }
  return state_;
}

void Communicator::leave() noexcept {
  try {
    for (int peer = 0; peer < size_ && !members_.empty(); ++peer) {
      if (peer != rank_ && !is_absent(peer)) Connections::get().leave(process_of(peer), id_, rank_, peer);
    }
    if (!members_.empty()) Connections::get().queues().forget(id_, rank_);
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
