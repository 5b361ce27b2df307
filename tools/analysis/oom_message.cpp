#include "tools/analysis/oom_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tools/analysis/causes.h"
#include "tools/analysis/log_text.h"
#include "tools/analysis/oom_figures.h"
#include "tools/analysis/written_sizes.h"
#include "tools/base/text_layout.h"

namespace cachalot::tools {
namespace {

using std::string_view_literals::operator""sv;
using Says = OomMessage::Says;
using Figure = OomFigure;

constexpr auto kNpos = std::string_view::npos;

// ---- Figures, by the words before or behind them ----

enum class FigureSide : bool { before, behind };

struct Field {
  std::string_view words;
  FigureSide side = FigureSide::behind;  // of the words, where the figure stands
  Figure figure = nullptr;
  bool is_earlier = false;  // the words stand before the first words of the message
};

// The text of a message in a log, which may begin before its first words.
struct Extent {
  std::string_view text;
  std::size_t begin = 0;         // of the first words, in text
  bool always_has_units = true;  // a size without one is cut off
};

std::optional<std::uint64_t> figure_at(const Extent& extent, std::size_t at, const Field& field) {
  if (field.side == FigureSide::before) return size_before(extent.text.substr(0, at));
  const auto size = size_at(extent.text.substr(at + field.words.size()));
  return size && (size->has_unit || !extent.always_has_units) ? std::optional(size->bytes) : std::nullopt;
}

std::optional<std::uint64_t> figure_of(const Extent& extent, const Field& field) {
  if (field.is_earlier) {
    const std::size_t at = extent.text.rfind(field.words, extent.begin);
    return at == kNpos ? std::nullopt : figure_at(extent, at, field);
  }
  for (std::size_t at = extent.text.find(field.words, extent.begin); at != kNpos;
       at = extent.text.find(field.words, at + 1)) {
    if (const auto bytes = figure_at(extent, at, field)) return bytes;
  }
  return std::nullopt;
}

void read_fields(OomMessage& message, const Extent& extent, std::span<const Field> fields) {
  for (const Field& field : fields) {
    if (field.figure == nullptr || message.*field.figure) continue;
    message.*field.figure = figure_of(extent, field);
  }
}

// ---- Places in a text ----

constexpr std::size_t kNearby = 300;           // squeezed characters: on the same line, or the next
constexpr std::size_t kReach = 1200;           // of a message's figures behind its first words
constexpr std::size_t kTracebackReach = 4000;  // of the calls that led to it

// Returns the text from `back` characters before `at` to `ahead` behind it.
std::string_view around(std::string_view text, std::size_t at, std::size_t back, std::size_t ahead) {
  const std::size_t begin = at < back ? 0 : at - back;
  return text.substr(begin, at - begin + ahead);
}

// ---- Messages of PyTorch's caching allocator and of those that write the same words ----

// PyTorch 1: "(GPU 0; 11.91 GiB total capacity; 10.79 GiB already allocated; 12.94 MiB free; 11.21 GiB reserved in total by PyTorch)";
// PyTorch 2: "GPU 0 has a total capacity of 23.64 GiB of which 67.06 MiB is free. …". 2.0 and 2.1 spell "capacty"; until 1.3, the last
// figure was "cached". The last ones are cachalot's.
constexpr std::array kTorchFields = {
    Field{"totalcapacityof", FigureSide::behind, &OomMessage::total_bytes},
    Field{"totalcapactyof", FigureSide::behind, &OomMessage::total_bytes},
    Field{"totalcapacity", FigureSide::before, &OomMessage::total_bytes},
    Field{"totalcapacty", FigureSide::before, &OomMessage::total_bytes},
    Field{"ofwhich", FigureSide::behind, &OomMessage::free_bytes},
    Field{"isfree.", FigureSide::before, &OomMessage::free_bytes},
    Field{"free;", FigureSide::before, &OomMessage::free_bytes},
    Field{"alreadyallocated", FigureSide::before, &OomMessage::allocated_bytes},
    Field{"cached", FigureSide::before, &OomMessage::unallocated_bytes},
    Field{"reservedintotal", FigureSide::before, &OomMessage::reserved_bytes},
    Field{"allowed;", FigureSide::before, &OomMessage::allowed_bytes},
    Field{"thisprocesshas", FigureSide::behind, &OomMessage::process_bytes},
    Field{"Oftheallocatedmemory", FigureSide::behind, &OomMessage::allocated_bytes},
    Field{"allocatedinprivatepools", FigureSide::before, &OomMessage::private_bytes},
    Field{"isreservedby", FigureSide::before, &OomMessage::unallocated_bytes},
    Field{"allowedby", FigureSide::before, &OomMessage::allowed_bytes},
    Field{"isallocated", FigureSide::before, &OomMessage::allocated_bytes},
    Field{"isreserved.", FigureSide::before, &OomMessage::reserved_bytes},
    Field{"isreservedbut", FigureSide::before, &OomMessage::unallocated_bytes},
    Field{"ofitinprivatepools", FigureSide::before, &OomMessage::private_bytes},
    Field{"blockthisstreamcoulduseis", FigureSide::behind, &OomMessage::largest_free_bytes},
};

// The words that end a message, wherever the log goes on.
constexpr std::array kTorchEnds = {"butunallocated"sv, "reservedintotalbyPyTorch"sv, "cached)"sv,
                                   "Tracebackmost"sv,  "Traceback(most"sv,           "Exceptionraisedfrom"sv};
constexpr std::size_t kLongestMessage = 8000;  // squeezed, with many processes

constexpr std::uint64_t kMostDevices = 1 << 20;  // a larger number is not the number of a device

// Returns the letters before `at`: "CUDA" of "CUDAoutofmemory".
std::string_view letters_before(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && std::isalpha(static_cast<unsigned char>(text[begin - 1])) != 0) --begin;
  return text.substr(begin, at - begin);
}

// Returns the backend whose message it is, "CUDA", by the words before those that begin it.
std::string backend_before(std::string_view text, std::size_t at) {
  constexpr std::string_view kWords = "outofmemory";
  const std::string_view before = text.substr(at < 80 ? 0 : at - 80, std::min<std::size_t>(at, 80));
  if (before.find("Currentplatformcan") != kNpos) return "XPU";
  const std::size_t words = before.rfind(kWords);
  std::string_view name = words == kNpos ? "" : letters_before(before, words);
  for (const std::string_view known :
       {"CUDA"sv, "HIP"sv, "XPU"sv, "NPU"sv, "MUSA"sv, "MLU"sv, "HPU"sv, "SDAA"sv, "GCU"sv}) {
    if (name.ends_with(known)) return std::string(known);
  }
  return "CUDA";
}

// Returns the number of "(GPU 0;", ". GPU 0 has" or " on GPU 0"; the name of a backend may stand in place of "GPU".
std::optional<int> device_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(".("), text.size()));
  if (text.starts_with("on")) text.remove_prefix(2);
  const std::size_t digits = text.find_first_of("0123456789");
  const bool is_name = digits != kNpos && digits >= 2 && digits <= 5 && letters_before(text, digits).size() == digits;
  const auto number = is_name ? integer_at(text.substr(digits)) : std::nullopt;
  if (!number) return std::nullopt;
  return static_cast<int>(std::min<std::uint64_t>(*number, kMostDevices));
}

std::vector<DeviceFacts::Process> processes_in(std::string_view text) {
  constexpr std::string_view kWord = "Process";
  constexpr std::size_t kMost = 1000;
  std::vector<DeviceFacts::Process> processes;
  for (std::size_t at = text.find(kWord); at != kNpos && processes.size() < kMost; at = text.find(kWord, at + 1)) {
    std::string_view rest = text.substr(at + kWord.size());
    const auto id = integer_at(rest);
    if (!id) continue;
    rest.remove_prefix(std::min(rest.find_first_not_of("0123456789"), rest.size()));
    if (!rest.starts_with("has")) continue;
    if (const auto size = size_at(rest.substr(3)); size && size->has_unit)
      processes.push_back({.id = *id, .bytes = size->bytes, .name = ""});
  }
  return processes;
}

// Returns where the message ends that begins at `begin`: behind its last words, or where something else begins.
std::size_t end_of_message(std::string_view text, std::size_t begin, std::string_view next) {
  const std::string_view rest = text.substr(begin, kLongestMessage);
  std::size_t end = std::min(rest.find(next, 1), rest.size());
  for (const std::string_view words : kTorchEnds) {
    const std::size_t at = rest.substr(0, end).find(words);
    if (at != kNpos) end = at + words.size();
  }
  // cachalot's own message has more behind these words.
  if (const std::size_t request = rest.substr(0, end).find("Therequestwasfor"); request != kNpos)
    end = std::min({rest.size(), end + 400, rest.find(next, 1)});
  return begin + std::min(end, rest.size());
}

void set_device(OomMessage& message, std::optional<int> device) {
  message.device = device.value_or(0);
  message.has_device = device.has_value();
}

constexpr std::string_view kTried = "Triedtoallocate";

OomMessage torch_message(std::string_view text, std::size_t begin) {
  const Extent extent = {.text = text.substr(begin, end_of_message(text, begin, kTried) - begin), .begin = 0};
  const std::string_view behind = extent.text.substr(kTried.size());
  OomMessage message;
  message.framework = fmt::format("PyTorch on {}", backend_before(text, begin));
  if (extent.text.find("Therequestwasfor") != kNpos) message.framework = "cachalot";
  if (extent.text.find("withcachingoff") != kNpos) {
    message.framework = "cachalot";
    message.words = "the device had no memory for it, and caching is off";
  }
  if (behind.starts_with("morethan1EB")) {
    message.requested_bytes = std::uint64_t{1} << 60;
    if (const std::size_t on = behind.substr(0, 120).find("onGPU"); on != kNpos)
      set_device(message, device_at(behind.substr(on)));
    return message;
  }
  const auto size = size_at(behind);
  if (size->has_unit) message.requested_bytes = size->bytes;
  set_device(message, device_at(behind.substr(size->length)));
  message.other_processes = processes_in(extent.text);
  read_fields(message, extent, kTorchFields);
  const std::string_view before = text.substr(begin < 200 ? 0 : begin - 200, std::min<std::size_t>(begin, 200));
  if (before.find("blocksizelarger") != kNpos || before.find("blockwithsizelarger") != kNpos) {
    message.says = Says::driver;
    message.words = "the driver of this platform does not give a block of memory larger than 4 GiB";
  }
  constexpr std::string_view kNoHostMemory = "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY";
  if (around(text, begin, kNearby, kReach).find(kNoHostMemory) != kNpos) {
    message.says = Says::driver;
    message.words = fmt::format("the driver has no memory of the host for it ({})", kNoHostMemory);
  }
  if (before.find("Errorin(function") != kNpos || before.find("Errorein(function") != kNpos)
    message.framework += ", in R";
  return message;
}

// ---- Messages of other programs ----

// A message that is known by its words. Their order is that in which they tell more: of a log with several kinds the first is
// reported.
struct Form {
  std::string_view words = "";      // without white space
  std::string_view also = "";       // that stand nearby; "": no others are needed
  std::string_view unless = "";     // that do not
  std::string_view framework = "";  // for a reader
  Says says = Says::nothing;
  std::string_view meaning = "";  // of the words, for a reader
  std::string_view device = "";   // the words before the device's number
  std::array<Field, 5> fields = {};
  bool is_of_torch = false;
  bool is_told_beside_torch = false;  // where PyTorch's caching allocator has a message, others say nothing more
};

constexpr Field behind(std::string_view words, Figure figure) { return {words, FigureSide::behind, figure, false}; }
constexpr Field before(std::string_view words, Figure figure) { return {words, FigureSide::before, figure, false}; }
constexpr Field near(std::string_view words, Figure figure) { return {words, FigureSide::behind, figure, true}; }

constexpr Figure kRequested = &OomMessage::requested_bytes;
constexpr Figure kTotal = &OomMessage::total_bytes;
constexpr Figure kFree = &OomMessage::free_bytes;
constexpr Figure kAllowed = &OomMessage::allowed_bytes;
constexpr Figure kAllocated = &OomMessage::allocated_bytes;
constexpr Figure kReserved = &OomMessage::reserved_bytes;
constexpr Figure kBeside = &OomMessage::beside_bytes;

constexpr std::string_view kAsync = kAsyncAllocator;
constexpr std::string_view kCudaItself =
    "CUDA itself found no memory, or no other resource of the driver: for a context, a graph, a module, the stack of a "
    "kernel or pinned memory, say, outside of the caching allocator";
constexpr std::string_view kNoMemory = "no memory was found for it";
constexpr std::string_view kPool = "the memory pool may not grow further: its maximum size is reached";
constexpr std::string_view kPoolOrDevice =
    "the memory pool could not grow: its maximum size is reached, or the device gave no more, of which RMM says the "
    "same";
constexpr std::string_view kArena = "the limit of its arena leaves less";
constexpr std::string_view kShare =
    "the share of the GPU that gpu_memory_utilization allows has no room for the KV cache";
constexpr std::string_view kPinned = "pinned host memory ran out, not memory of the GPU";
constexpr std::string_view kHost = "memory of the host ran out, not memory of the GPU";
constexpr std::string_view kJob =
    "memory of the host ran out, that of the job's control group (--mem) or all; not memory of the GPU";
constexpr std::string_view kNccl = "NCCL found no memory: it takes its own outside of PyTorch";
constexpr std::string_view kUnknown = "memory ran out";

constexpr std::array kForms = {
#include "tools/analysis/oom_forms.inc"
};

std::optional<std::uint64_t> number_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  return at == kNpos ? std::nullopt : integer_at(text.substr(at + words.size()));
}

std::optional<std::uint64_t> size_after(std::string_view text, std::string_view words) {
  const std::size_t at = text.find(words);
  const auto size = at == kNpos ? std::nullopt : size_at(text.substr(at + words.size()));
  return size ? std::optional(size->bytes) : std::nullopt;
}

// The allocator of TensorFlow and XLA prints these before it fails: "Limit: 68719476736 InUse: 4294967296".
void read_bfc_statistics(OomMessage& message, std::string_view text) {
  constexpr std::string_view kLimit = "Limit:";
  constexpr std::string_view kInUse = "InUse:";
  const std::size_t at = text.rfind("Stats:Limit:");
  if (at == kNpos) return;
  const std::string_view stats = text.substr(text.find(kLimit, at) + kLimit.size());
  const auto limit = integer_at(stats);
  const std::string_view rest = stats.substr(std::min(stats.find_first_not_of("0123456789"), stats.size()));
  const auto used = rest.starts_with(kInUse) ? integer_at(rest.substr(kInUse.size())) : std::nullopt;
  if (!limit || !used) return;
  if (limit > 0) message.allowed_bytes = limit;  // cudaMallocAsync has none
  message.allocated_bytes = used;
  const auto left = size_after(text, "availablebytes:");
  if (!message.requested_bytes || !left || left < message.requested_bytes) return;
  message.words = fmt::format("the limit of its allocator left {}, which the device did not give", format_bytes(*left));
  message.allowed_bytes.reset();
}

void read_two(OomMessage& message, std::string_view text, std::string_view words, std::string_view between,
              Figure first, Figure second) {
  const std::size_t at = text.find(words);
  if (at == kNpos) return;
  const auto sizes = sizes_at(text.substr(at + words.size()), between);
  if (!sizes) return;
  message.*first = sizes->first;
  message.*second = sizes->second;
}

// JAX, TensorFlow and PyTorch/XLA pass on the words of XLA.
std::string_view program_of_xla(std::string_view text) {
  const auto has = [&](std::string_view words) { return text.find(words) != kNpos; };
  if (has("jax") || has("JAX") || has("XlaRuntimeError")) return "JAX";
  if (has("torch_xla")) return "PyTorch/XLA";
  return has("tensorflow.") || has("[[{{node") ? "TensorFlow" : "JAX/XLA";
}

// Readers for programs whose messages a table of words and figures cannot describe. `text` begins with the words of the
// form.

void read_tensorflow(OomMessage& message, const Extent& extent, std::string_view text) {
  // TensorFlow 1 tells at its start what the device has, and takes all that is free.
  if (text.starts_with("failedtoallocate"))
    read_fields(message, extent, std::array{near("Totalmemory:", kTotal), near("Freememory:", kFree)});
  if (const auto bytes = bytes_of_shape(text)) message.requested_bytes = bytes;
  const bool is_of_allocator = !text.starts_with("failedtoallocate");  // otherwise the driver's
  const std::string_view before = extent.text.substr(0, extent.begin);
  const std::size_t refusal =
      !is_of_allocator || before.find("fromdevice:") == kNpos ? kNpos : before.rfind("failedtoallocate");
  if (const auto refused = refusal == kNpos ? std::nullopt : size_after(before.substr(refusal), "failedtoallocate"))
    message.words += fmt::format("; the device had refused {} to its allocator", format_bytes(*refused));
  if (is_of_allocator && text.substr(0, 400).find("notafailure") != kNpos)
    message.words = "TensorFlow says that this is not a failure";
  const bool is_named = extent.text.find("tensorflow") != kNpos || extent.text.find("external/xla") == kNpos;
  const bool is_of_jax = extent.text.find("jaxlib") != kNpos || extent.text.find("external/org_tensorflow") != kNpos;
  if (!is_named || is_of_jax) message.framework = "JAX";
}

void read_xla(OomMessage& message, const Extent& extent, std::string_view text) {
  read_two(message, text, "Freememory/Totalmemory:", "/", &OomMessage::free_bytes, &OomMessage::total_bytes);
  const bool is_of_space = text.starts_with("Attemptingtoreserve");
  if (is_of_space && message.free_bytes && message.free_bytes < message.requested_bytes) message.words = kNoMemory;
  if (message.says == Says::too_large)
    read_two(message, text, "Used", "of", &OomMessage::requested_bytes, &OomMessage::total_bytes);
  if (const auto planned = size_after(text, "totalallocation:"))
    message.words += fmt::format("; the compiled program plans {} in all", format_bytes(*planned));
  message.framework = program_of_xla(extent.text);
}

void read_vllm(OomMessage& message, const Extent& extent, std::string_view text) {
  read_two(message, text, "(", "/", &OomMessage::free_bytes, &OomMessage::total_bytes);
  const std::size_t wanted = text.find(',', text.find("memoryutilization("));
  if (const auto size = wanted == kNpos ? std::nullopt : size_at(text.substr(wanted + 1)))
    message.requested_bytes = size->bytes;
  if (text.starts_with("Freememory") && message.requested_bytes > message.free_bytes)
    message.words +=
        fmt::format(": {} less than it wants", format_bytes(*message.requested_bytes - *message.free_bytes));
  if (const auto lacking = size_after(extent.text, "AvailableKVcachememory:-"))
    message.words +=
        fmt::format(": the model and its activations take {} more than that share", format_bytes(*lacking));
  const auto wanted_tokens = number_after(around(extent.text, extent.begin, kNearby, 0), "maxseqlen(");
  const auto stored_tokens = number_after(text, "KVcache(");
  if (wanted_tokens && stored_tokens)
    message.words += fmt::format(": {} tokens, and {} fit", *wanted_tokens, *stored_tokens);
  else if (const auto fitting = number_after(text, "estimatedmaximummodellengthis"))
    message.words += fmt::format("; {} tokens would fit", *fitting);
}

void read_cuda_jl(OomMessage& message, std::string_view text) {
  read_two(message, text, "%(", "/", &OomMessage::allocated_bytes, &OomMessage::total_bytes);
  if (message.total_bytes && message.allocated_bytes)
    message.free_bytes = *message.total_bytes - std::min(*message.total_bytes, *message.allocated_bytes);
  message.allocated_bytes.reset();  // of the whole device, not of this program
}

// "on GPU 1, 23.41GB memory has been allocated", of all processes.
void read_paddle(OomMessage& message, std::string_view text) {
  constexpr std::string_view kOn = "memoryonGPU";
  const std::size_t on = text.find(kOn);
  const std::size_t comma = on == kNpos ? kNpos : text.find_first_not_of("0123456789", on + kOn.size());
  const auto used = comma == kNpos || text[comma] != ',' ? std::nullopt : size_at(text.substr(comma + 1));
  if (used && used->has_unit && message.free_bytes) message.total_bytes = used->bytes + *message.free_bytes;
  if (text.starts_with("enforceallocating")) {
    read_two(message, text, "failed,", ">", &OomMessage::requested_bytes, &OomMessage::free_bytes);
    message.words = "its pool wanted a chunk of a fixed share of the device (FLAGS_fraction_of_gpu_memory_to_use)";
  }
}

// RELION's own allocator gives the figures of its pool, not of the device.
void read_relion(OomMessage& message, std::string_view text) {
  const auto free = size_after(text, "[totalFreeSpace:");
  const auto largest = size_after(text, "[largestContinuousFreeSpace:");
  if (!free || !largest || !message.requested_bytes) return;
  const std::string figures = fmt::format("{} of its pool are free", format_bytes(*free));
  message.says = *free < *message.requested_bytes ? Says::limit : Says::fragmentation;
  message.words = *free < *message.requested_bytes
                      ? figures + ", which is less"
                      : fmt::format("{}, in pieces of at most {}", figures, format_bytes(*largest));
}

// Adds to the words the programs' own notes on the host's memory, or on their reaction.
void read_asides(OomMessage& message, std::string_view text) {
  if (message.framework == "Ollama") {
    if (const auto available = size_after(text, "isavailable("))
      message.words += fmt::format("; {} were available", format_bytes(*available));
  } else if (message.framework == "Linux") {
    const auto process = number_after(text, "Killedprocess");
    const auto resident = size_after(text, "anon-rss:");
    if (process && resident)
      message.words +=
          fmt::format("; the kernel ended process {}, which had {} of it", *process, format_bytes(*resident));
  } else if (message.framework == "llama.cpp" && text.find("retryingwithout") != kNpos) {
    message.words += "; llama.cpp then tried again, with less";
  } else if (message.words == kArena) {
    const auto left = size_after(text, "Availablememoryof");
    message.words = fmt::format("the limit of its arena leaves {}: gpu_mem_limit, or that of an arena of the host",
                                left ? format_bytes(*left) : "less");
  }
}

void read_more(OomMessage& message, const Extent& extent) {
  const std::string_view text = extent.text.substr(extent.begin);
  if (message.framework == "TensorFlow") {
    read_tensorflow(message, extent, text);
  } else if (message.framework == "RMM") {
    read_two(message, text, "trysize=", ",", &OomMessage::reserved_bytes, &OomMessage::allowed_bytes);
  } else if (message.framework == "CuPy" && text.starts_with("outofmemorytoallocate") && message.reserved_bytes) {
    *message.reserved_bytes -= std::min(*message.reserved_bytes, message.requested_bytes.value_or(0));
  } else if (message.framework == "vLLM") {
    read_vllm(message, extent, text);
  } else if (message.framework == "CUDA.jl") {
    read_cuda_jl(message, text);
  } else if (message.framework == "PaddlePaddle") {
    read_paddle(message, text);
  } else if (message.framework == "RELION") {
    read_relion(message, text);
  } else {
    read_asides(message, text);
  }
  if (message.framework == "JAX") read_xla(message, extent, text);
}

bool has_any(std::string_view text, std::span<const std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view one) { return text.find(one) != kNpos; });
}

// Returns whether the text ends in a call, "batch.pin_memory()", and the name of an error.
bool ends_in_call_of(std::string_view function, std::string_view text) {
  const std::size_t end = text.rfind(')');
  const std::size_t at = end == kNpos ? kNpos : text.rfind(function, end);
  if (at == kNpos || end - at > 2 * function.size() + 20) return false;
  const auto is_of_name = [](char letter) {
    return std::isalpha(static_cast<unsigned char>(letter)) != 0 || letter == '.' || letter == ':';
  };
  return std::ranges::all_of(text.substr(end + 1), is_of_name);
}

// CUDA's own message does not say whether it wanted pinned memory: the last call that led to it does, or the thread.
bool is_of_pinned_memory(std::string_view text, std::size_t at) {
  constexpr std::array kThreads = {"inmemorythread"sv, "inpinmemorythread"sv};
  constexpr std::array kFunctions = {"cudaHostAlloc"sv,        "cudaHostRegister"sv, "cudaMallocHost"sv,
                                     "CachingHostAllocator"sv, "pinnedhost"sv,       "pinnedmemory"sv};
  constexpr std::array kPython = {"pin_memory("sv, "pin_memory=True"sv, "pin_memory.py"sv};
  const std::string_view before = around(text, at, kTracebackReach, 0);
  const std::size_t frame = before.rfind("File\"");
  return has_any(before, kThreads) || ends_in_call_of("pin_memory(", before) ||
         has_any(around(text, at, kNearby, kNearby), kFunctions) ||
         (frame != kNpos && has_any(before.substr(frame), kPython));
}

// Returns whether CUDA's words are about a program's own request, not passed on by PyTorch.
bool is_own_request(std::string_view text, std::size_t at) {
  constexpr std::array kTorch = {"torch"sv, "Torch"sv, "TORCH"sv, "c10"sv, "AcceleratorError"sv, "kernelerrors"sv};
  constexpr std::array kRequests = {"cudaMalloc"sv,     "cuMemAlloc"sv,      "cuMemCreate"sv,
                                    "cuMemSetAccess"sv, "ailedtoallocate"sv, "Allocating"sv};
  return has_any(around(text, at, kNearby, kNearby), kRequests) &&
         !has_any(around(text, at, kTracebackReach, kReach), kTorch);
}

// Returns the number behind the form's words for the device, those behind the message's beginning first.
std::optional<int> device_of(const Form& form, std::string_view text, std::size_t at) {
  if (form.device.empty()) return std::nullopt;
  const std::string_view ahead = text.substr(at, kReach);
  const std::string_view back = around(text, at, kNearby, 0);
  for (const std::string_view place : {ahead.substr(std::min(ahead.find(form.device), ahead.size())),
                                       back.substr(std::min(back.rfind(form.device), back.size()))}) {
    if (place.empty()) continue;
    if (const auto number = integer_at(place.substr(form.device.size())))
      return static_cast<int>(std::min<std::uint64_t>(*number, kMostDevices));
  }
  return std::nullopt;
}

// Returns the number in a line of NCCL's, with its white space or without: "node:392:494 [2] enqueue.cc:43 NCCL WARN …".
std::optional<int> device_of_nccl(std::string_view line) {
  const std::size_t warning = std::min(line.rfind("NCCL WARN"), line.rfind("NCCLWARN"));
  const std::size_t begin = warning == kNpos ? kNpos : line.rfind('[', warning);
  const auto number = begin == kNpos ? std::nullopt : integer_at(line.substr(begin + 1));
  return number && *number < kMostDevices ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

OomMessage message_of(const Form& form, std::string_view text, std::size_t at) {
  const std::size_t back = std::min(at, std::size_t{3} * kReach);
  const Extent extent = {.text = around(text, at, back, kReach),
                         .begin = back,
                         .always_has_units = form.framework == "PyTorch on MPS" || form.framework == "CUDA.jl"};
  OomMessage message;
  message.framework = form.framework;
  message.is_of_torch = form.is_of_torch;
  message.says = form.says;
  message.words = form.meaning;
  read_fields(message, extent, form.fields);
  set_device(message, device_of(form, text, at));
  const bool has_statistics = message.framework == "TensorFlow" || message.framework == "JAX";
  read_more(message, extent);
  if (has_statistics) read_bfc_statistics(message, around(text, at, kTracebackReach, kTracebackReach));
  if (form.says == Says::outside && is_of_pinned_memory(text, at)) {
    message.says = Says::pinned;
    message.words = std::string(kPinned) + "; PyTorch rounds each pinned request up to a power of two";
    if (around(text, at, 0, kReach).find("asynchronouslyreported") != kNpos)
      message.words += "; by the calls that led to it, of which the message says that they may be wrong";
  } else if (form.meaning == kCudaItself && form.framework == "CUDA" && is_own_request(text, at)) {
    message.says = Says::nothing;
    message.words = kNoMemory;
  } else if (form.meaning == kCudaItself && around(text, at, kTracebackReach, 0).find("capture_end") != kNpos) {
    message.words += ", at the end of a graph capture";
  }
  return message;
}

// ---- A log ----

bool is_same(const OomMessage& one, const OomMessage& other) {
  const auto same_figure = [&](Figure figure) { return one.*figure == other.*figure; };
  const auto same_process = [](const DeviceFacts::Process& a, const DeviceFacts::Process& b) {
    return a.id == b.id && a.bytes == b.bytes;
  };
  return one.framework == other.framework && one.device == other.device && one.says == other.says &&
         one.requested_bytes == other.requested_bytes && std::ranges::all_of(kOomFigures, same_figure) &&
         std::ranges::equal(one.other_processes, other.other_processes, same_process) &&
         (one.source == other.source || one.source.empty() || other.source.empty());
}

// Messages in their order, each once: loggers repeat them, and a traceback has the same message as the log.
class Found {
 public:
  void add(OomMessage message, const LogText& log, std::size_t at) {
    complete(message);
    message.source = source_of(log.line_of(at)) + repetition_behind(log.squeezed().substr(at));
    if (message.source.starts_with(", ")) message.source.erase(0, 2);
    const auto same = std::ranges::find_if(messages_, [&](const OomMessage& one) { return is_same(one, message); });
    if (same != messages_.end()) {
      if (same->source.empty()) same->source = message.source;
      return;
    }
    const auto is_like = [&](const OomMessage& one) {
      return one.source == message.source && one.device == message.device;
    };
    if (std::ranges::count_if(messages_, is_like) >= static_cast<std::ptrdiff_t>(kMostOfOne))
      messages_.erase(std::ranges::find_if(messages_, is_like));
    messages_.push_back(std::move(message));
    if (messages_.size() > kMostMessages) messages_.erase(messages_.begin());
  }

  bool empty() const { return messages_.empty(); }

  // Returns the messages. One that was cut off is left out where the log has the whole, as a title and a text have the same message.
  std::vector<OomMessage> take() {
    const auto has_whole = [&](const OomMessage& cut) {
      return std::ranges::any_of(messages_, [&](const OomMessage& one) {
        return !one.is_cut && one.requested_bytes == cut.requested_bytes && one.device == cut.device;
      });
    };
    std::vector<OomMessage> whole;
    for (const OomMessage& one : messages_) {
      if (!one.is_cut || !has_whole(one)) whole.push_back(one);
    }
    return whole;
  }

 private:
  std::vector<OomMessage> messages_;
};

// A message whose beginning is missing says nothing of the request.
void find_torch_messages_without_begin(const LogText& log, Found& found) {
  const std::string_view text = log.squeezed();
  constexpr std::size_t kBack = 24;  // "(GPU 0; 15.75 GiB"
  for (const std::string_view words : {"hasatotalcapacityof"sv, "hasatotalcapactyof"sv, "totalcapacity;"sv}) {
    for (std::size_t at = text.find(words); at != kNpos; at = text.find(words, at + 1)) {
      OomMessage message;
      message.framework = fmt::format("PyTorch on {}", backend_before(text, at));
      const std::string_view before = around(text, at, kBack, 0);
      const std::size_t gpu = before.rfind("GPU");
      if (gpu == kNpos) continue;
      const std::size_t begin = at - before.size() + gpu;
      const Extent extent = {.text = text.substr(begin, end_of_message(text, at, words) - begin), .begin = 0};
      set_device(message, device_at(before.substr(gpu)));
      message.other_processes = processes_in(extent.text);
      read_fields(message, extent, kTorchFields);
      found.add(std::move(message), log, at);
    }
  }
}

void find_torch_messages(const LogText& log, Found& found) {
  const std::string_view text = log.squeezed();
  for (std::size_t at = text.find(kTried); at != kNpos; at = text.find(kTried, at + 1)) {
    const std::string_view behind = text.substr(at + kTried.size());
    const bool has_size = size_at(behind).has_value() || behind.starts_with("morethan1EB");
    const bool is_of_mps = around(text, at, kNearby, 0).find("MPSbackendoutofmemory") != kNpos;
    if (has_size && !is_of_mps) found.add(torch_message(text, at), log, at);
  }
}

// Only the last of each rank counts: such programs try again, with smaller sizes.
void find_form(const Form& form, const LogText& log, Found& found) {
  const std::string_view text = log.squeezed();
  std::vector<std::pair<std::string, std::size_t>> last;  // by rank
  for (std::size_t at = text.find(form.words); at != kNpos; at = text.find(form.words, at + 1)) {
    if (!form.also.empty() && around(text, at, kNearby, kNearby).find(form.also) == kNpos) continue;
    if (!form.unless.empty() && around(text, at, 0, kNearby).find(form.unless) != kNpos) continue;
    std::string source = source_of(log.line_of(at));
    std::erase_if(last, [&](const auto& one) { return one.first == source; });
    last.emplace_back(std::move(source), at);
    if (last.size() > kMostMessages) last.erase(last.begin());
  }
  for (const auto& [source, at] : last) {
    OomMessage message = message_of(form, text, at);
    if (form.framework == "NCCL") {
      const auto of_line = device_of_nccl(log.line_of(at));
      set_device(message, of_line ? of_line : device_of_nccl(around(text, at, kNearby, 1)));
    }
    found.add(std::move(message), log, at);
  }
}

}  // namespace

std::vector<OomMessage> read_oom_messages(std::string_view log, std::string_view path) {
  LogText text(log);
  Found found;
  find_torch_messages(text, found);
  if (text.squeezed().find(kTried) == kNpos && text.restore_case_of_messages()) find_torch_messages(text, found);
  if (found.empty()) find_torch_messages_without_begin(text, found);
  const bool has_torch = !found.empty();
  for (const Form& form : kForms) {
    if (has_torch ? !form.is_told_beside_torch : !found.empty()) continue;
    find_form(form, text, found);
  }
  CACHALOT_REQUIRE(!found.empty(), "{}: no message that memory ran out", path);
  return found.take();
}

void add_facts(const OomMessage& message, History& history) {
  DeviceFacts& facts = facts_of(history, message.device);
  const auto take = [](std::optional<std::uint64_t>& fact, const std::optional<std::uint64_t>& value) {
    if (!fact) fact = value;
  };
  take(facts.total_bytes, message.total_bytes);
  take(facts.free_bytes, message.free_bytes);
  take(facts.process_bytes, message.process_bytes);
  take(facts.limit_bytes, message.allowed_bytes);
  if (facts.other_processes.empty()) facts.other_processes = message.other_processes;
}

}  // namespace cachalot::tools
