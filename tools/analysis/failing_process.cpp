#include "tools/analysis/failing_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "tools/base/quoted.h"
#include "tools/history/address_map.h"

namespace cachalot::tools {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;  // that the page heap maps, as the driver does

constexpr std::uint64_t in_whole_pages(std::uint64_t bytes) { return bytes / kPage * kPage; }

constexpr std::uint64_t less(std::uint64_t bytes, std::uint64_t by) { return bytes - std::min(bytes, by); }

// Returns the bytes that the device, or the limit, would still give the process.
std::uint64_t room_of(const Evidence& evidence) { return less(available_bytes(evidence), evidence.reserved_bytes); }

}  // namespace

void add_told(Evidence& evidence, const Timeline& timeline) {
  const DeviceHistory& device = timeline.device();
  const DeviceFacts* const found = timeline.facts();
  if (found == nullptr || !found->failing) return;
  const DeviceFacts& facts = *found;
  evidence.is_refused = facts.failing->is_refused;
  evidence.uses_nccl |= facts.failing->has_nccl;
  evidence.is_known_without_limit = !facts.limit_bytes;
  for (const HistoryBlock& block : device.blocks)
    evidence.waiting_bytes += block.state == HistoryBlock::State::pending_free ? block.bytes : 0;
  if (!evidence.failure) return;
  const std::uint16_t pool = evidence.failure->pool;
  evidence.is_asleep = std::ranges::find(device.asleep, pool, &HistorySegment::pool) != device.asleep.end();
  if (!facts.process_bytes || !facts.other_processes.empty() || !facts.total_bytes) return;
  // Other processes that the driver does not list, such as those of other containers.
  const std::uint64_t known = *facts.process_bytes + evidence.failure->device_free_bytes.value_or(0);
  if (*facts.total_bytes > known) evidence.other_process_bytes = *facts.total_bytes - known;
}

// ---- sums ------------------------------------------------------------------------------------------------------------
namespace {

std::string stream_name(std::uint64_t stream) {
  return stream == 0 ? "the default stream" : fmt::format("stream {:#x}", stream);
}

const std::string* tag_of(PoolId pool, const DeviceFacts::Failing& told) {
  const auto found = std::ranges::find(told.tags, pool, &DeviceFacts::Tag::pool);
  return found == told.tags.end() ? nullptr : &found->name;
}

Unused::Reason reason_of_pool(PoolId pool) {
  if (pool == PoolId{}) return Unused::Reason::default_pool;
  if (pool.second == 0) return Unused::Reason::graph_pool;
  return pool.first == 0 ? Unused::Reason::memory_pool : Unused::Reason::tag;
}

std::string pool_name(PoolId pool, const DeviceFacts::Failing& told) {
  if (const std::string* const tag = tag_of(pool, told)) return fmt::format("tag '{}'", printable(*tag));
  switch (reason_of_pool(pool)) {
    case Unused::Reason::default_pool:
      return "the default pool";
    case Unused::Reason::graph_pool:
      return fmt::format("graph pool ({}, {})", pool.first, pool.second);
    case Unused::Reason::memory_pool:
      return fmt::format("MemPool ({}, {})", pool.first, pool.second);
    default:
      return fmt::format("tag's pool ({}, {})", pool.first, pool.second);
  }
}

std::vector<OwnerShare> owner_shares(const History& history, std::span<const Allocation> allocations,
                                     std::span<const std::uint32_t> live, std::span<const BlockOwner> owners) {
  std::map<TextId, std::pair<OwnerShare, std::map<TextId, Share>>> by_name;
  for (const std::uint32_t i : live) {
    const BlockOwner owner = owners.empty() ? BlockOwner{} : owners[i];
    auto& [share, kinds] = by_name[owner.name];
    share.bytes += allocations[i].bytes;
    ++share.count;
    if (owner.kind == 0) continue;
    kinds[owner.kind].bytes += allocations[i].bytes;
    ++kinds[owner.kind].count;
  }
  std::vector<OwnerShare> shares;
  for (auto& [name, entry] : by_name) {
    OwnerShare& share = shares.emplace_back(std::move(entry.first));
    share.name = history.texts[name];
    for (auto& [kind, of_kind] : entry.second) {
      of_kind.name = history.texts[kind];
      share.kinds.push_back(std::move(of_kind));
    }
    std::ranges::stable_sort(share.kinds, std::greater<>{}, &Share::bytes);
  }
  std::ranges::stable_sort(shares, std::greater<>{}, &OwnerShare::bytes);
  return shares;
}

std::vector<TagShare> tag_shares(const History& history, const DeviceHistory& device,
                                 const DeviceFacts::Failing& told) {
  std::vector<TagShare> shares;
  for (const DeviceFacts::Tag& tag : told.tags) {
    TagShare share{.name = tag.name};
    const auto add = [&](const std::vector<HistorySegment>& segments, std::uint64_t& bytes) {
      for (const HistorySegment& segment : segments)
        bytes += history.pools[segment.pool] == tag.pool ? segment.bytes : 0;
    };
    add(device.segments, share.reserved_bytes);
    add(device.asleep, share.asleep_bytes);
    if (share.reserved_bytes + share.asleep_bytes > 0) shares.push_back(std::move(share));
  }
  std::ranges::stable_sort(shares, std::greater<>{}, &TagShare::reserved_bytes);
  return shares;
}

// Returns why free memory of the segment does not serve the request, and what it is called.
std::pair<Unused::Reason, std::string> reason_of(const History& history, const HistorySegment& segment,
                                                 const Failure& failure, bool is_idle,
                                                 const DeviceFacts::Failing& told) {
  const PoolId pool = history.pools[segment.pool];
  if (segment.pool != failure.pool) return {reason_of_pool(pool), pool_name(pool, told)};
  if (is_idle) return {Unused::Reason::idle_pool, pool_name(pool, told)};
  if (segment.stream != failure.stream) return {Unused::Reason::stream, stream_name(history.streams[segment.stream])};
  return {Unused::Reason::pieces, "pieces between live blocks"};
}

Cause cause_of(Unused::Reason reason, PoolId pool) {
  switch (reason) {
    case Unused::Reason::pieces:
      return Cause::fragmentation;
    case Unused::Reason::stream:
      return Cause::other_stream;
    case Unused::Reason::graph_pool:
      return Cause::graph_pools;
    case Unused::Reason::idle_pool:
      return reason_of_pool(pool) == Unused::Reason::graph_pool ? Cause::graph_pools : Cause::private_pool;
    default:
      return Cause::private_pool;
  }
}

std::vector<Unused> unused_of(const History& history, const DeviceHistory& device, const Failure& failure,
                              const DeviceFacts::Failing& told) {
  std::map<std::pair<Unused::Reason, std::string>, Unused> by_reason;
  for (const HistorySegment& segment : device.segments) {
    const std::span<const HistoryBlock> blocks = device.blocks_of(segment);
    const bool is_idle = segment.pool != 0 && std::ranges::all_of(blocks, [](const HistoryBlock& block) {
                           return block.state == HistoryBlock::State::free;
                         });
    const auto reason = reason_of(history, segment, failure, is_idle, told);
    Unused& unused = by_reason[reason];
    unused.reason = reason.first;
    unused.name = reason.second;
    unused.cause = cause_of(reason.first, history.pools[segment.pool]);
    ++unused.cached.segments;
    for (const HistoryBlock& block : blocks) {
      if (block.state != HistoryBlock::State::free) continue;
      unused.cached.bytes += block.bytes;
      unused.cached.largest_bytes = std::max(unused.cached.largest_bytes, block.bytes);
      ++unused.cached.pieces;
      const Address first_page = (block.address + kPage - 1) / kPage * kPage;
      unused.page_bytes += in_whole_pages(less(block.address + block.bytes, first_page));
    }
  }
  std::vector<Unused> all;
  for (auto& [reason, unused] : by_reason) {
    if (unused.cached.bytes > 0) all.push_back(std::move(unused));
  }
  std::ranges::stable_sort(all, std::greater<>{}, [](const Unused& unused) { return unused.cached.bytes; });
  return all;
}

// Returns what the page heap could map together for the request: whole free pages, of any stream, and new ones.
std::uint64_t mappable_bytes(const std::vector<Unused>& unused, const Evidence& evidence) {
  std::uint64_t bytes = in_whole_pages(room_of(evidence));
  for (const Unused& one : unused) {
    const bool is_of_the_pool = one.reason == Unused::Reason::pieces || one.reason == Unused::Reason::stream ||
                                one.reason == Unused::Reason::idle_pool;
    if (is_of_the_pool) bytes += one.page_bytes;
  }
  return bytes;
}

constexpr std::size_t kMostTags = 2;  // that are offered

std::vector<WouldServe> offers_of(const FailingProcess& process, const Evidence& evidence) {
  const Failure& failure = *evidence.failure;
  std::vector<WouldServe> offers;
  const auto offer = [&](std::string key, std::string text, std::uint64_t bytes, std::uint64_t needed) {
    offers.push_back({.key = std::move(key), .text = std::move(text), .bytes = bytes, .serves = bytes >= needed});
  };
  const std::uint64_t mappable = mappable_bytes(process.unused, evidence);
  const std::uint64_t free = failure.device_free_bytes.value_or(0);
  if (!process.told.has_pages) {
    offer("page_heap", "the page heap (CACHALOT_CONF=heap:pages), which could map that together", mappable,
          (failure.requested_bytes + kPage - 1) / kPage * kPage);
  }
  if (evidence.limit_bytes) {
    offer("no_limit", fmt::format("no limit: it is {}", format_bytes(*evidence.limit_bytes)), free,
          process.told.segment_bytes);
  }
  for (const Unused& unused : process.unused) {
    if (unused.reason == Unused::Reason::memory_pool)
      offer("use_on_oom", fmt::format("use_on_oom=True of {}: its largest free block", unused.name),
            unused.cached.largest_bytes, failure.requested_bytes);
  }
  for (const TagShare& tag : first_of(process.tags, process.told.has_pages ? kMostTags : 0)) {
    if (tag.reserved_bytes > 0)
      offer("release_physical", fmt::format("release_physical('{}'), and what is free", printable(tag.name)),
            tag.reserved_bytes + mappable, failure.requested_bytes);
  }
  std::uint64_t served = in_whole_pages(room_of(evidence));
  for (const Unused& unused : process.unused) {
    if (unused.reason == Unused::Reason::pieces || unused.reason == Unused::Reason::idle_pool)
      served = std::max(served, unused.cached.largest_bytes);
  }
  if (served < failure.requested_bytes) {
    offers.push_back({.key = "smaller_request",
                      .text = fmt::format("a request {} smaller", format_bytes(failure.requested_bytes - served)),
                      .bytes = served,
                      .serves = true});
  }
  return offers;
}

}  // namespace

std::optional<FailingProcess> failing_process_of(const Timeline& timeline, const Evidence& evidence,
                                                 std::span<const std::uint32_t> live,
                                                 std::span<const BlockOwner> owners) {
  const History& history = timeline.history();
  const DeviceHistory& device = timeline.device();
  const DeviceFacts* const found = timeline.facts();
  if (found == nullptr || !found->failing) return std::nullopt;
  const DeviceFacts& facts = *found;
  FailingProcess process;
  process.told = *facts.failing;
  process.other_processes = facts.other_processes;
  std::ranges::stable_sort(process.other_processes, std::greater<>{}, &DeviceFacts::Process::bytes);
  for (const HistorySegment& segment : device.asleep) process.asleep_bytes += segment.bytes;
  process.owners = owner_shares(history, timeline.allocations(), live, owners);
  process.tags = tag_shares(history, device, process.told);
  for (const DeviceFacts::Library& library : process.told.libraries)
    process.libraries.push_back({.name = library.name, .bytes = library.bytes});
  std::ranges::stable_sort(process.libraries, std::greater<>{}, &Share::bytes);
  if (!evidence.failure) return process;
  const Failure& failure = *evidence.failure;
  process.stream = stream_name(history.streams[failure.stream]);
  process.pool = pool_name(history.pools[failure.pool], process.told);
  process.unused = unused_of(history, device, failure, process.told);
  process.offers = offers_of(process, evidence);
  return process;
}

// ---- sentences -------------------------------------------------------------------------------------------------------
namespace {

const Unused* largest_of(Cause cause, const FailingProcess& process) {
  const auto found = std::ranges::find(process.unused, cause, &Unused::cause);
  return found == process.unused.end() ? nullptr : &*found;
}

// Returns why the memory does not serve the request: "serves that stream alone".
std::string_view why_not(Unused::Reason reason) {
  switch (reason) {
    case Unused::Reason::pieces:
      return "no piece is large enough";
    case Unused::Reason::stream:
      return "serves that stream alone";
    case Unused::Reason::idle_pool:
      return "nothing is live there, but it is given back only with the pool";
    case Unused::Reason::graph_pool:
      return "replays of its graphs may use it";
    case Unused::Reason::memory_pool:
      return "serves only allocations within use_mem_pool";
    case Unused::Reason::tag:
      return "serves only allocations within its region";
    case Unused::Reason::default_pool:
      return "the request is for a private pool";
  }
  return "";
}

std::string named_processes(const std::vector<DeviceFacts::Process>& processes) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (const DeviceFacts::Process& process : first_of(processes, kMost))
    text += fmt::format("{}process {} ({})", text.empty() ? "" : ", ", process.id, format_bytes(process.bytes));
  return text;
}

std::string outside_sentence(const Evidence& evidence, const FailingProcess& process) {
  const std::string bytes = format_bytes(evidence.other_process_bytes.value_or(0));
  if (!process.other_processes.empty())
    return fmt::format("other processes held {} of the device: {}", bytes, named_processes(process.other_processes));
  if (evidence.own_outside_bytes) return fmt::format("other processes held {} of the device", bytes);
  return fmt::format(
      "{} of the device was held outside of this allocator: by other processes, or by the context and libraries of "
      "this one",
      bytes);
}

std::string limit_sentence(const Evidence& evidence, const FailingProcess& process) {
  if (process.told.is_refused)
    return fmt::format(
        "throw_on_cudamalloc_oom refuses what would exceed per_process_memory_fraction of the device before the cache "
        "({}) is given back",
        format_bytes(less(evidence.reserved_bytes, evidence.allocated_bytes)));
  return fmt::format("this process may hold {} and held {}, while the device had {} free",
                     format_bytes(evidence.limit_bytes.value_or(0)), format_bytes(evidence.reserved_bytes),
                     format_bytes(evidence.failure->device_free_bytes.value_or(0)));
}

// Returns advice for programs whose free pieces the page heap would map together, or else the other one.
std::string page_heap_or(const FailingProcess& process, std::string_view otherwise) {
  const auto offer = std::ranges::find(process.offers, "page_heap", &WouldServe::key);
  const bool serves = offer != process.offers.end() && offer->serves;
  return serves ? "use the page heap, which maps free pieces together: CACHALOT_CONF=heap:pages"
                : std::string(otherwise);
}

std::string advice_on_pool(const Unused& unused, const FailingProcess& process) {
  switch (unused.reason) {
    case Unused::Reason::memory_pool:
      return "delete the MemPool when it is done, or make it with torch.cuda.MemPool(use_on_oom=True), which lends its "
             "memory";
    case Unused::Reason::tag:
      return fmt::format(
          "call cachalot.release_physical for {} while it is idle, or allocate temporaries outside of its region",
          unused.name);
    case Unused::Reason::default_pool:
      return "allocate within the pool before the default pool grows, or call torch.cuda.empty_cache() before";
    default:
      return page_heap_or(process, "allocate the largest first, or delete the pool and use another one");
  }
}

std::string awake_text(const FailingProcess& process) {
  constexpr std::size_t kMost = 3;
  std::string names;
  for (const TagShare& tag : first_of(process.tags, kMost)) {
    if (tag.reserved_bytes > 0)
      names +=
          fmt::format("{}'{}' ({})", names.empty() ? "" : ", ", printable(tag.name), format_bytes(tag.reserved_bytes));
  }
  return names;
}

std::string advice_on_size(const Evidence& evidence, const FailingProcess& process) {
  const std::uint64_t held = evidence.allocated_bytes + evidence.waiting_bytes;
  const std::uint64_t lacking =
      less(evidence.failure->requested_bytes, less(evidence.reserved_bytes, held) + room_of(evidence));
  std::string text = fmt::format(
      "use {} less: a smaller batch with gradient accumulation, checkpointed or saved_tensors_on_host() activations, "
      "or a larger GPU",
      format_bytes(lacking));
  if (process.told.has_pages && !process.tags.empty() && process.tags.front().reserved_bytes > 0) {
    const TagShare& tag = process.tags.front();
    text += fmt::format("; put the tag '{}' ({}) to sleep if it is idle", printable(tag.name),
                        format_bytes(tag.reserved_bytes));
  }
  return text;
}

std::string advice_on_process(const FailingProcess& process) {
  if (process.other_processes.empty())
    return "look at nvidia-smi for other processes on this GPU, and end them or use another GPU: CUDA_VISIBLE_DEVICES";
  return fmt::format("end the other process {} (nvidia-smi lists them), or use another GPU: CUDA_VISIBLE_DEVICES",
                     process.other_processes.front().id);
}

}  // namespace

std::string told_sentence(Cause cause, const Evidence& evidence, const FailingProcess& process) {
  const Unused* const unused = largest_of(cause, process);
  switch (cause) {
    case Cause::other_stream:
    case Cause::private_pool:
    case Cause::graph_pools:
      if (unused == nullptr) return "";
      return fmt::format("{} is free, but {} {}: {}", format_bytes(unused->cached.bytes),
                         cause == Cause::other_stream ? "cached for" : "in", unused->name, why_not(unused->reason));
    case Cause::asleep:
      return fmt::format("{} is asleep and cannot come back: other memory took its place", process.pool);
    case Cause::waiting:
      return fmt::format("{} is freed but waits for work on other streams, and is not waited for during a capture",
                         format_bytes(evidence.waiting_bytes));
    case Cause::limit:
      return limit_sentence(evidence, process);
    case Cause::other_process:
      return outside_sentence(evidence, process);
    case Cause::too_large:
      if (!evidence.total_bytes || evidence.failure->requested_bytes <= *evidence.total_bytes) return "";
      return fmt::format("that is more than the device has ({})", format_bytes(*evidence.total_bytes));
    default:
      return "";
  }
}

std::string recommendation_of(Cause cause, const Evidence& evidence, const FailingProcess& process) {
  const Unused* const unused = largest_of(cause, process);
  const std::string awake = awake_text(process);
  switch (cause) {
    case Cause::fragmentation:
      return page_heap_or(
          process,
          process.told.has_pages
              ? "allocate long-lived small tensors first or in a cachalot.region: they pin the pages that they share"
              : "allocate what lives long before what lives shortly, so that it does not pin segments");
    case Cause::other_stream:
      return page_heap_or(
          process,
          process.told.has_pages
              ? "let the streams wait for each other, or set cross_stream:scarce, so that their memory serves others"
              : "allocate on one stream, or free what the other one still has in those segments");
    case Cause::graph_pools:
      return "share one pool among graphs (torch.cuda.graph(…, pool=…)), capture the largest first, and delete graphs "
             "not in use";
    case Cause::private_pool:
      return unused == nullptr ? "" : advice_on_pool(*unused, process);
    case Cause::oversize_blocks:
      return "leave max_split_size_mb out of the settings";
    case Cause::cached_by_rounding:
      return "leave roundup_power2_divisions out of the settings";
    case Cause::waiting:
      return "synchronize the streams of record_stream() before this point, or free such tensors before the capture "
             "begins";
    case Cause::asleep:
      return fmt::format("free {} of other memory before restore_physical{}",
                         format_bytes(less(evidence.failure->requested_bytes, room_of(evidence))),
                         awake.empty() ? "" : fmt::format(", or put another tag to sleep first: {} is awake", awake));
    case Cause::limit:
      if (process.told.is_refused)
        return "remove throw_on_cudamalloc_oom, so that the cache is given back first, or raise "
               "per_process_memory_fraction";
      return fmt::format("raise the limit of this process (cachalot.limits() says who set it) to {} or more",
                         format_bytes(evidence.reserved_bytes + process.told.segment_bytes));
    case Cause::other_process:
      return advice_on_process(process);
    case Cause::nccl:
      return "make NCCL's buffers smaller: fewer process groups, NCCL_MAX_NCHANNELS or NCCL_BUFFSIZE; with NCCL 2.29.7 "
             "or newer ncclCommSuspend gives its memory back while it is idle";
    case Cause::leak:
      return "free what the lines hold whose memory grew with the steps, or keep it on the CPU";
    default:
      return evidence.failure ? advice_on_size(evidence, process) : "";
  }
}

// ---- parts of a report -----------------------------------------------------------------------------------------------

void add_figures(Section& section, const FailingProcess& process, const Evidence& evidence) {
  section.add_line("program", printable(process.told.who));
  const auto add = [&](const char* label, const std::optional<std::uint64_t>& bytes, const std::string& what) {
    if (bytes && *bytes > 0) section.add_line(label, format_bytes(*bytes) + what);
  };
  if (evidence.failure)
    add("asked for", evidence.failure->requested_bytes, fmt::format(", on {}, from {}", process.stream, process.pool));
  add("waiting", evidence.waiting_bytes, ": freed, but other streams may still use it");
  add("asleep", process.asleep_bytes, ": on the host or dropped, not on the device");
  add("device", evidence.total_bytes,
      evidence.failure ? fmt::format(", {} free", format_bytes(evidence.failure->device_free_bytes.value_or(0))) : "");
  add("limit of this process", evidence.limit_bytes, "");
  add("context and libraries", evidence.own_outside_bytes,
      fmt::format(" of this process, outside of the allocator{}", process.told.has_nccl ? ": also NCCL" : ""));
  const bool is_divided = evidence.own_outside_bytes || !process.other_processes.empty();
  const std::string processes = named_processes(process.other_processes);
  add(is_divided ? "other processes" : "held outside", evidence.other_process_bytes,
      !is_divided         ? ": by other processes, or by the context and libraries of this one"
      : processes.empty() ? ""
                          : ": " + processes);
}

namespace {

std::string owner_text(const OwnerShare& owner) {
  std::string text =
      owner.name.empty() ? "no owner found: activations, temporaries, memory of C++" : printable(owner.name);
  std::string_view separator = ": ";
  for (const Share& kind : owner.kinds) {
    text += fmt::format("{}{} {}", separator, printable(kind.name), format_bytes(kind.bytes));
    separator = ", ";
  }
  return text;
}

constexpr std::size_t kColumnWidth = 12;

Table owners_table(const FailingProcess& process) {
  Table table{
      .key = "owners",
      .title = "By owner",
      .note = "Live at the moment of the verdict, as the program told it.",
      .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = kColumnWidth},
                  {.key = "allocations", .title = "allocations", .unit = Unit::count, .width = kColumnWidth},
                  hidden_column("kinds"),
                  {.key = "name",
                   .title = fmt::format("by owner: modules, optimizers and Python{}",
                                        process.told.knows_owners ? "" : " (the search took too long and was ended)")}},
      .is_apart = true};
  for (const OwnerShare& owner : process.owners) {
    Json kinds = Json::array();
    for (const Share& kind : owner.kinds)
      kinds.push_back({{"name", kind.name}, {"bytes", kind.bytes}, {"allocations", kind.count}});
    table.rows.push_back({owner.bytes, owner.count, std::move(kinds), {owner.name, owner_text(owner)}});
  }
  return table;
}

Table tags_table(const FailingProcess& process) {
  Table table{.key = "tags",
              .title = "By tag",
              .columns = {{.key = "reserved_bytes", .title = "on device", .unit = Unit::bytes, .width = kColumnWidth},
                          {.key = "asleep_bytes", .title = "asleep", .unit = Unit::bytes, .width = kColumnWidth},
                          {.key = "name", .title = "by tag"}},
              .is_apart = true};
  for (const TagShare& tag : process.tags) table.rows.push_back({tag.reserved_bytes, tag.asleep_bytes, tag.name});
  return table;
}

Table libraries_table(const FailingProcess& process) {
  Table table{.key = "libraries",
              .title = "By library",
              .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = kColumnWidth},
                          {.key = "name", .title = "by library"}},
              .is_apart = true};
  for (const Share& library : process.libraries) table.rows.push_back({library.bytes, library.name});
  return table;
}

Table unused_table(const FailingProcess& process) {
  Table table{.key = "unused",
              .title = "Free memory",
              .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = kColumnWidth},
                          {.key = "pieces", .title = "pieces", .unit = Unit::count, .width = 8},
                          {.key = "largest_bytes", .title = "largest", .unit = Unit::bytes, .width = kColumnWidth},
                          hidden_column("segments"),
                          hidden_column("cause"),
                          hidden_column("why"),
                          {.key = "name", .title = "free memory, and why it does not serve the request"}},
              .is_apart = true};
  for (const Unused& one : process.unused)
    table.rows.push_back({one.cached.bytes,
                          one.cached.pieces,
                          one.cached.largest_bytes,
                          one.cached.segments,
                          key_of(one.cause),
                          why_not(one.reason),
                          {one.name, fmt::format("{}: {}", one.name, why_not(one.reason))}});
  return table;
}

Table offers_table(const FailingProcess& process) {
  Table table{.key = "would_serve",
              .title = "What would have served the request",
              .columns = {{.key = "bytes", .title = "bytes", .unit = Unit::bytes, .width = kColumnWidth},
                          {.key = "serves", .title = "serves", .width = 8},
                          hidden_column("key"),
                          {.key = "text", .title = "what would have served the request then"}},
              .is_apart = true};
  for (const WouldServe& offer : process.offers)
    table.rows.push_back({offer.bytes, {offer.serves, offer.serves ? "yes" : "no"}, offer.key, offer.text});
  return table;
}

}  // namespace

void add_tables(Section& section, const FailingProcess& process, std::size_t top) {
  section.add_value("asleep_bytes", process.asleep_bytes);
  for (const auto make : {owners_table, tags_table, libraries_table, unused_table, offers_table}) {
    Table table = make(process);
    table.show_first(top);
    section.add(std::move(table));
  }
}

}  // namespace cachalot::tools
