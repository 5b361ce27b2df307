#include "tools/analysis/message_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "policy/torch_policy.h"
#include "tools/analysis/oom_figures.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

using Says = OomMessage::Says;
using Bytes = std::optional<std::uint64_t>;
using MaybeVerdict = std::optional<MessageVerdict>;

// No GPU has more: AMD's MI355X and NVIDIA's B300.
constexpr std::uint64_t kLargestGpu = 288 * kGiB;

// The memory of the largest workstation GPUs.
constexpr std::uint64_t kLargestOfMost = 96 * kGiB;

// The factor from which a figure is "much more" than another.
constexpr std::uint64_t kTimes = 4;

std::string shown(std::uint64_t bytes) { return format_bytes(bytes); }
std::string shown(const Bytes& bytes) { return format_bytes(bytes.value_or(0)); }

// Returns the two figures' relation with a tolerance for their rounding to two places: 1.05 GiB is between 1.045 and 1.055.
bool is_clearly_more(double part, std::uint64_t whole) { return part > 1.01 * static_cast<double>(whole); }
bool reaches(double part, std::uint64_t whole) { return part >= 0.99 * static_cast<double>(whole); }

double sum(const Bytes& one, const Bytes& other) {
  return static_cast<double>(one.value_or(0)) + static_cast<double>(other.value_or(0));
}

// Names a message that is not PyTorch's, and none of CUDA or NCCL that PyTorch passes on.
std::string kind_text(const OomMessage& message) {
  const std::string_view name = message.framework;
  const bool is_passed_on = message.says != Says::nothing && (name == "CUDA" || name == "HIP");
  const bool is_known = message.is_of_torch || name == "NCCL" || is_passed_on;
  return is_known ? "" : fmt::format("a message of {}: ", name);
}

// Returns whether the message is of the allocator that TensorFlow and XLA share, whose figures tell its limit and its
// memory in use.
bool is_of_bfc_allocator(const OomMessage& message) {
  return message.framework == "TensorFlow" || message.framework.starts_with("JAX");
}

std::string asked_text(const OomMessage& message) {
  std::string text = kind_text(message);
  if (message.requested_bytes) text += fmt::format("{} was asked for: ", shown(message.requested_bytes));
  return text;
}

MessageVerdict verdict(const OomMessage& message, Cause cause, std::string_view why) {
  return {.cause = cause, .text = asked_text(message) + std::string(why)};
}

// ---- Causes that words or one figure prove ----

MaybeVerdict said(const OomMessage& message) {
  constexpr std::array kCauses = {Cause::unknown, Cause::pinned,    Cause::host_memory,
                                  Cause::nccl,    Cause::outside,   Cause::limit,
                                  Cause::driver,  Cause::too_large, Cause::fragmentation};
  if (message.says == Says::nothing) return std::nullopt;
  std::string why = message.words;
  if (message.says == Says::limit && message.allowed_bytes) {
    why += message.reserved_bytes
               ? fmt::format(" ({} of {})", shown(message.reserved_bytes), shown(message.allowed_bytes))
               : fmt::format(" ({})", shown(message.allowed_bytes));
  } else if (message.total_bytes) {
    why += fmt::format(" ({}{})", shown(message.total_bytes),
                       message.free_bytes ? fmt::format(", {} free", shown(message.free_bytes)) : "");
  }
  return verdict(message, kCauses[static_cast<std::size_t>(message.says)], why);
}

// Memory of the host has other limits than that of a GPU.
MaybeVerdict said_of_host(const OomMessage& message) {
  constexpr std::uint64_t kMostOfHosts = 64 * kKiB * kGiB;
  MaybeVerdict one = message.says == Says::pinned || message.says == Says::host_memory ? said(message) : std::nullopt;
  if (one && message.requested_bytes > kMostOfHosts) one->text += "; no host has that much, so a size is wrong";
  return one;
}

MaybeVerdict wrong_shape(const OomMessage& message) {
  if (!message.requested_bytes || *message.requested_bytes <= std::max(kLargestGpu, message.total_bytes.value_or(0)))
    return std::nullopt;
  constexpr std::uint64_t kPiB = kGiB * kMiB;
  const std::uint64_t bytes = *message.requested_bytes;
  const std::string size = bytes < kPiB ? shown(bytes) : bytes < kPiB * kKiB ? "more than a PiB" : "more than an EiB";
  return MessageVerdict{
      .cause = Cause::wrong_shape,
      .text =
          fmt::format("{}{} was asked for: no GPU has that much, so a shape is wrong, or a size is negative and was "
                      "converted",
                      kind_text(message), size)};
}

MaybeVerdict larger_than_device(const OomMessage& message) {
  if (!message.requested_bytes || !message.total_bytes || *message.requested_bytes <= *message.total_bytes)
    return std::nullopt;
  return verdict(message, Cause::too_large,
                 fmt::format("the request alone is larger than the device, which has {}", shown(message.total_bytes)));
}

// ---- Causes that several figures prove ----

bool exceeds_limit(const OomMessage& message) {
  const Bytes held = message.reserved_bytes ? message.reserved_bytes : message.allocated_bytes;
  return message.allowed_bytes && held && reaches(sum(held, message.requested_bytes), *message.allowed_bytes);
}

// Metal's limit is for what PyTorch and other users of Metal in this program hold.
MaybeVerdict metal_limit(const OomMessage& message) {
  if (!message.beside_bytes || !message.allocated_bytes) return std::nullopt;
  const std::string held = fmt::format("{} of PyTorch and {} of other allocations of Metal",
                                       shown(message.allocated_bytes), shown(message.beside_bytes));
  if (!message.allowed_bytes && !message.requested_bytes) return std::nullopt;  // cut off
  if (!message.allowed_bytes)
    return verdict(message, Cause::too_large, fmt::format("the Mac has no more memory beside {}", held));
  const std::string of =
      fmt::format("{} are in use of the {} that PyTorch allows itself (PYTORCH_MPS_HIGH_WATERMARK_RATIO)", held,
                  shown(message.allowed_bytes));
  const bool is_beside = *message.beside_bytes >= *message.allocated_bytes;
  return verdict(message, is_beside ? Cause::outside : Cause::limit, of);
}

// Returns the bytes that PyTorch asks the device for: a message has the size of the segment, old ones that of the
// request.
std::uint64_t segment_bytes(const OomMessage& message) {
  const std::uint64_t rounded = round_to_block(std::max<std::uint64_t>(1, *message.requested_bytes));
  return message.is_of_torch ? std::max<std::uint64_t>(segment_size(rounded, kLargeBuffer), rounded) : rounded;
}

// The free memory is that after the failure, when another process may have given memory back: a device that was nearly full is
// explained by the one that filled it.
bool is_full(const OomMessage& message) {
  constexpr double kFull = 0.05;  // of the device
  return message.total_bytes && message.free_bytes &&
         static_cast<double>(*message.free_bytes) < kFull * static_cast<double>(*message.total_bytes);
}

bool is_filled_by_itself(const OomMessage& message) {
  constexpr double kMost = 0.9;  // of the device
  return is_full(message) && sum(live_bytes(message), 0) >= kMost * sum(message.total_bytes, 0);
}

MaybeVerdict refused_with_free(const OomMessage& message) {
  if (!message.free_bytes || exceeds_limit(message)) return std::nullopt;
  if (*message.free_bytes < segment_bytes(message) || is_filled_by_itself(message)) return std::nullopt;
  return verdict(
      message, Cause::driver,
      fmt::format(
          "it was refused although {} were free on the device: for another reason, such as a limit of mappings or "
          "handles, the size of one block, host memory on Windows and WSL2{}",
          shown(message.free_bytes),
          message.is_of_torch && !message.allowed_bytes
              ? ", or a memory fraction of the program, which not every version of PyTorch tells"
              : ""));
}

MaybeVerdict refused(const OomMessage& message) { return is_full(message) ? std::nullopt : refused_with_free(message); }

// Returns what the program could still take: the free memory, or less by its limit. nullopt where the message does not
// tell.
Bytes available(const OomMessage& message) {
  Bytes bytes = message.free_bytes;
  if (!bytes && message.total_bytes && message.reserved_bytes) {
    const std::uint64_t most = *message.total_bytes - std::min(*message.total_bytes, *message.reserved_bytes);
    if (most < message.requested_bytes) bytes = 0;  // whatever it was, it did not serve the request
  }
  if (bytes && message.allowed_bytes && message.reserved_bytes)
    bytes = std::min(*bytes, *message.allowed_bytes - std::min(*message.allowed_bytes, *message.reserved_bytes));
  return bytes;
}

// Returns whether `bytes` more would have served the request.
bool would_serve(const OomMessage& message, std::uint64_t bytes) {
  const Bytes free = available(message);
  return free && bytes > 0 && sum(bytes, free) >= sum(message.requested_bytes, 0);
}

// A part of the memory, or much more than was asked for.
bool is_worth_naming(const OomMessage& message, std::uint64_t bytes) {
  const bool is_much = bytes >= kGiB && bytes / kTimes >= message.requested_bytes.value_or(0);
  return is_much || static_cast<double>(bytes) >= kWorthNaming * sum(message.reserved_bytes, 0);
}

struct Holder {
  Cause cause = Cause::unknown;
  std::uint64_t bytes = 0;
};

// Returns what others than PyTorch hold of the device, the largest first.
std::vector<Holder> holders_of(const OomMessage& message) {
  const std::uint64_t own = message.process_bytes.value_or(0);
  const std::uint64_t reserved = message.reserved_bytes.value_or(own);
  const std::uint64_t unnamed = unnamed_bytes(message).value_or(0);
  const std::uint64_t outside = own - std::min(own, reserved);
  std::vector holders = {Holder{Cause::other_process, other_bytes(message)},
                         Holder{Cause::nccl, is_more_than_context(outside, reserved) ? outside : 0},
                         Holder{Cause::outside, unnamed > kMostOfContext ? unnamed : 0}};
  std::erase_if(holders, [](const Holder& one) { return one.bytes == 0; });
  std::ranges::stable_sort(holders, std::greater<>{}, &Holder::bytes);
  return holders;
}

std::uint64_t sum_of(const std::vector<Holder>& holders) {
  std::uint64_t bytes = 0;
  for (const Holder& one : holders) bytes += one.bytes;
  return bytes;
}

// Says, for a message with another cause, that PyTorch's cached memory would have been enough; or "".
std::string cached_text(const OomMessage& message) {
  const std::uint64_t unallocated = message.unallocated_bytes.value_or(0);
  const std::uint64_t bytes = unallocated + message.private_bytes.value_or(0);
  if (!message.requested_bytes || bytes < *message.requested_bytes) return "";
  return fmt::format("; the {} that PyTorch caches {} would have served it, too", shown(bytes),
                     bytes > unallocated ? "between live blocks and in private pools" : "between live blocks");
}

// Returns whether other holders have far more than these bytes, so that they are the cause.
bool is_little_beside_others(const OomMessage& message, std::uint64_t bytes) {
  const std::vector<Holder> holders = holders_of(message);
  return !holders.empty() && holders.front().bytes / kTimes >= bytes && would_serve(message, holders.front().bytes);
}

// PyTorch's cached memory can be given back: a smaller part counts where it is large by itself, and no other holder has as
// much.
bool is_cache_worth_naming(const OomMessage& message, std::uint64_t bytes) {
  constexpr double kOfLarge = 0.04;
  if (is_worth_naming(message, bytes)) return true;
  const std::vector<Holder> holders = holders_of(message);
  return bytes >= kGiB && static_cast<double>(bytes) >= kOfLarge * sum(message.reserved_bytes, 0) &&
         (holders.empty() || holders.front().bytes < bytes);
}

MaybeVerdict cached(const OomMessage& message) {
  const std::uint64_t unallocated = message.unallocated_bytes.value_or(0);
  const std::uint64_t in_pools = message.private_bytes.value_or(0);
  if (!would_serve(message, unallocated + in_pools) ||
      !is_cache_worth_naming(message, std::max(unallocated, in_pools)) ||
      is_little_beside_others(message, unallocated + in_pools))
    return std::nullopt;
  const std::string beside =
      (sum(unallocated, in_pools) < sum(message.requested_bytes, 0)
           ? fmt::format(", and {} on the device", shown(message.free_bytes))
           : "") +
      (exceeds_limit(message) ? fmt::format("; a limit of {} forbids more", shown(message.allowed_bytes)) : "");
  if (in_pools > unallocated) {
    const bool also = unallocated >= *message.requested_bytes;
    return verdict(
        message, Cause::private_pool,
        fmt::format("{} is free, but cached in private pools (torch.cuda.MemPool, CUDA graphs){}{}, beside {} of "
                    "live memory",
                    shown(in_pools), also ? fmt::format(", and {} between live blocks", shown(unallocated)) : "",
                    beside, shown(live_bytes(message))));
  }
  const std::string pieces = message.largest_free_bytes
                                 ? fmt::format(" in pieces of at most {}", shown(message.largest_free_bytes))
                                 : std::string();
  return verdict(message, Cause::fragmentation,
                 fmt::format("{}{} is free between live blocks{}", shown(unallocated), pieces, beside));
}

// Windows gives a program memory of the host when that of the GPU is full.
MaybeVerdict host_memory(const OomMessage& message) {
  if (!message.total_bytes) return std::nullopt;
  const std::uint64_t held = std::max(
      {message.allocated_bytes.value_or(0), message.reserved_bytes.value_or(0), message.process_bytes.value_or(0)});
  if (!is_clearly_more(static_cast<double>(held), *message.total_bytes)) return std::nullopt;
  const std::string taken = fmt::format(
      "this program held {} with a device of {}: the driver of Windows (WDDM) had given it memory of the "
      "host for the rest",
      shown(held), shown(message.total_bytes));
  if (message.requested_bytes > message.total_bytes)
    return verdict(message, Cause::host_memory, "the request alone is larger than the device; " + taken);
  const bool fits = message.requested_bytes && message.allocated_bytes <= message.total_bytes;
  const MaybeVerdict in_cache = fits ? cached(message) : std::nullopt;
  if (in_cache) return MessageVerdict{.cause = in_cache->cause, .text = in_cache->text + "; " + taken};
  return verdict(message, Cause::host_memory, taken + ", and gave no more" + cached_text(message));
}

MaybeVerdict limited(const OomMessage& message) {
  // A message that is cut off does not have the reserved memory. A request below its free memory was not refused for
  // want of it.
  const bool is_forbidden = message.is_cut && message.allowed_bytes && message.allocated_bytes &&
                            message.free_bytes >= message.requested_bytes;
  if (!exceeds_limit(message) && !is_forbidden) return std::nullopt;
  const std::string held = shown(message.reserved_bytes ? message.reserved_bytes : message.allocated_bytes);
  if (is_of_bfc_allocator(message))
    return verdict(
        message, Cause::too_large,
        fmt::format("its allocator may take {}, of which {} are in use", shown(message.allowed_bytes), held));
  if (message.is_of_torch && message.free_bytes < message.requested_bytes) return std::nullopt;
  const std::string free =
      message.free_bytes ? fmt::format("the device had {} free, but ", shown(message.free_bytes)) : "";
  return verdict(
      message, Cause::limit,
      fmt::format("{}the program may not take them: a limit was set of {}, of which it holds {}{}{}", free,
                  shown(message.allowed_bytes), message.reserved_bytes ? "" : "at least ", held, cached_text(message)));
}

MaybeVerdict holder(const OomMessage& message) {
  const std::vector<Holder> holders = holders_of(message);
  if (holders.empty()) return std::nullopt;
  const Holder& largest = holders.front();
  // A context, its libraries and graphs are not the cause if the program itself fills the device.
  const bool is_usual =
      largest.cause == Cause::nccl && largest.bytes < 2 * kGiB && live_bytes(message) / kTimes >= largest.bytes;
  if (is_usual || !would_serve(message, sum_of(holders)) || !is_worth_naming(message, sum_of(holders)))
    return std::nullopt;
  const std::uint64_t live = live_bytes(message);
  std::string beside = live / kTimes >= largest.bytes ? fmt::format(", beside {} of live memory", shown(live)) : "";
  beside += cached_text(message);
  if (message.requested_bytes && message.free_bytes >= segment_bytes(message))
    beside += fmt::format("; after the failure {} were free", shown(message.free_bytes));
  const std::string bytes = shown(largest.bytes);
  switch (largest.cause) {
    case Cause::other_process:
      return verdict(message, Cause::other_process,
                     fmt::format("other processes held {} of the device{}", bytes, beside));
    case Cause::nccl:
      return verdict(
          message, Cause::nccl,
          fmt::format("NCCL, the CUDA context and other libraries of this process held {} outside of PyTorch{}", bytes,
                      beside));
    default:
      return verdict(
          message, Cause::outside,
          fmt::format("{} of the device are held outside of this PyTorch, by other processes or by libraries{}{}",
                      bytes, message.reserved_bytes ? "" : ", or cached in CUDA's own pool", beside));
  }
}

// ---- Other messages ----

MaybeVerdict too_large(const OomMessage& message) {
  if (!message.allocated_bytes || !message.total_bytes) return std::nullopt;
  const bool fits_beside =
      sum(message.allocated_bytes, message.requested_bytes) <= static_cast<double>(*message.total_bytes);
  if (!message.free_bytes && fits_beside) return std::nullopt;
  const std::uint64_t in_pools = message.private_bytes.value_or(0);
  const std::uint64_t live = live_bytes(message);
  const std::uint64_t own = own_bytes(message).value_or(*message.allocated_bytes);
  const std::uint64_t in_torch = std::min(message.reserved_bytes.value_or(own), own);
  const std::uint64_t outside = own - in_torch + other_bytes(message) + unnamed_bytes(message).value_or(0);
  std::string why =
      fmt::format("{} of live memory{} and the request do not fit into the {} of the device together", shown(live),
                  outside > 0 ? fmt::format(", {} held outside of PyTorch{}", shown(outside),
                                            message.framework == kAsyncAllocator ? " or cached in CUDA's own pool" : "")
                              : "",
                  shown(message.total_bytes));
  const std::uint64_t cached = message.unallocated_bytes.value_or(0) + in_pools;
  if (cached > 0 && sum(cached, message.free_bytes) >= sum(message.requested_bytes, 0))
    why = fmt::format("{} of the {} of the device are live{}; the {} that PyTorch caches besides lie in smaller pieces",
                      shown(live), shown(message.total_bytes),
                      outside > 0 ? fmt::format(" and {} are held outside of PyTorch", shown(outside)) : "",
                      shown(cached));
  if (is_filled_by_itself(message) && message.requested_bytes && message.free_bytes >= segment_bytes(message))
    why += fmt::format("; it was refused although {} were free", shown(message.free_bytes));
  return verdict(message, Cause::too_large, why);
}

// With its limit and what it holds, a pool that is not at its limit is in pieces.
MaybeVerdict pool_in_pieces(const OomMessage& message) {
  if (!is_of_bfc_allocator(message) || !message.allowed_bytes || !message.allocated_bytes) return std::nullopt;
  return verdict(message, Cause::fragmentation,
                 fmt::format("{} of the {} that its allocator may take are free, in pieces that are too small",
                             shown(*message.allowed_bytes - std::min(*message.allowed_bytes, *message.allocated_bytes)),
                             shown(message.allowed_bytes)));
}

// TensorFlow reports the free memory before it took any.
MaybeVerdict taken_before(const OomMessage& message) {
  if (message.framework != "TensorFlow" || !message.total_bytes || !message.free_bytes || message.allocated_bytes)
    return std::nullopt;
  const std::uint64_t taken = *message.total_bytes - std::min(*message.total_bytes, *message.free_bytes);
  if (taken < *message.free_bytes) return std::nullopt;
  return verdict(message, Cause::outside,
                 fmt::format("{} of the {} of the device were taken before the program began", shown(taken),
                             shown(message.total_bytes)));
}

std::string lacking_text(const OomMessage& message) {
  if (message.is_cut && message.requested_bytes)
    return "the message is cut off behind its first figures, so that it does not tell the cause";
  const bool has_some =
      message.total_bytes || message.allocated_bytes || message.reserved_bytes || message.allowed_bytes;
  if (!message.requested_bytes && has_some)
    return fmt::format("the message {}does not say what was asked for, so that it does not tell the cause",
                       message.is_cut ? "is cut off, and " : "");
  if (!message.requested_bytes) return "the message has no figures that are known, so that it does not tell the cause";
  if (!message.total_bytes && !message.free_bytes)
    return "the message does not say how much memory the device has and had free, so that it does not tell the cause";
  if (!message.free_bytes)
    return "the message does not say how much memory was free, so that it does not tell the cause";
  return "the message does not say how much memory this program had allocated, so that it does not tell the cause";
}

MessageVerdict unknown(const OomMessage& message) {
  std::string text = kind_text(message);
  if (message.requested_bytes) {
    text += fmt::format("{} was asked for", shown(message.requested_bytes));
    if (message.total_bytes) text += fmt::format(" on a device of {}", shown(message.total_bytes));
    if (message.allocated_bytes) text += fmt::format(", with {} allocated", shown(message.allocated_bytes));
    if (message.reserved_bytes && !message.allocated_bytes)
      text += fmt::format(", with {} in its pool", shown(message.reserved_bytes));
    text += "; ";
  }
  const bool has_words = !message.words.empty();
  if (message.requested_bytes > kLargestOfMost) text += "few GPUs have as much; ";
  return {.cause = Cause::unknown,
          .text = text + (has_words ? message.words + "; " : std::string()) + lacking_text(message)};
}

// A limit that is reached, or a device that others have filled, is a cause whatever was asked for.
MessageVerdict without_request(const OomMessage& message) {
  if (is_of_bfc_allocator(message)) return limited(message).value_or(unknown(message));
  return is_full(message) ? holder(message).value_or(unknown(message)) : unknown(message);
}

std::string processes_text(const std::vector<DeviceFacts::Process>& processes) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, processes.size()); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", processes[i].id, format_bytes(processes[i].bytes));
  return text + (processes.size() > kMost ? fmt::format(" and {} more", processes.size() - kMost) : "");
}

// Adds lines for the memory that is held outside of PyTorch, by all that a message tells.
void add_outside(Section& section, const OomMessage& message) {
  if (message.process_bytes) {
    const std::uint64_t in_torch = std::min(*message.process_bytes, message.reserved_bytes.value_or(0));
    section.add_line(
        "this process",
        fmt::format("{}{}{}", format_bytes(*message.process_bytes),
                    message.own_process ? fmt::format(" (process {} of the host)", message.own_process->id) : "",
                    message.reserved_bytes
                        ? fmt::format(", {} of it outside of PyTorch", format_bytes(*message.process_bytes - in_torch))
                        : ""));
  }
  if (!message.other_processes.empty()) {
    const bool has_own = own_bytes(message).has_value();
    const std::string bytes = other_bytes(message) > 0 ? format_bytes(other_bytes(message)) : "not known";
    section.add_line(has_own ? "other processes" : "processes",
                     fmt::format("{} ({})", bytes, processes_text(message.other_processes)));
  }
  if (message.beside_bytes) section.add_line("other allocations", format_bytes(*message.beside_bytes));
  const bool is_beyond =
      own_bytes(message) > message.total_bytes;  // in memory of the host: what others hold is not known
  if (const auto unnamed = is_beyond ? std::nullopt : unnamed_bytes(message)) {
    const bool has_processes = message.process_bytes || other_bytes(message) > 0;
    const bool is_exact = has_processes || message.reserved_bytes;  // else PyTorch's cache is in it
    section.add_line("held outside", fmt::format("{}{}: neither free nor {} {}", is_exact ? "" : "at most ",
                                                 format_bytes(*unnamed), is_exact ? "of" : "allocated by",
                                                 has_processes ? "the processes above" : "this program's PyTorch"));
  }
  const auto own = own_bytes(message);
  if (message.is_of_torch && own && message.total_bytes && !message.free_bytes && !message.false_free_bytes) {
    section.add_line(
        "held outside",
        fmt::format("at most {}: the message does not say how much of it is free",
                    format_bytes(*message.total_bytes - std::min(*message.total_bytes, *own + other_bytes(message)))));
  }
}

}  // namespace

MessageVerdict verdict_of(const OomMessage& message) {
  for (const auto proves : {said_of_host, wrong_shape, said, host_memory, larger_than_device, metal_limit}) {
    if (auto one = proves(message)) return *one;
  }
  if (!message.requested_bytes) return without_request(message);
  if (message.is_cut) {
    if (message.allowed_bytes) return limited(message).value_or(unknown(message));
    if (is_clearly_more(sum(live_bytes(message), message.requested_bytes),
                        message.total_bytes.value_or(std::uint64_t{1} << 62)))
      return too_large(message).value_or(unknown(message));
    const bool names_others = message.process_bytes && !message.other_processes.empty();
    return names_others ? holder(message).value_or(unknown(message)) : unknown(message);
  }
  for (const auto proves :
       {taken_before, refused, cached, limited, pool_in_pieces, holder, refused_with_free, too_large}) {
    if (auto one = proves(message)) return *one;
  }
  return unknown(message);
}

Section message_section(const OomMessage& message) {
  Section section = object_of("message");
  section.add_line("message",
                   fmt::format("{}{}{}", message.framework, message.source.empty() ? "" : ", " + message.source,
                               message.is_cut ? ", cut off: its other figures are missing" : ""));
  if (message.requested_bytes)
    section.add_line("asked for", format_bytes(*message.requested_bytes) +
                                      (message.has_device ? fmt::format(" on device {}", message.device) : ""));
  if (message.total_bytes || message.free_bytes) {
    const std::string total = message.total_bytes ? format_bytes(*message.total_bytes) : "";
    const std::string free = message.free_bytes ? format_bytes(*message.free_bytes) + " free" : "";
    const std::string contradiction =
        message.false_free_bytes
            ? fmt::format("; the message calls {} free, which is more", format_bytes(*message.false_free_bytes))
            : "";
    section.add_line("device", total + (total.empty() || free.empty() ? "" : ", ") + free + contradiction);
  }
  if (message.allowed_bytes) section.add_line("allowed", format_bytes(*message.allowed_bytes));
  if (message.private_bytes) section.add_line("cached in private pools", format_bytes(*message.private_bytes));
  add_outside(section, message);
  section.add_value("framework", message.framework).add_value("source", message.source);
  section.add_value("cut", message.is_cut);
  const std::pair<const char*, Bytes> figures[] = {{"requested_bytes", message.requested_bytes},
                                                   {"total_bytes", message.total_bytes},
                                                   {"free_bytes", message.free_bytes},
                                                   {"allowed_bytes", message.allowed_bytes},
                                                   {"allocated_bytes", message.allocated_bytes},
                                                   {"reserved_bytes", message.reserved_bytes},
                                                   {"unallocated_bytes", message.unallocated_bytes},
                                                   {"private_pools_bytes", message.private_bytes},
                                                   {"largest_free_bytes", message.largest_free_bytes},
                                                   {"other_allocations_bytes", message.beside_bytes},
                                                   {"process_bytes", message.process_bytes},
                                                   {"outside_bytes", unnamed_bytes(message)}};
  for (const auto& [key, bytes] : figures) section.add_value(key, or_null(bytes));
  section.add_value("own_process", message.own_process ? Json(message.own_process->id) : nullptr);
  Json others = Json::array();
  for (const DeviceFacts::Process& process : message.other_processes)
    others.push_back({{"process", process.id}, {"bytes", process.bytes}});
  return section.add_value("other_processes", std::move(others));
}

}  // namespace cachalot::tools
