// cachalot's plain values and errors as torch's, and torch's options as cachalot's.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapter/annotations.h"
#include "cachalot/device.h"
#include "cachalot/errors.h"
#include "cachalot/events.h"
#include "cachalot/options.h"
#include "cachalot/stats.h"

namespace cachalot::torch_adapter {

// Runs `action` and returns what it returns. OutOfMemory becomes c10::OutOfMemoryError (torch.OutOfMemoryError), CudaError
// c10::AcceleratorError (torch.AcceleratorError), InvalidArgument c10::Error (RuntimeError).
template <typename Action>
auto as_torch(Action action) -> decltype(action()) {
  try {
    return action();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
  } catch (const CudaError& error) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, error.code(), error.what());
  } catch (const InvalidArgument& error) {
    TORCH_CHECK(false, error.what());
  }
}

namespace cuda_caching = c10::cuda::CUDACachingAllocator;
using cuda_caching::TraceEntry;

inline PoolId to_pool_id(const c10::MempoolId_t& id) { return {id.first, id.second}; }
inline c10::MempoolId_t to_torch(PoolId id) { return {id.first, id.second}; }

// Contexts are made by torch's recorder and handed back unchanged.
inline std::shared_ptr<c10::GatheredContext> to_torch(const Context& context) {
  return std::static_pointer_cast<c10::GatheredContext>(context);
}

inline c10::CachingAllocator::Stat to_torch(const Stat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

inline c10::CachingAllocator::StatArray to_torch(const StatArray& stats) {
  return {to_torch(stats.all), to_torch(stats.small_pool), to_torch(stats.large_pool)};
}

inline c10::CachingDeviceAllocator::DeviceStats to_torch(const DeviceStats& stats) {
  c10::CachingDeviceAllocator::DeviceStats result;
  result.allocation = to_torch(stats.allocation);
  result.segment = to_torch(stats.segment);
  result.active = to_torch(stats.active);
  result.inactive_split = to_torch(stats.inactive_split);
  result.allocated_bytes = to_torch(stats.allocated_bytes);
  result.reserved_bytes = to_torch(stats.reserved_bytes);
  result.active_bytes = to_torch(stats.active_bytes);
  result.inactive_split_bytes = to_torch(stats.inactive_split_bytes);
  result.requested_bytes = to_torch(stats.requested_bytes);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.oversize_allocations = to_torch(stats.oversize_allocations);
  result.oversize_segments = to_torch(stats.oversize_segments);
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
  result.max_split_size = stats.max_split_size;
  return result;
}

template <typename Stats>  // a template, since torch 2.10 and 2.11 have none of them, and 2.12 has one
void add_newer(const AddedStats& added, Stats& result) {
  if constexpr (requires { result.num_oom_rejections; }) result.num_oom_rejections = added.num_oom_rejections;
  if constexpr (requires { result.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, stats] : added.reserved_bytes_by_private_pools)
      result.reserved_bytes_by_private_pools[to_torch(pool)] = to_torch(stats);
  }
}

inline cuda_caching::BlockInfo to_torch(const BlockSnapshot& block) {
  using State = BlockSnapshot::State;
  cuda_caching::BlockInfo info;
  info.size = block.size;
  info.requested_size = block.requested_size;
  info.allocated = block.state == State::active_allocated;
  info.active = block.state != State::inactive;
  info.context_when_allocated = to_torch(block.context);
  return info;
}

// Ranks register the segments of a pool with NCCL in the order of this number, which is not negative (since torch 2.11).
template <typename Info>
void number(Info& info, std::uint64_t number) {
  if constexpr (requires { info.registration_counter; })
    info.registration_counter = static_cast<decltype(info.registration_counter)>(number);
}

inline cuda_caching::SegmentInfo to_torch(const SegmentSnapshot& segment) {
  cuda_caching::SegmentInfo info;
  info.device = static_cast<c10::DeviceIndex>(segment.device);
  info.address = segment.address;
  info.total_size = segment.total_size;
  info.requested_size = segment.requested_size;
  info.allocated_size = segment.allocated_size;
  info.active_size = segment.active_size;
  info.stream = segment.stream;
  info.is_large = segment.segment_type == PoolKind::large;
  info.is_expandable = segment.is_expandable;
  number(info, segment.number);
  info.owner_private_pool_id = to_torch(segment.segment_pool_id);
  info.blocks.reserve(segment.blocks.size());
  for (const BlockSnapshot& block : segment.blocks) info.blocks.push_back(to_torch(block));
  info.context_when_allocated = to_torch(segment.context);
  return info;
}

// Returns the stream, the kind and the size of each expandable segment of the device.
inline std::vector<cuda_caching::StreamSegmentSize> expandable_sizes(const Snapshot& taken, int device) {
  std::vector<cuda_caching::StreamSegmentSize> sizes;
  for (const SegmentSnapshot& segment : taken.segments) {
    if (segment.device != device || !segment.is_expandable) continue;
    sizes.emplace_back(segment.stream, segment.segment_type == PoolKind::small, segment.total_size);
  }
  return sizes;
}

// The first nine actions are torch's, in its order, and since 2.14 a tenth. Nothing for ours, which torch has no word for.
template <typename Entry = TraceEntry>
std::optional<typename Entry::Action> torch_action(Change::Action action) {
  static_assert(static_cast<int>(Change::Action::oom) == Entry::OOM);
  if (action <= Change::Action::oom) return static_cast<typename Entry::Action>(action);
  if constexpr (requires { Entry::ANNOTATE; }) {
    if (action == Change::Action::annotate) return Entry::ANNOTATE;
  }
  return std::nullopt;
}

inline void annotate(const Annotation& annotation, TraceEntry& entry) {
  entry.compile_context_ = annotation.compile_context;
  entry.user_metadata_ = annotation.user_metadata;
}

// Marks an entry as torch's own allocator does since 2.15; before that, behind the user's metadata.
template <typename Entry>
void mark_as_placed(Entry& entry) {
  constexpr const char* kMark = "mallocWithAddress";
  if constexpr (requires { entry.internal_metadata_; }) {
    entry.internal_metadata_ = kMark;
  } else {
    entry.user_metadata_ += entry.user_metadata_.empty() ? kMark : std::string("\n") + kMark;
  }
}

// The change must have a torch_action.
inline TraceEntry to_torch(const Change& change) {
  TraceEntry entry(*torch_action(change.action), static_cast<c10::DeviceIndex>(change.device), change.address,
                   change.bytes, change.stream, to_torch(change.pool), c10::getApproximateTime(),
                   to_torch(change.context), kNoCompileContext);
  if (const auto* annotation = static_cast<const Annotation*>(change.annotation.get())) annotate(*annotation, entry);
  if (change.is_placed) mark_as_placed(entry);
  return entry;
}

// Converts a Change as in a snapshot, where the time is in microseconds since the epoch.
inline TraceEntry to_torch_with_unix_time(const Change& change) {
  TraceEntry entry = to_torch(change);
  entry.time_.t_ = change.time_us;
  return entry;
}

inline std::vector<TraceEntry> to_torch(const std::vector<Change>& trace) {
  std::vector<TraceEntry> entries;
  entries.reserve(trace.size());
  for (const Change& change : trace) {
    if (torch_action(change.action)) entries.push_back(to_torch_with_unix_time(change));
  }
  return entries;
}

// Throws InvalidArgument for a word that is not an action.
inline Change::Action to_action(std::string_view word) {
  using Action = Change::Action;
  for (int i = 0; i <= static_cast<int>(Action::annotate); ++i) {
    if (word == to_string(static_cast<Action>(i)) && torch_action(static_cast<Action>(i)))
      return static_cast<Action>(i);
  }
  throw InvalidArgument("Unknown TraceEntry action: " + std::string(word));
}

inline HistoryOptions::Contexts to_contexts(cuda_caching::RecordContext level) {
  using cuda_caching::RecordContext;
  using Contexts = HistoryOptions::Contexts;
  switch (level) {
    case RecordContext::NEVER:
      return Contexts::never;
    case RecordContext::STATE:
      return Contexts::state;
    case RecordContext::ALLOC:
      return Contexts::alloc;
    case RecordContext::ALL:
      return Contexts::all;
  }
  return Contexts::never;
}

// The limits of pinned memory, which is torch's own: in snapshots since 2.13.
template <typename Config, typename Info>
void add_pinned_limits(Info& info) {
  if constexpr (requires { info.max_round_threshold; }) info.max_round_threshold = Config::pinned_max_round_threshold();
  if constexpr (requires { info.max_cached_size; }) info.max_cached_size = Config::pinned_max_cached_size();
}

// Settings without effect on this allocator: pinned memory, which is torch's own, heeds some.
inline void add_settings_of_torch(cuda_caching::AllocatorConfigInfo& info) {
  using Config = cuda_caching::CUDAAllocatorConfig;
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
}

inline cuda_caching::AllocatorConfigInfo to_torch(const Options& options) {
  cuda_caching::AllocatorConfigInfo info;
  info.garbage_collection_threshold = options.garbage_collection_threshold;
  info.max_split_size = options.max_split_size;
  info.expandable_segments = takes_pages(options);
  info.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
  info.roundup_power2_divisions.assign(options.roundup_power2_divisions.begin(),
                                       options.roundup_power2_divisions.end());
  add_settings_of_torch(info);
  add_pinned_limits<c10::CachingAllocator::AcceleratorAllocatorConfig>(info);
  return info;
}

// torch's own reading of PYTORCH_CUDA_ALLOC_CONF as cachalot's options, so that what torch tolerates is tolerated.
//
// Settings that came after torch 2.10 keep their defaults where torch does not have them.
template <typename Common, typename Cuda>
void read_newer_settings(Options& options) {
  if constexpr (requires { Common::large_segment_size(); }) options.large_segment_size = Common::large_segment_size();
  if constexpr (requires { Cuda::throw_on_cudamalloc_oom(); })
    options.throw_on_cudamalloc_oom = Cuda::throw_on_cudamalloc_oom();
}

inline Options options_of_torch() {
  using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  Options options;
  read_newer_settings<Common, Cuda>(options);
  options.max_split_size = Common::max_split_size();
  options.max_non_split_rounding = Common::max_non_split_rounding_size();
  options.garbage_collection_threshold = Common::garbage_collection_threshold();
  const std::vector<std::size_t>& divisions = Common::roundup_power2_divisions();
  std::copy_n(divisions.begin(), std::min(divisions.size(), options.roundup_power2_divisions.size()),
              options.roundup_power2_divisions.begin());
  options.expandable_segments = Common::use_expandable_segments();
  options.per_process_memory_fraction = Cuda::per_process_memory_fraction();
  options.text = c10::CachingAllocator::getAllocatorSettings();
  return options;
}

}  // namespace cachalot::torch_adapter
