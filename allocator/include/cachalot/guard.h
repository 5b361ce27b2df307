// What the guard (option guard:True) finds: memory that was written by somebody whose it was not.
//
//   cachalot::CachingAllocator allocator(devices, cachalot::parse_options("guard:True"), cachalot::kernels_for);
//   allocator.set_guard_handler([](const cachalot::GuardReport& report) { log(to_string(report)); });
//
// Each block has canaries, patterns before and behind it, which are compared when it is freed. What is freed is filled
// with a pattern and kept for a while (guard_quarantine_mb); nothing may be written there any more, and who does is
// found when it leaves. A byte that is written with what was there goes unnoticed: once in 256 times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cachalot/device.h"

namespace cachalot {

// An allocation or a free, as the guard remembers it.
struct GuardCall {
  std::uint64_t number = 0;  // of the device's allocations and frees, from 1 on, in the order they were made
  std::uint64_t thread = 0;  // the operating system's number of it
  std::int64_t clock_us =
      0;  // Device::clock_us: microseconds since the Unix epoch; simulated: since the device's making
  bool operator==(const GuardCall&) const = default;
};

// One block, where it was written to, and its history.
struct GuardReport {
  enum class Kind : std::uint8_t {
    front_canary,      // somebody wrote before the block
    back_canary,       // somebody wrote behind it
    write_after_free,  // somebody wrote to it, or beside it, when it was freed
  };
  Kind kind = Kind::front_canary;
  int device = 0;
  Address address = 0;              // of the block: what allocate returned
  std::size_t requested_bytes = 0;  // of the block
  std::ptrdiff_t offset = 0;        // of the first byte that was overwritten, from `address`; negative: before it
  Stream stream = nullptr;          // that it was allocated for
  std::vector<Stream> recorded{};   // others that it was used on, as record_stream said
  GuardCall allocated{};
  std::optional<GuardCall> freed{};  // none: it is live
};

const char* to_string(GuardReport::Kind kind);  // "front_canary", …
// A paragraph, without an end of line.
std::string to_string(const GuardReport& report);
// A JSON array of objects with the names of the members above; streams and addresses are numbers.
std::string to_json(std::span<const GuardReport> reports);

// Called for each report, by the thread that found it, with none of the allocator's locks held: it may call the
// allocator. What it throws comes out of the call that found it, which has then done its work.
using GuardHandler = std::function<void(const GuardReport&)>;

}  // namespace cachalot
