#include "simulator/base/watch.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <new>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/format.h"
#include "base/json_writer.h"
#include "base/own_code.h"
#include "cachalot/call_stack.h"
#include "simulator/base/redirection.h"

namespace cachalot::simulator {
namespace {

// --- the Python frames of a thread, for call stacks ---

// Functions of Python. The last one is not part of its API.
struct Python {
  int (*is_initialized)() = nullptr;
  void* (*own_state)() = nullptr;
  void (*dump_traceback)(int descriptor, void* state) = nullptr;

  bool is_complete() const { return is_initialized && own_state && dump_traceback; }
};

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(real_dlsym(RTLD_DEFAULT, name));
}

// Looked up each time: Python may be loaded later.
Python find_python() {
  Python python;
  look_up(python.is_initialized, "Py_IsInitialized");
  if (!python.is_initialized) return python;
  look_up(python.own_state, "PyGILState_GetThisThreadState");
  look_up(python.dump_traceback, "_Py_DumpTraceback");
  return python;
}

// Returns Python's text about the thread's frames; "" if it runs none.
std::string dump() {
  const Python python = find_python();
  if (!python.is_complete() || python.is_initialized() == 0) return "";
  void* const state = python.own_state();
  if (!state) return "";
  const int file = memfd_create("cachalot traceback", MFD_CLOEXEC);
  if (file < 0) return "";
  python.dump_traceback(file, state);
  std::string text(static_cast<std::size_t>(lseek(file, 0, SEEK_CUR)), '\0');
  const ssize_t read = pread(file, text.data(), text.size(), 0);
  text.resize(read < 0 ? 0 : static_cast<std::size_t>(read));
  close(file);
  return text;
}

// Parses a line `  File "train.py", line 8 in train`; returns false for any other.
bool parse(std::string_view line, ScriptFrame& frame) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kIn = " in ";
  if (!line.starts_with(kFile)) return false;
  const auto file_end = line.rfind(kLine);
  const auto number_end = line.find(kIn, file_end);
  if (file_end == std::string_view::npos || number_end == std::string_view::npos) return false;
  const char* const number = line.data() + file_end + kLine.size();
  std::from_chars(number, line.data() + number_end, frame.line);
  frame.file = intern_text(line.substr(kFile.size(), file_end - kFile.size()));
  frame.function = intern_text(line.substr(number_end + kIn.size()));
  return true;
}

// A ScriptFrameProvider (cachalot/call_stack.h) that takes no lock: its callers hold locks of allocators, and must not wait for
// the GIL. Python writes the thread's frames into a file as its faulthandler does, which needs no GIL. Versions of Python that
// do not export that function (3.13 and later) give no frames.
// Requires: no two threads call it at once.
std::size_t python_frames(Span<ScriptFrame> out) noexcept {
  try {
    const std::string text = dump();
    std::string_view rest = text;
    std::size_t count = 0;
    while (!rest.empty() && count < out.size()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      if (parse(rest.substr(0, end), out[count])) ++count;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return count;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_of_simulator(const ScriptFrame& frame) { return contains(frame.file, "/cachalot_simulator/"); }

// Installed, and neither torch's nor the simulator's.
bool is_of_package(const ScriptFrame& frame) {
  return contains(frame.file, "-packages/") && !contains(frame.file, "-packages/torch/") && !is_of_simulator(frame);
}

// The outermost frame of a process of multiprocessing: below it, in a child by fork, is the parent's stack.
bool starts_child(const ScriptFrame& frame) {
  return contains(frame.function, "_bootstrap") && contains(frame.file, "/multiprocess") &&
         contains(frame.file, "/process.py");
}

bool is_of_program(const ScriptFrame& frame) {
  constexpr std::string_view kInstalled[] = {"/site-packages/", "/dist-packages/", "/lib/python", "<frozen"};
  return !is_of_simulator(frame) && std::none_of(std::begin(kInstalled), std::end(kInstalled),
                                                 [&](std::string_view part) { return contains(frame.file, part); });
}

// --- breaches and leaks ---

constexpr std::size_t kMostFrames = 12;  // of a stack, in a report
constexpr std::size_t kMostBreaches = 100;

// Calls for which an invalid value is a breach: they need an object that the program has. Other calls, such as
// cuMemGetAddressRange, may be made to find out whether an object exists.
constexpr std::string_view kNeedsWhatItNames[] = {"cudaFree",   "cuMemFree",        "cuMemUnmap",
                                                  "cudaMemcpy", "cuMemAddressFree", "cuMemRelease"};

bool is_breach(const CudaError& failure) {
  switch (failure.code()) {
    case 1:  // cudaErrorInvalidValue
      return std::find(std::begin(kNeedsWhatItNames), std::end(kNeedsWhatItNames), failure.call()) !=
             std::end(kNeedsWhatItNames);
    case 201:  // CUDA_ERROR_INVALID_CONTEXT
    case 400:  // cudaErrorInvalidResourceHandle
    case 401:  // cudaErrorIllegalState
    case 700:  // cudaErrorIllegalAddress
      return true;
    default:
      return failure.code() >= 900 && failure.code() <= 908;  // of captures
  }
}

// Libraries that keep their objects until the process ends, on purpose.
constexpr std::string_view kKeepers[] = {"libc10", "libtorch", "libcachalot"};

// Returns the file of the innermost code that is not the simulator's; "" if it is not known.
std::string caller_of(const CallStack& stack) {
  for (const std::uintptr_t address : stack.return_addresses()) {
    Dl_info info{};
    if (is_own_code(address - 1) || dladdr(reinterpret_cast<void*>(address - 1), &info) == 0) continue;
    return std::string(file_name(info.dli_fname));
  }
  return "";
}

bool is_keeper(std::string_view library) {
  return std::any_of(std::begin(kKeepers), std::end(kKeepers),
                     [&](std::string_view keeper) { return library.starts_with(keeper); });
}

std::vector<std::string> lines_of(const CallStack& stack) {
  std::vector<std::string> lines;
  for (const CallFrame& frame : stack.frames()) {
    if (lines.size() == kMostFrames) break;
    lines.push_back(to_string(frame));
  }
  return lines;
}

std::string told(const std::string& text, const CallStack& stack) {
  std::string lines = text + "\n";
  for (const std::string& line : lines_of(stack)) lines += "    " + line + "\n";
  return lines;
}

std::string counted(std::size_t count, std::string_view noun) {
  return formatted("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string_view maker_of(Owned kind) {
  constexpr std::array<std::string_view, 6> kMakers{"cudaMalloc",    "cudaMallocAsync",  "cuMemCreate",
                                                    "cudaHostAlloc", "cudaStreamCreate", "cudaEventCreate"};
  return kMakers.at(static_cast<std::size_t>(kind));
}

bool is_memory(Owned kind) { return kind != Owned::stream && kind != Owned::event; }

}  // namespace

std::string line_in_python() {
  std::array<ScriptFrame, CallStack::kMaxFrames> frames;
  const auto known = frames.begin() + static_cast<std::ptrdiff_t>(python_frames(frames));
  const auto end = std::find_if(frames.begin(), known, starts_child);
  auto frame = std::find_if(frames.begin(), end, is_of_program);
  if (frame == end) frame = std::find_if(frames.begin(), end, is_of_package);
  return frame == end ? "" : formatted("{}:{} in {}", frame->file, frame->line, frame->function);
}

void Watch::begin(bool tells_at_once) {
  is_on_ = true;
  tells_at_once_ = tells_at_once;
  add_own_code(reinterpret_cast<const void*>(&own_function));
  set_script_frames(python_frames);
}

void Watch::note(const CudaError& failure) {
  if (is_breach(failure)) add(failure.what(), {});
}

void Watch::note(const std::string& text, const CallStack& other) { add(text, other); }

void Watch::add(const std::string& text, const CallStack& other) {
  ++count_;
  if (!is_on_) return;
  const CallStack stack = CallStack::capture();
  const auto known = std::find_if(breaches_.begin(), breaches_.end(), [&](const Breach& breach) {
    return breach.text == text && breach.stack == stack && breach.other == other;
  });
  if (known != breaches_.end()) {
    ++known->times;
    return;
  }
  if (breaches_.size() == kMostBreaches) return;
  breaches_.push_back({text, stack, other, 1});
  if (!tells_at_once_) return;
  print_error("cachalot simulator: {}", told(text, stack));
  if (!other.empty()) print_error("{}", told("  the other call:", other));
}

void Watch::made(Owned kind, const void* object, int device, std::size_t bytes) {
  if (is_on_) owned_[{kind, object}] = {CallStack::capture(), device, bytes};
}

void Watch::all_gone(int device) {
  std::erase_if(owned_, [&](const auto& entry) { return entry.second.device == device; });
}

Watch::Left Watch::left() const {
  Left left;
  for (const auto& [key, object] : owned_) {
    const Owned kind = key.first;
    const std::string caller = caller_of(object.stack);
    if (is_keeper(caller)) {
      Kept& kept = left.kept[caller];
      kept.bytes += object.bytes;
      ++(is_memory(kind) ? kept.allocations : kind == Owned::stream ? kept.streams : kept.events);
      continue;
    }
    auto leak = std::find_if(
        left.leaks.begin(), left.leaks.end(),
        [&, kind = kind, &stack = object.stack](const Leak& one) { return one.kind == kind && one.stack == stack; });
    if (leak == left.leaks.end()) leak = left.leaks.insert(leak, {kind, object.stack, 0, 0});
    ++leak->objects;
    leak->bytes += object.bytes;
  }
  std::stable_sort(left.leaks.begin(), left.leaks.end(),
                   [](const Leak& a, const Leak& b) { return a.bytes > b.bytes; });
  return left;
}

std::string Watch::text_of(const Leak& leak) {
  if (!is_memory(leak.kind))
    return formatted("{} of {}", counted(leak.objects, leak.kind == Owned::stream ? "stream" : "event"),
                     maker_of(leak.kind));
  return formatted("{} in {} of {}", format_bytes(leak.bytes), counted(leak.objects, "allocation"),
                   maker_of(leak.kind));
}

std::string Watch::text_of(const std::string& library, const Kept& kept) {
  return formatted("{} in {}, {} and {}, by {}", format_bytes(kept.bytes), counted(kept.allocations, "allocation"),
                   counted(kept.streams, "stream"), counted(kept.events, "event"), library);
}

void Watch::tell_what_is_left() const {
  if (!is_on_ || !tells_at_once_) return;
  for (const Leak& leak : left().leaks)
    print_error("cachalot simulator: not given back: {}", told(text_of(leak), leak.stack));
}

void Watch::write(JsonWriter& json) const {
  const auto write_stack = [&](const char* name, const CallStack& stack) { json.key(name).list(lines_of(stack)); };
  json.key("breaches").list(breaches_, [&](JsonWriter&, const Breach& breach) {
    json.begin_object().member("text", breach.text).member("times", breach.times);
    write_stack("stack", breach.stack);
    if (!breach.other.empty()) write_stack("other_stack", breach.other);
    json.end_object();
  });
  const Left left = this->left();
  json.key("leaks").list(left.leaks, [&](JsonWriter&, const Leak& leak) {
    json.begin_object().member("text", text_of(leak)).member("call", maker_of(leak.kind));
    json.member("objects", leak.objects).member("bytes", leak.bytes);
    write_stack("stack", leak.stack);
    json.end_object();
  });
  json.key("kept").list(left.kept, [&](JsonWriter&, const auto& entry) {
    const auto& [library, kept] = entry;
    json.begin_object().member("text", text_of(library, kept)).member("library", library).member("bytes", kept.bytes);
    json.member("allocations", kept.allocations).member("streams", kept.streams).member("events", kept.events);
    json.end_object();
  });
}

}  // namespace cachalot::simulator
