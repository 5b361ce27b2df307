#include <fmt/format.h>

#include <string>

#include "base/bytes.h"
#include "tools/analysis/explanation.h"

namespace cachalot::tools {
namespace {

std::string size_text(std::uint64_t number) { return format_bytes(number); }

std::string pieces_text(const Cached& cached) {
  if (cached.pieces == 0) return size_text(cached.bytes);
  return fmt::format("{} in {} piece{} of at most {}", size_text(cached.bytes), cached.pieces,
                     cached.pieces == 1 ? "" : "s", size_text(cached.largest_bytes));
}

std::string pinned_by(const Explanation& one) {
  if (one.pins.empty()) return "";
  const NamedPin& first = one.pins.front();
  if (first.at.empty()) return "";
  return fmt::format("; most of it lies beside {} block{} ({}) of {}", first.pin.blocks,
                     first.pin.blocks == 1 ? "" : "s", size_text(first.pin.block_bytes), first.at);
}

std::string holder_text(const Explanation& one) {
  const Evidence& evidence = one.evidence;
  switch (one.cause) {
    case Cause::limit:
      return fmt::format("the device had {} free, but the program may not take them: a limit was set{}",
                         size_text(evidence.failure->device_free_bytes.value_or(0)),
                         evidence.limit_bytes ? fmt::format(" of {}", size_text(*evidence.limit_bytes)) : "");
    case Cause::leak:
      return fmt::format(
          "{} of the live memory grew with the steps of the program: {} in {} allocations of {} are never freed",
          size_text(evidence.leaked_bytes), size_text(one.growths.front().bytes), one.growths.front().allocations,
          one.growths.front().at);
    case Cause::other_process:
      return fmt::format("other processes held {} of the device", size_text(evidence.other_process_bytes.value_or(0)));
    case Cause::nccl:
      return evidence.own_outside_bytes || evidence.nccl_bytes
                 ? fmt::format("NCCL, the CUDA context and other libraries of this process held {} outside of PyTorch",
                               size_text(evidence.nccl_bytes.value_or(evidence.own_outside_bytes.value_or(0))))
                 : "NCCL found no memory for its buffers, which it takes outside of PyTorch";
    case Cause::pinned:
      return "pinned host memory ran out, not memory of the GPU; PyTorch rounds each pinned request up to a power of "
             "two";
    default:
      return fmt::format("{} of live memory and the request do not fit into the device together",
                         size_text(evidence.allocated_bytes));
  }
}

std::string cached_text(const Explanation& one) {
  const Cached& cached = one.evidence.of(one.cause);
  switch (one.cause) {
    case Cause::fragmentation:
      return fmt::format("{} is free between live blocks{}", pieces_text(cached), pinned_by(one));
    case Cause::other_stream:
      return fmt::format("{} is free, but cached for other streams{}", pieces_text(cached), pinned_by(one));
    case Cause::private_pool:
      return fmt::format("{} is free, but cached in private pools (torch.cuda.MemPool)", pieces_text(cached));
    case Cause::graph_pools:
      return fmt::format("{} is free, but kept in the pools of CUDA graphs", pieces_text(cached));
    case Cause::oversize_blocks:
      return fmt::format("{} are the rests of blocks that max_split_size_mb keeps whole", size_text(cached.bytes));
    case Cause::cached_by_rounding:
      return fmt::format("{} of the live blocks were not asked for: requests are rounded up", size_text(cached.bytes));
    default:
      return holder_text(one);
  }
}

}  // namespace

std::string sentence_of(const Explanation& one) {
  if (one.cause == Cause::none) return "memory did not run out";
  if (!one.evidence.failure) return holder_text(one);
  return fmt::format("{} was asked for: {}", size_text(one.evidence.failure->requested_bytes), cached_text(one));
}

}  // namespace cachalot::tools
