#include "diagnostics/guard_reports.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "device/addresses.h"
#include "heap/heap_state.h"

CACHALOT_BEGIN

void GuardLog::set_handler(GuardHandler handler) {
  const Lock lock(mutex_);
  handler_ = std::move(handler);
}

void GuardLog::add(const Reports& reports) {
  if (reports.empty()) return;
  {
    const Lock lock(mutex_);
    untaken_.insert(untaken_.end(), reports.begin(), reports.end());
    while (untaken_.size() > kKept) untaken_.pop_front();
  }
  count_ += reports.size();
  tell(reports);
}

void GuardLog::tell(const Reports& reports) {
  if (Batch* const batch = Batch::innermost_of(*this)) {
    batch->reports_.insert(batch->reports_.end(), reports.begin(), reports.end());
    return;
  }
  GuardHandler handler;
  {
    const Lock lock(mutex_);
    handler = handler_;
  }
  std::exception_ptr first;
  for (const GuardReport& report : reports) {
    try {
      if (handler) {
        handler(report);
      } else {
        print_error("cachalot guard: {}\n", to_string(report));
      }
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

GuardLog::Reports GuardLog::take() {
  const Lock lock(mutex_);
  Reports taken(std::make_move_iterator(untaken_.begin()), std::make_move_iterator(untaken_.end()));
  untaken_.clear();
  return taken;
}

// --- batches --------------------------------------------------------------------------------------------------------

thread_local GuardLog::Batch* GuardLog::Batch::innermost_ = nullptr;

GuardLog::Batch::Batch(GuardLog& log) noexcept : log_(log), outer_(innermost_) { innermost_ = this; }

GuardLog::Batch::~Batch() {
  try {
    tell();
  } catch (...) {
  }
}

void GuardLog::Batch::tell() {
  if (!is_open_) return;
  is_open_ = false;
  innermost_ = outer_;
  log_.tell(reports_);
}

GuardLog::Batch* GuardLog::Batch::innermost_of(const GuardLog& log) {
  Batch* batch = innermost_;
  while (batch != nullptr && &batch->log_ != &log) batch = batch->outer_;
  return batch;
}

// Reports as text.

namespace {

using Kind = GuardReport::Kind;

// The limits of a stack as text. JSON has all of it.
constexpr std::size_t kNativeFrames = 12;
constexpr std::size_t kBesideScript = 3;  // native ones, where an interpreter's say it better
constexpr std::size_t kNameLength = 100;  // templates' names may be thousands

std::uint64_t number_of(Stream stream) { return reinterpret_cast<std::uint64_t>(stream); }

std::string when(const GuardCall& call) {
  return formatted("by thread {} at {}.{:06} s", call.thread, call.clock_us / 1'000'000, call.clock_us % 1'000'000);
}

std::string what_was_written(const GuardReport& report) {
  const auto behind = report.offset - as_signed(report.requested_bytes);
  switch (report.kind) {
    case Kind::front_canary:
      return formatted("somebody wrote before it: byte {} is the first that was overwritten", report.offset);
    case Kind::back_canary:
      return formatted("somebody wrote behind it: byte {} is the first that was overwritten, {} behind its end",
                       report.offset, behind);
    default:
      return formatted("somebody wrote to it after it was freed: byte {} is the first that was overwritten",
                       report.offset);
  }
}

const char* name_of_mistake(Kind kind) {
  switch (kind) {
    case Kind::double_free:
      return "double free";
    case Kind::invalid_free:
      return "free of what is not allocated";
    case Kind::wrong_size:
      return "free with another size";
    case Kind::wrong_device:
      return "free on another device";
    case Kind::use_after_free:
      return "use after the free";
    case Kind::invalid_use:
      return "use of what is not allocated";
    default:
      return "use of a released pool";
  }
}

std::string what_was_found(const GuardReport& report) {
  if (report.mistake) {
    return formatted("{} {}: {}.", name_of_mistake(report.kind), when(*report.mistake), report.message);
  }
  return formatted("the block of {} bytes at {:#x} on device {}: {}.", report.requested_bytes, report.address,
                   report.device, what_was_written(report));
}

std::string history(const GuardReport& report) {
  if (report.kind == Kind::released_pool) return formatted(" The last of them did {}.", when(*report.freed));
  if (!report.allocated) return "";
  std::string text = formatted(" It was allocated as call {} {} for stream {:#x}", report.allocated->number,
                               when(*report.allocated), number_of(report.stream));
  for (std::size_t i = 0; i < report.recorded.size(); ++i) {
    text += formatted("{} {:#x}", i == 0 ? ", used on" : ",", number_of(report.recorded[i]));
  }
  if (report.freed) text += formatted(", and freed as call {} {}", report.freed->number, when(*report.freed));
  return text + ".";
}

std::string stack_of(const char* what, const std::optional<GuardCall>& call) {
  if (!call || call->stack.empty()) return "";
  std::string text = formatted("\n  {}:", what);
  std::vector<CallFrame> frames = call->stack.frames();
  const std::size_t script_frames = call->stack.script_frames().size();
  const std::size_t shown = std::min(frames.size(), script_frames > 0 ? script_frames + kBesideScript : kNativeFrames);
  for (std::size_t i = 0; i < shown; ++i) {
    std::string& function = frames[i].function;
    if (function.size() > kNameLength) function.replace(kNameLength, std::string::npos, "…");
    text += formatted("\n    #{} {}", i, to_string(frames[i]));
  }
  if (shown < frames.size()) text += formatted("\n    and {} more", frames.size() - shown);
  return text;
}

std::string stacks(const GuardReport& report) {
  const char* const freed = report.kind == Kind::released_pool ? "released" : "freed";
  const std::string text =
      stack_of("here", report.mistake) + stack_of(freed, report.freed) + stack_of("allocated", report.allocated);
  return text.empty() && !report.mistake ? " debug:True (CACHALOT_DEBUG=1) adds stacks." : text;
}

void write_call(JsonWriter& json, const char* name, const std::optional<GuardCall>& call) {
  json.key(name);
  if (!call) {
    json.value(nullptr);
    return;
  }
  json.begin_object().member("number", call->number).member("thread", call->thread).member("clock_us", call->clock_us);
  json.key("stack").list(call->stack.frames(),
                         [](JsonWriter& list, const CallFrame& frame) { list.value(to_string(frame)); });
  json.end_object();
}

void write_report(JsonWriter& json, const GuardReport& report) {
  json.begin_object().member("kind", to_string(report.kind)).member("device", report.device);
  json.member("address", report.address).member("requested_bytes", report.requested_bytes);
  json.member("offset", report.offset).member("stream", number_of(report.stream));
  json.key("recorded").list(report.recorded, [](JsonWriter& list, Stream stream) { list.value(number_of(stream)); });
  write_call(json, "allocated", report.allocated);
  write_call(json, "freed", report.freed);
  write_call(json, "mistake", report.mistake);
  json.member("message", report.message).end_object();
}

}  // namespace

const char* to_string(GuardReport::Kind kind) {
  constexpr const char* kNames[] = {"front_canary", "back_canary",  "write_after_free", "double_free", "invalid_free",
                                    "wrong_size",   "wrong_device", "use_after_free",   "invalid_use", "released_pool"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(GuardReport::Kind::released_pool) + 1);
  const auto place = static_cast<std::size_t>(kind);
  return place < std::size(kNames) ? kNames[place] : "unknown";
}

bool is_mistake(GuardReport::Kind kind) { return kind > GuardReport::Kind::write_after_free; }

std::string to_string(const GuardReport& report) { return what_was_found(report) + history(report) + stacks(report); }

std::string to_json(Span<const GuardReport> reports) {
  JsonWriter json;
  return json.list(reports, write_report).take();
}

namespace {

std::uint64_t this_thread() {
  static thread_local const auto number = static_cast<std::uint64_t>(::gettid());
  return number;
}

}  // namespace

CallStack GuardCalls::stack_now() const { return takes_stacks_ ? CallStack::capture() : CallStack(); }

GuardCall GuardCalls::next(CallStack stack) { return {++last_, this_thread(), device_.clock_us(), std::move(stack)}; }

GuardCall GuardCalls::mistake() const { return {last_, this_thread(), device_.clock_us(), stack_now()}; }

void GuardMistakes::report(GuardReport::Kind kind, const void* ptr, const std::optional<GuardSighting>& sighting,
                           std::string message) {
  const int device = heap_.state.device->index();
  GuardReport report;
  if (sighting) {
    report = sighting->block.report(kind, sighting->offset(), device);
  } else {
    report = {
        .kind = kind, .device = cachalot::describe(heap_.state, ptr).empty() ? -1 : device, .address = as_address(ptr)};
  }
  report.message = std::move(message);
  add(std::move(report));
}

void GuardMistakes::add(GuardReport report) {
  report.mistake = calls_.mistake();
  log_.add({std::move(report)});
}

void GuardMistakes::note_users(PoolId pool) {
  const bool has_users = heap_.pools.pool_use_count(pool) > 0;
  const GuardCall now = calls_.mistake();
  const Lock lock(mutex_);
  released_pools_.erase(pool);
  if (has_users) return;
  released_pools_.emplace(pool, now);
  if (released_pools_.size() <= kPoolsKept) return;
  const auto number = [](const auto& entry) { return entry.second.number; };
  released_pools_.erase(std::ranges::min_element(released_pools_, {}, number));
}

void GuardMistakes::report_released_pool(PoolId pool, std::string_view message) {
  if (heap_.pools.pool_use_count(pool) > 0) return;
  GuardReport report{.kind = GuardReport::Kind::released_pool, .device = heap_.state.device->index()};
  report.message = formatted("{}: pool ({}, {}) was released by all its users", message, pool.first, pool.second);
  {
    const Lock lock(mutex_);
    const auto released = released_pools_.find(pool);
    if (released == released_pools_.end()) return;
    report.freed = released->second;
  }
  add(std::move(report));
}

CACHALOT_END
