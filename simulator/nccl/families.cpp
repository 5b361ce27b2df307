#include "simulator/nccl/families.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "simulator/nccl/errors.h"
#include "simulator/nccl/groups.h"

namespace cachalot::simulator::nccl {
namespace {

UniqueId new_id() {
  UniqueId id;
  id.root = Post::get().endpoint();
  id.number = random_number();
  return id;
}

UniqueId unpacked(const ncclUniqueId& id) {
  UniqueId own;
  const UniqueId expected;
  std::memcpy(static_cast<void*>(&own), id.internal, sizeof(own));
  if (std::memcmp(own.magic, expected.magic, sizeof(own.magic)) != 0)
    throw NcclError(ncclInvalidArgument, "the unique id is none that ncclGetUniqueId of the simulator made");
  return own;
}

// The number of a child, the same at all its ranks (the finalizer of splitmix64).
std::uint64_t mixed(std::uint64_t number, std::uint64_t with) {
  number += (with + 1) * 0x9e3779b97f4a7c15;
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9;
  number = (number ^ number >> 27) * 0x94d049bb133111eb;
  return number ^ number >> 31;
}

// What each rank tells the others in a split.
struct Choice {
  int color = 0;
  int key = 0;
};

// The ranks of the parent that have this color, as the child orders them.
std::vector<int> ranks_of_color(const std::vector<Choice>& choices, int color) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(ranks, {}, [&](int rank) { return choices[static_cast<std::size_t>(rank)].key; });
  return ranks;
}

// Makes the child of these ranks of the parent.
std::shared_ptr<Communicator> child_of(const Communicator& parent, const std::vector<int>& ranks, std::uint64_t id,
                                       const ncclConfig_t* config) {
  std::vector<Member> members;
  members.reserve(ranks.size());
  for (const int rank : ranks) members.push_back(parent.members()[static_cast<std::size_t>(rank)]);
  const auto own = std::ranges::find(ranks, parent.rank()) - ranks.begin();
  auto child = std::make_shared<Communicator>(static_cast<int>(ranks.size()), static_cast<int>(own), config);
  child->open(id, std::move(members));
  return child;
}

// A split underway.
struct Splitting {
  std::shared_ptr<Communicator> parent;
  Choice own;
  ncclComm_t* child;
  std::vector<ncclConfig_t> config;  // one, or none
  std::uint64_t number = 0;

  void start() {
    number = parent->next_collective();
    const char* const bytes = reinterpret_cast<const char*>(&own);
    for (int peer = 0; peer < parent->size(); ++peer) {
      if (peer != parent->rank())
        parent->send(peer, Channel::collectives, number, kCall, {{bytes, bytes + sizeof(own)}});
    }
  }
  void finish() {
    std::vector<Choice> choices(static_cast<std::size_t>(parent->size()), own);
    for (int peer = 0; peer < parent->size(); ++peer) {
      if (peer == parent->rank() || parent->is_absent(peer)) continue;
      const std::vector<char> content = parent->receive(peer, Channel::collectives, number, kCall).content;
      std::memcpy(&choices[static_cast<std::size_t>(peer)], content.data(), std::min(content.size(), sizeof(Choice)));
    }
    *child = nullptr;
    if (own.color == kNcclNoColor) return;
    const std::uint64_t id = mixed(mixed(parent->id(), number), static_cast<std::uint64_t>(own.color));
    *child =
        publish(child_of(*parent, ranks_of_color(choices, own.color), id, config.empty() ? nullptr : config.data()));
  }

  static constexpr CallId kCall{CallKind::split, sizeof(Choice)};
};

}  // namespace

ncclUniqueId new_unique_id() {
  const UniqueId own = new_id();
  ncclUniqueId id{};
  static_assert(sizeof(own) <= sizeof(id));
  std::memcpy(id.internal, &own, sizeof(own));
  return id;
}

ncclComm_t join(const ncclUniqueId& id, int ranks, int rank, const ncclConfig_t* config) {
  const auto made = std::make_shared<Communicator>(ranks, rank, config);
  const UniqueId own = made->are_others_absent() ? new_id() : unpacked(id);
  const ncclComm_t handle = publish(made);
  submit({[=] {
            try {
              made->join(own);
            } catch (const NcclError&) {
              withdraw(handle);
              throw;
            }
          },
          [=] {
            try {
              made->open(own.number, made->receive_members(own.root, own.number));
            } catch (const NcclError&) {
              withdraw(handle);
              throw;
            }
          }});
  return handle;
}

void join_all(ncclComm_t* comms, int devices, const int* device_list) {
  int before = 0;
  require_cuda("cudaGetDevice", cudaGetDevice(&before));
  const ncclUniqueId id = new_unique_id();
  begin_group();
  try {
    for (int rank = 0; rank < devices; ++rank) {
      require_cuda("cudaSetDevice", cudaSetDevice(device_list ? device_list[rank] : rank));
      comms[rank] = join(id, devices, rank, nullptr);
    }
  } catch (const NcclError&) {
    drop_group();
    cudaSetDevice(before);
    throw;
  }
  require_cuda("cudaSetDevice", cudaSetDevice(before));
  end_group();
}

void split(std::shared_ptr<Communicator> parent, int color, int key, ncclComm_t* child, const ncclConfig_t* config) {
  if (color < 0 && color != kNcclNoColor)
    throw NcclError(ncclInvalidArgument, formatted("ncclCommSplit: the color {} is neither from 0 on nor "
                                                   "NCCL_SPLIT_NOCOLOR",
                                                   color));
  auto splitting = std::make_shared<Splitting>(Splitting{std::move(parent), {color, key}, child, {}});
  if (config) splitting->config.push_back(*config);
  submit({[splitting] { splitting->start(); }, [splitting] { splitting->finish(); }});
}

ncclComm_t shrink(const std::shared_ptr<Communicator>& parent, std::vector<int> excluded, const ncclConfig_t* config) {
  std::ranges::sort(excluded);
  std::uint64_t id = mixed(parent->id(), parent->next_child());
  for (const int rank : excluded) id = mixed(id, static_cast<std::uint64_t>(rank));
  std::vector<int> ranks;
  for (int rank = 0; rank < parent->size(); ++rank) {
    if (!std::ranges::binary_search(excluded, rank)) ranks.push_back(rank);
  }
  if (!std::ranges::binary_search(ranks, parent->rank()))
    throw NcclError(ncclInvalidArgument, "ncclCommShrink: an excluded rank must not call it");
  return publish(child_of(*parent, ranks, id, config));
}

}  // namespace cachalot::simulator::nccl
