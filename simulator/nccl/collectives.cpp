// NCCL's functions that move data, and groups of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "simulator/nccl/communicator.h"
#include "simulator/nccl/nccl_calls.h"

namespace cachalot::simulator::nccl {
namespace {

// --- NCCL's operators on the data of all ranks, for each of its types ---

// Reads an element as the type that is reduced in, and writes it.
template <typename Type>
struct Plain {
  using Wide = std::conditional_t<std::is_floating_point_v<Type>, double,
                                  std::conditional_t<std::is_signed_v<Type>, std::int64_t, std::uint64_t>>;
  static constexpr std::size_t kBytes = sizeof(Type);
  static Wide read(const char* from) {
    Type value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<Wide>(value);
  }
  static void write(char* to, Wide wide) {
    const Type value = static_cast<Type>(wide);
    std::memcpy(to, &value, sizeof(value));
  }
};

// A float of few bits. Without infinities (e4m3, as OCP defines it) only the largest pattern is not a number, and values
// that are too large become the largest number.
template <typename Bits, int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct Small {
  using Wide = double;
  static constexpr std::size_t kBytes = sizeof(Bits);
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kTopExponent = (1 << kExponentBits) - 1;
  static constexpr int kImplicit = 1 << kMantissaBits;
  static constexpr int kSign = 1 << (kExponentBits + kMantissaBits);
  static constexpr int kNan = kSign - 1;
  static constexpr int kTooLarge = kHasInfinity ? kTopExponent << kMantissaBits : kNan - 1;

  static double read(const char* from) {
    Bits bits;
    std::memcpy(&bits, from, sizeof(bits));
    const int exponent = bits >> kMantissaBits & kTopExponent;
    const int mantissa = bits & (kImplicit - 1);
    const double sign = (bits & kSign) != 0 ? -1 : 1;
    if (kHasInfinity && exponent == kTopExponent) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
    if (!kHasInfinity && (bits & kNan) == kNan) return std::nan("");
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    return sign * std::ldexp(kImplicit + mantissa, exponent - kBias - kMantissaBits);
  }
  static void write(char* to, double value) {
    const int sign = std::signbit(value) && !std::isnan(value) ? kSign : 0;
    const Bits bits = static_cast<Bits>(sign | magnitude(std::fabs(value)));
    std::memcpy(to, &bits, sizeof(bits));
  }

 private:
  // Rounding up to the next power of two carries into the exponent, as it should.
  static int magnitude(double value) {
    if (std::isnan(value)) return kNan;
    if (std::isinf(value)) return kTooLarge;
    if (value == 0) return 0;
    int exponent = 0;
    std::frexp(value, &exponent);
    const int unit = std::max(exponent - 1, 1 - kBias);  // the exponent of the first bit of the mantissa
    const double scaled = std::nearbyint(std::ldexp(value, kMantissaBits - unit));
    const double bits = scaled + (static_cast<double>(unit + kBias - 1) * kImplicit);
    return bits >= kTooLarge ? kTooLarge : static_cast<int>(bits);
  }
};

using Half = Small<std::uint16_t, 5, 10, true>;
using Bfloat16 = Small<std::uint16_t, 8, 7, true>;
using Float8e4m3 = Small<std::uint8_t, 4, 3, false>;
using Float8e5m2 = Small<std::uint8_t, 5, 2, true>;

// Sums and products of signed integers wrap around, as those of unsigned ones do.
template <typename Wide>
Wide combine(ncclRedOp_t op, Wide a, Wide b) {
  using Wrapping = std::conditional_t<std::is_integral_v<Wide>, std::uint64_t, double>;
  switch (op) {
    case ncclProd:
      return static_cast<Wide>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case ncclMax:
      if constexpr (std::is_floating_point_v<Wide>) return std::fmax(a, b);
      return std::max(a, b);
    case ncclMin:
      if constexpr (std::is_floating_point_v<Wide>) return std::fmin(a, b);
      return std::min(a, b);
    default:
      return static_cast<Wide>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
  }
}

template <typename Element>
std::vector<char> reduce_as(const Reduction& reduction, std::span<const std::vector<char>> arrays) {
  using Wide = typename Element::Wide;
  std::vector<char> result(arrays.front().size());
  const Wide factor = reduction.factor.empty() ? Wide{1} : Element::read(reduction.factor.data());
  for (std::size_t at = 0; at < result.size(); at += Element::kBytes) {
    const auto value = [&](const std::vector<char>& array) {
      return combine(ncclProd, Element::read(array.data() + at), factor);
    };
    Wide total = value(arrays.front());
    for (const std::vector<char>& array : arrays.subspan(1)) total = combine(reduction.op, total, value(array));
    if (reduction.op == ncclAvg) total /= static_cast<Wide>(arrays.size());
    Element::write(result.data() + at, total);
  }
  return result;
}

// Calls visit(element) with the description of the type.
template <typename Visit>
auto with_element(ncclDataType_t type, Visit&& visit) {
  switch (type) {
    case ncclInt8:
      return visit(Plain<std::int8_t>{});
    case ncclUint8:
      return visit(Plain<std::uint8_t>{});
    case ncclInt32:
      return visit(Plain<std::int32_t>{});
    case ncclUint32:
      return visit(Plain<std::uint32_t>{});
    case ncclInt64:
      return visit(Plain<std::int64_t>{});
    case ncclUint64:
      return visit(Plain<std::uint64_t>{});
    case ncclFloat16:
      return visit(Half{});
    case ncclFloat32:
      return visit(Plain<float>{});
    case ncclFloat64:
      return visit(Plain<double>{});
    case ncclBfloat16:
      return visit(Bfloat16{});
    case ncclFloat8e4m3:
      return visit(Float8e4m3{});
    case ncclFloat8e5m2:
      return visit(Float8e5m2{});
    default:
      throw NcclError(ncclInvalidArgument, formatted("there is no data type {}", static_cast<int>(type)));
  }
}

// Returns the size of an element. Throws ncclInvalidArgument for an invalid type.
std::size_t element_bytes(ncclDataType_t type) {
  return with_element(type, [](auto element) { return decltype(element)::kBytes; });
}

// Returns the reduction, element by element, of arrays of the same size, which are ordered by rank. Floats are added as
// doubles and rounded once, to the nearest; integers wrap around. Every rank gets the same bytes.
std::vector<char> reduce(ncclDataType_t type, const Reduction& reduction, std::span<const std::vector<char>> arrays) {
  return with_element(type, [&](auto element) { return reduce_as<decltype(element)>(reduction, arrays); });
}

// --- calls ---

// Collectives, sends and receives: what each rank gives to whom, and what becomes of it.
//
// The whole of a call's data is moved if no rank has more than `copy_bytes` of CACHALOT_SIM of it; the call then blocks the host
// until the ranks that this one receives from have made it. Data of larger calls is not moved, and no rank waits. In a capture
// the stream gets a node, and nothing is moved, as with copies.
//
// Absent ranks count as ranks with this one's data. Where this one gives none, as in a broadcast of another root, memory keeps
// its content.

struct Exchange {
  const char* name = "";
  CallKind kind = CallKind::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // of elements, as the caller counts
  ncclDataType_t type = ncclInt8;
  int root = 0;  // of those that have one; for ncclSend and ncclRecv the other rank
  Reduction reduction = {};
};

// The calls are the communicator's device's, whatever the thread's device is.
class OnDevice {
 public:
  explicit OnDevice(int device) : before_(std::exchange(this_thread().device, device)) {}
  ~OnDevice() { this_thread().device = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_;
};

// This rank's work in a call. A part is the data that one rank gives to one other.
struct Plan {
  std::vector<int> targets;  // ranks that get a part of this one's
  std::vector<int> sources;  // ranks that this one gets a part of, in their order
  bool is_sliced = false;    // each target gets a part of its own
  bool is_gathered =
      false;  // the parts of the sources lie behind each other; not so: they are reduced, or there is one
};

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Plan plan_of(const Exchange& call, int size, int rank) {
  const std::vector<int> all = all_ranks(size);
  const std::vector<int> none;
  const std::vector<int> root{call.root};
  const bool is_root = rank == call.root;
  switch (call.kind) {
    case CallKind::all_reduce:
      return {all, all};
    case CallKind::reduce:
      return {root, is_root ? all : none};
    case CallKind::reduce_scatter:
      return {all, all, true};
    case CallKind::broadcast:
      return {is_root ? all : none, root};
    case CallKind::all_gather:
      return {all, all, false, true};
    case CallKind::all_to_all:
      return {all, all, true, true};
    case CallKind::gather:
      return {root, is_root ? all : none, false, true};
    case CallKind::scatter:
      return {is_root ? all : none, root, true};
    default:
      return call.from ? Plan{root, none} : Plan{none, root};
  }
}

bool reduces(CallKind kind) {
  return kind == CallKind::all_reduce || kind == CallKind::reduce || kind == CallKind::reduce_scatter;
}

// Returns whether some rank has a part for, or of, each rank.
bool has_parts_of_all(CallKind kind) {
  switch (kind) {
    case CallKind::reduce_scatter:
    case CallKind::all_gather:
    case CallKind::all_to_all:
    case CallKind::gather:
    case CallKind::scatter:
      return true;
    default:
      return false;
  }
}

using Kinds = std::vector<KnownContent::Kind>;  // of each byte; empty: all are known

// A byte that is computed from bytes of several kinds is a guess.
Kinds kinds_of_reduced(const std::vector<Kinds>& parts) {
  const auto one = std::find_if(parts.begin(), parts.end(), [](const Kinds& kinds) { return !kinds.empty(); });
  if (one == parts.end()) return {};
  Kinds result = *one;
  for (const Kinds& kinds : parts) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      const auto kind = kinds.empty() ? KnownContent::Kind::known : kinds[i];
      if (kind != result[i]) result[i] = KnownContent::Kind::guessed;
    }
  }
  return result;
}

Kinds kinds_of_gathered(const std::vector<Kinds>& parts, std::size_t part_bytes) {
  if (std::all_of(parts.begin(), parts.end(), [](const Kinds& kinds) { return kinds.empty(); })) return {};
  Kinds result;
  for (const Kinds& kinds : parts) {
    result.insert(result.end(), kinds.begin(), kinds.end());
    if (kinds.empty()) result.insert(result.end(), part_bytes, KnownContent::Kind::known);
  }
  return result;
}

// One call underway.
class Exchanging {
 public:
  Exchanging(std::shared_ptr<Communicator> communicator, const Exchange& call, cudaStream_t stream)
      : communicator_(std::move(communicator)),
        call_(call),
        stream_(stream),
        plan_(plan_of(call, communicator_->size(), communicator_->rank())),
        part_bytes_(call.count * element_bytes(call.type)) {}

  void start() {
    connect();
    const Part given = launch();
    if (!is_captured_) send_parts(given);
  }
  void finish() {
    if (!moves_ || plan_.sources.empty()) return;
    std::vector<std::vector<char>> parts;
    std::vector<std::vector<KnownContent::Kind>> kinds;
    for (const int source : plan_.sources) {
      Part part = is_own(source) || communicator_->is_absent(source)
                      ? own_part_
                      : communicator_->receive(source, channel(), numbers_.at(source), id());
      if (part.content.empty()) return;  // of an absent rank, and this one gives nothing that could stand for it
      parts.push_back(std::move(part.content));
      kinds.push_back(std::move(part.kinds));
    }
    if (reduces(call_.kind)) return write({reduce(call_.type, call_.reduction, parts), kinds_of_reduced(kinds)});
    Part result;
    for (const std::vector<char>& part : parts) result.content.insert(result.content.end(), part.begin(), part.end());
    result.kinds = kinds_of_gathered(kinds, part_bytes_);
    write(result);
  }

 private:
  bool is_of_pair() const { return call_.kind == CallKind::send_and_receive; }
  // A pair call of a rank to itself is a message as well; in a collective the rank keeps its own part.
  bool is_own(int rank) const { return rank == communicator_->rank() && !is_of_pair(); }
  Channel channel() const { return is_of_pair() ? Channel::pairs : Channel::collectives; }
  std::size_t all_parts() const { return static_cast<std::size_t>(communicator_->size()) * part_bytes_; }
  std::size_t given_bytes() const { return plan_.is_sliced ? all_parts() : part_bytes_; }
  CallId id() const { return {call_.kind, part_bytes_}; }

  void connect() {
    if (communicator_->size() == 1) return;
    ChannelMemory& memory = communicator_->memory();
    const bool is_by_pairs = is_of_pair() || call_.kind == CallKind::all_to_all || call_.kind == CallKind::gather ||
                             call_.kind == CallKind::scatter;
    if (!is_by_pairs) {
      memory.connect_ring();
      if (call_.kind == CallKind::all_reduce && communicator_->size() > 2) memory.connect_tree();
      return;
    }
    for (const int source : plan_.sources) {
      if (source != communicator_->rank()) memory.connect_from(source);
    }
  }
  // Returns what this rank gives, empty where nothing is to be moved.
  Part launch() {
    Part given;
    const OnDevice on_device(communicator_->device());
    communicator_->registered().require_unchanged(call_.name, {call_.from, call_.to});
    on_process(call_.name, [&](Process& process) {
      StreamState& stream = process.streams().at(call_.name, stream_);
      is_captured_ = stream.capture != nullptr;
      moves_ = !is_captured_ && std::max(given_bytes(), has_parts_of_all(call_.kind) ? all_parts() : part_bytes_) <=
                                    process.config().copy_bytes;
      process.launches().launch(stream, cudaGraphNodeTypeKernel);
      note_uses(process, stream);
      if (!moves_) return make_unknown(process);
      if (plan_.targets.empty()) return;
      given.content.resize(given_bytes());
      const std::size_t bytes = given.content.size();
      if (process.devices().hold(call_.from) && !process.copies().get(nullptr, call_.from, bytes)) {
        given.kinds.resize(bytes);
        process.copies().get_kinds(given.kinds.data(), call_.from, bytes);
      }
      process.copies().copy_now(given.content.data(), call_.from, bytes);
    });
    return given;
  }
  void note_uses(Process& process, StreamState& stream) const {
    const auto note = [&](const void* start, std::size_t bytes) {
      process.uses().races().used_by(call_.name, {reinterpret_cast<Address>(start), bytes}, stream, stream_);
    };
    if (!plan_.targets.empty()) note(call_.from, given_bytes());
    if (!plan_.sources.empty()) note(call_.to, plan_.is_gathered ? all_parts() : part_bytes_);
  }
  void send_parts(const Part& given) {
    const std::uint64_t collective = is_of_pair() ? 0 : communicator_->next_collective();
    for (const int target : plan_.targets) {
      if (is_own(target)) {
        if (moves_) own_part_ = part_for(target, given);
        continue;
      }
      const std::uint64_t number = is_of_pair() ? communicator_->next_to(target) : collective;
      if (moves_)
        communicator_->send(target, channel(), number, id(), part_for(target, given));
      else
        communicator_->send_nothing(target, channel(), number);
    }
    for (const int source : plan_.sources) {
      if (is_own(source)) continue;
      numbers_[source] = is_of_pair() ? communicator_->next_from(source) : collective;
      if (!moves_) communicator_->expect_nothing(source, channel(), numbers_[source]);
    }
  }
  Part part_for(int target, const Part& given) const {
    const std::size_t offset = plan_.is_sliced ? static_cast<std::size_t>(target) * part_bytes_ : 0;
    const std::span part = std::span(given.content).subspan(offset, part_bytes_);
    if (given.kinds.empty()) return {{part.begin(), part.end()}, {}};
    const std::span kinds = std::span(given.kinds).subspan(offset, part_bytes_);
    return {{part.begin(), part.end()}, {kinds.begin(), kinds.end()}};
  }
  // Data that is not moved is unknown where it would have been received. With one rank, in place, everything stays as
  // it is.
  void make_unknown(Process& process) const {
    if (plan_.sources.empty() || !process.devices().hold(call_.to)) return;
    if (communicator_->size() == 1 && call_.to == call_.from) return;
    process.copies().make_unknown(call_.to, plan_.is_gathered ? all_parts() : part_bytes_);
  }
  void write(const Part& result) {
    on_process(call_.name, [&](Process& process) {
      const std::size_t bytes = result.content.size();
      if (!process.devices().hold(call_.to) || result.kinds.empty())
        return process.copies().copy_now(call_.to, result.content.data(), bytes);
      process.copies().put(call_.to, result.content.data(), bytes, result.kinds.data());
    });
  }

  std::shared_ptr<Communicator> communicator_;
  const Exchange call_;
  const cudaStream_t stream_;
  const Plan plan_;
  const std::size_t part_bytes_;
  bool is_captured_ = false;
  bool moves_ = false;
  std::map<int, std::uint64_t> numbers_;  // of the messages, by source
  Part own_part_;
};

void require(bool holds, const char* name, const std::string& rule) {
  if (!holds) throw NcclError(ncclInvalidArgument, formatted("{}: {}", name, rule));
}

void check(const Exchange& call, const Communicator& communicator) {
  require(call.root >= 0 && call.root < communicator.size(), call.name,
          formatted("there is no rank {}: the communicator has {}", call.root, communicator.size()));
  const Plan plan = plan_of(call, communicator.size(), communicator.rank());
  require(plan.targets.empty() || call.from, call.name, "the buffer to send is a null pointer");
  require(plan.sources.empty() || call.to, call.name, "the buffer to receive into is a null pointer");
  if (communicator.memory().is_suspended())
    throw NcclError(ncclInvalidUsage, formatted("{}: the communicator is suspended (ncclCommSuspend)", call.name));
}

// Makes the call, or adds it to the thread's group. Throws ncclInvalidArgument for a bad root, type or null buffer.
void exchange(std::shared_ptr<Communicator> communicator, const Exchange& call, cudaStream_t stream) {
  element_bytes(call.type);
  if (call.count == 0) return;
  check(call, *communicator);
  const auto exchanging = std::make_shared<Exchanging>(std::move(communicator), call, stream);
  submit({[exchanging] { exchanging->start(); }, [exchanging] { exchanging->finish(); }});
}

ncclResult_t call_on(ncclComm_t comm, const Exchange& call, cudaStream_t stream) {
  return nccl_call([&] { exchange(find(comm), call, stream); });
}

// With an operator, which is the communicator's.
ncclResult_t reduce_on(ncclComm_t comm, Exchange call, ncclRedOp_t op, cudaStream_t stream) {
  return nccl_call([&] {
    call.reduction = find(comm)->reduction(op);
    if (!call.reduction.factor.empty() && call.reduction.factor.size() != element_bytes(call.type))
      throw NcclError(ncclInvalidArgument, formatted("{}: the operator is one of another data type", call.name));
    exchange(find(comm), call, stream);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::all_reduce, from, to, count, type}, op, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::reduce, from, to, count, type, root}, op, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return reduce_on(comm, {__func__, CallKind::reduce_scatter, from, to, count, type}, op, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::broadcast, from, to, count, type, root}, stream);
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::all_gather, from, to, count, type}, stream);
}

ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::all_to_all, from, to, count, type}, stream);
}

ncclResult_t ncclGather(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::gather, from, to, count, type, root}, stream);
}

ncclResult_t ncclScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::scatter, from, to, count, type, root}, stream);
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::send_and_receive, from, nullptr, count, type, peer}, stream);
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call_on(comm, {__func__, CallKind::send_and_receive, nullptr, to, count, type, peer}, stream);
}

// ---- Groups ---------------------------------------------------------------------------------------------------------

ncclResult_t ncclGroupStart() {
  begin_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return nccl_call(end_group); }

// The time of the group's launches; nothing is launched.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return nccl_call([&] {
    const int calls = drop_group();
    if (!info) throw NcclError(ncclInvalidArgument, "ncclGroupSimulateEnd: the info is a null pointer");
    on_process("ncclGroupSimulateEnd", [&](Process& process) {
      info->estimatedTime = static_cast<float>(calls) * static_cast<float>(process.config().launch_ns) / 1000;
    });
  });
}

// ---- Operators ------------------------------------------------------------------------------------------------------

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return nccl_call([&] {
    std::vector<char> factor(element_bytes(type));
    if (!op || !scalar) throw NcclError(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: a null pointer");
    on_process("ncclRedOpCreatePreMulSum", [&](Process& process) {
      if (residence == ncclScalarHostImmediate)
        std::memcpy(factor.data(), scalar, factor.size());
      else
        process.copies().copy_now(factor.data(), scalar, factor.size());
    });
    *op = find(comm)->add_operator(std::move(factor));
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return nccl_call([&] { find(comm)->remove_operator(op); });
}

}  // extern "C"

CACHALOT_PROFILED(ncclAllReduce)
CACHALOT_PROFILED(ncclReduce)
CACHALOT_PROFILED(ncclReduceScatter)
CACHALOT_PROFILED(ncclBroadcast)
CACHALOT_PROFILED(ncclBcast)
CACHALOT_PROFILED(ncclAllGather)
CACHALOT_PROFILED(ncclAlltoAll)
CACHALOT_PROFILED(ncclGather)
CACHALOT_PROFILED(ncclScatter)
CACHALOT_PROFILED(ncclSend)
CACHALOT_PROFILED(ncclRecv)
CACHALOT_PROFILED(ncclGroupStart)
CACHALOT_PROFILED(ncclGroupEnd)
CACHALOT_PROFILED(ncclGroupSimulateEnd)
CACHALOT_PROFILED(ncclRedOpCreatePreMulSum)
CACHALOT_PROFILED(ncclRedOpDestroy)

}  // namespace cachalot::simulator::nccl
