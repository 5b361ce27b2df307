// Messages that memory ran out: a table of public ones with their figures and causes (data/messages), the same through loggers and
// consoles, those of several ranks, and mutated ones.
#include "tools/analysis/oom_message.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "cachalot/errors.h"
#include "tests/scale.h"
#include "tests/tools/complaint.h"
#include "tools/analysis/explanation_report.h"
#include "tools/analysis/message_report.h"
#include "tools/analysis/oom_figures.h"

namespace cachalot::tools {
namespace {

using Json = nlohmann::json;

struct Row {
  std::string text;
  Json expected;
  std::string cause;
  std::string name;  // for a failure: kind and source
};

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = [] {
    std::ifstream file(CACHALOT_DATA_DIR "/messages/messages.json");
    std::vector<Row> read;
    for (const Json& row : Json::parse(file)) {
      std::string text;
      for (const Json& line : row["message"]) text += (text.empty() ? "" : "\n") + line.get<std::string>();
      read.push_back({.text = text,
                      .expected = row["expected"],
                      .cause = row["cause"],
                      .name = fmt::format("{} of {}: {}", row["kind"].get<std::string>(),
                                          row["source"].get<std::string>(), text)});
    }
    return read;
  }();
  return rows;
}

using Bytes = std::optional<std::uint64_t>;

// Sizes have two places behind the point, and sums of some of them are off by as much.
std::string difference(const Row& row, const char* key, const Bytes& found, double tolerance) {
  if (!row.expected.contains(key)) return "";
  const auto expected = static_cast<double>(parse_bytes(row.expected[key].get<std::string>()));
  const bool is_near = found && std::abs(static_cast<double>(*found) - expected) <= 0.01 * expected + tolerance;
  return is_near ? ""
                 : fmt::format("{} is {}, not {}; ", key, found ? format_bytes(*found) : "absent",
                               row.expected[key].get<std::string>());
}

// Returns what is not as the table says; "" where all is.
std::string differences(const Row& row, const OomMessage& message) {
  constexpr double kExact = 1;
  constexpr double kOfSums = 24.0 * 1024 * 1024;
  const std::array figures = {
      std::pair{"requested", message.requested_bytes}, std::pair{"total", message.total_bytes},
      std::pair{"free", message.free_bytes},           std::pair{"allocated", message.allocated_bytes},
      std::pair{"private", message.private_bytes},     std::pair{"allowed", message.allowed_bytes},
      std::pair{"beside", message.beside_bytes},       std::pair{"own", message.process_bytes},
      std::pair{"reserved", message.reserved_bytes},   std::pair{"others", Bytes(other_bytes(message))}};
  std::string text;
  for (const auto& [key, found] : figures) text += difference(row, key, found, kExact);
  text += difference(row, "outside", unnamed_bytes(message), kOfSums);
  for (const char* absent : {"total", "free", "allocated"}) {
    const Bytes& found = absent[0] == 't'   ? message.total_bytes
                         : absent[0] == 'f' ? message.free_bytes
                                            : message.allocated_bytes;
    if (found && !row.expected.contains(absent))
      text += fmt::format("{} is {}, not absent; ", absent, format_bytes(*found));
  }
  if (row.expected.value("device", 0) != message.device) text += fmt::format("device is {}; ", message.device);
  if (row.expected["framework"] != message.framework) text += fmt::format("framework is {}; ", message.framework);
  if (row.expected.value("cut", false) != message.is_cut) text += message.is_cut ? "it is cut; " : "it is not cut; ";
  const MessageVerdict verdict = verdict_of(message);
  if (row.cause != key_of(verdict.cause))
    text += fmt::format("cause is {}, not {}: {}; ", key_of(verdict.cause), row.cause, verdict.text);
  return text;
}

std::string differences(const Row& row, const std::string& text) {
  try {
    const std::vector<OomMessage> messages = read_oom_messages(text, "log");
    return messages.size() == 1 ? differences(row, messages.front())
                                : fmt::format("{} messages; ", messages.size()) + differences(row, messages.back());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(OomMessages, AreReadAsTheTableSays) {
  ASSERT_GE(rows().size(), 150u);
  for (const Row& row : rows()) EXPECT_EQ(differences(row, row.text), "") << row.name;
}

// Each in the words of the program, with figures of our own.
TEST(OomMessages, OfOtherProgramsAreKnownByTheirWords) {
  struct Known {
    const char* text;
    const char* framework;
    const char* cause = "unknown";
    Bytes requested{};
  };
  constexpr std::uint64_t kMib = 1 << 20;
  const std::vector<Known> all = {
      {"RuntimeError: CUDA failed with error out of memory", "CTranslate2"},
      {"Error: model requires more system memory (2.0 GiB) than is available (1.4 GiB)", "Ollama", "host_memory",
       2048 * kMib},
      {"CUDA error: out of memory\n  current device: 1, in function alloc at ggml-cuda.cu:468\n"
       "  cuMemCreate(&handle, reserve_size, &prop, 0)",
       "llama.cpp"},
      {"CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:52\n"
       "  cuMemAddressReserve(&pool_addr, CUDA_POOL_VMM_MAX_SIZE, 0, 0, 0)",
       "llama.cpp", "driver"},
      {"[METAL] Command buffer execution failed: Insufficient Memory "
       "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
       "MLX"},
      {"MXNetError: src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory\nlibmxnet.so",
       "MXNet"},
      {"StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 2 space Device stream 0x55 size 1048576 bytes "
       "(cudaMalloc error out of memory [2])",
       "Faiss", "unknown", kMib},
      {"Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n"
       "- Free memory: 53.1GB\n- Requested memory: 64GB",
       "XGBoost", "unknown", 65536 * kMib},
      {"slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.",
       "Slurm", "host_memory"},
      {"Reason:       OOMKilled\nExit Code:    137", "Kubernetes", "host_memory"},
      {"[12.5] Memory cgroup out of memory: Killed process 93 (python) total-vm:91kB", "Linux", "host_memory"},
      {"Memory on the node (IP: 10.0.0.1) was 219.4GB / 230.4GB (0.95), which exceeds the memory usage threshold of "
       "0.9",
       "Ray", "host_memory"},
      {"_ArrayMemoryError: Unable to allocate 6.00 GiB for an array with shape (3, 4)", "NumPy", "host_memory",
       6144 * kMib},
      {"Decode out of memory. Try to lower your batch size.\nTry to allocate 168 tokens.", "SGLang", "limit"},
      {"RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1048576 (1)MB",
       "PyTorch on HPU", "unknown", kMib},
      {"NPU out of memory. NPUWorkspaceAllocator tried to allocate 2.00 MiB(NPU 5; 60.97 GiB total capacity; 1.00 MiB "
       "free).",
       "PyTorch on NPU", "unknown", 2 * kMib},
      {"RMM failure: Exceeded memory limit (failed to allocate 1.000000 GiB)", "RMM", "limit", 1024 * kMib},
      {"XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to reserve 2.00G at the bottom of memory. That was not "
       "possible. There are 1.50G free, 0B reserved, and 1.50G reservable.",
       "JAX", "unknown", 2048 * kMib},
      {"tensorflow.errors: (0) Resource exhausted: Out of memory while trying to allocate 1048576 bytes.\n"
       "[[{{node cluster}}]]",
       "TensorFlow", "unknown", kMib},
      {"failed to allocate 1.0MiB (1048576 bytes) from device: RESOURCE_EXHAUSTED: : CUDA_ERROR_OUT_OF_MEMORY: out of "
       "memory",
       "TensorFlow", "unknown", kMib},
      {"Out of memory error on GPU 3. Cannot allocate 64.000000MB memory on GPU 3, 15.968750GB memory has been "
       "allocated and available memory is only 32.000000MB.",
       "PaddlePaddle", "unknown", 64 * kMib},
      {"NCCL WARN Failed to CUDA calloc async 1048576 bytes", "NCCL", "nccl", kMib},
      {"server failed | cudaMallocHost failed: cudaErrorMemoryAllocation: out of memory", "CUDA", "pinned"},
      {"File \"t.py\", line 4\n  DataLoader(ds, pin_memory=True)\nFile \"t.py\", line 5\n  net.cuda()\n"
       "RuntimeError: CUDA error: out of memory",
       "CUDA", "outside"},
      {"Failed to allocate 2.1 GB on the GPU: cudaErrorMemoryAllocation (out of memory)", "CUDA"},
      {"jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 1048576 bytes for new constant", "JAX",
       "unknown", kMib},
      {"W tensorflow/core/common_runtime/bfc_allocator.cc:217] Ran out of memory trying to allocate 2.00MiB. The "
       "caller "
       "indicates that this is not a failure",
       "TensorFlow", "unknown", 2 * kMib},
      {"ERROR KVCache allocation failed: Insufficient GPU memory for KVCache allocation.\n"
       "Available: 29000.00 MB, Required: 131072.00 MB, Reserved: 512.00 MB.",
       "vLLM.rs", "limit", 131072 * kMib},
      {"RMM failure at: pool_memory_resource.hpp:257: Maximum pool size exceeded (failed to allocate 4.000000 GiB): "
       "std::bad_alloc: out_of_memory: CUDA error (failed to allocate 4294967296 bytes) at: cuda_memory_resource.hpp",
       "RMM", "unknown", 4096 * kMib},
      {"rmm.rmm.RMMError: RMM_ERROR_OUT_OF_MEMORY", "RMM"},
      {"RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "Level Zero"},
      {"Status code: Resource exhausted [9x]\n  Compilation failure: Ran out of memory in memory space hbm. Used 8.50G "
       "of "
       "8.00G hbm. Exceeded hbm capacity by 512.00M.\n  [[{{node TPUReplicate/_compile}}]]",
       "TensorFlow", "too_large", 8704 * kMib},
      {"RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "cuFFT", "outside"},
  };
  for (const Known& known : all) {
    const OomMessage message = read_oom_messages(known.text, "log").front();
    EXPECT_EQ(message.framework, known.framework) << known.text;
    EXPECT_EQ(key_of(verdict_of(message).cause), known.cause) << known.text << verdict_of(message).text;
    EXPECT_EQ(message.requested_bytes, known.requested) << known.text;
  }
  EXPECT_EQ(read_oom_messages(all[20].text, "log").front().total_bytes, 16384 * kMib) << "of Paddle's GPU 3";
}

// In a container "this process" may have 0 bytes, and a message may end before PyTorch's reserved memory.
TEST(OomMessages, TellNoFalsehoodOfThisProcess) {
  const std::string begin =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.00 GiB of which "
      "1.00 GiB is free. ";
  const OomMessage zero =
      read_oom_messages(begin +
                            "Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated "
                            "memory 21.00 GiB is "
                            "allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated.",
                        "log")
          .front();
  EXPECT_EQ(key_of(verdict_of(zero).cause), "too_large") << verdict_of(zero).text;
  const OomMessage cut =
      read_oom_messages(
          begin + "Process 7 has 21.50 GiB memory in use. Of the allocated memory 21.00 GiB is allocated by", "log")
          .front();
  EXPECT_EQ(other_bytes(cut), 0u);
  EXPECT_EQ(text_of(message_section(cut), Style()).find("of it outside of PyTorch"), std::string::npos)
      << text_of(message_section(cut), Style());
}

// With more than the device has, live memory that would fit by itself leaves memory between its blocks; else it does not fit.
TEST(OomMessages, OfWindowsTellFragmentationFromTooMuch) {
  const auto cause = [](const char* live) {
    const std::string text = fmt::format(
        "Tried to allocate 16.00 GiB (GPU 0; 24.00 GiB total capacity; {} already allocated; 0 bytes free; 42.50 GiB "
        "reserved in total by PyTorch)",
        live);
    return key_of(verdict_of(read_oom_messages(text, "log").front()).cause);
  };
  EXPECT_EQ(cause("10.22 GiB"), "fragmentation");
  EXPECT_EQ(cause("26.22 GiB"), "host_memory");
}

TEST(OomMessages, OfTheHostAreToldBesideThoseOfAGpu) {
  const std::string log =
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes. Error code 12\n"
      "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 8.00 GiB total capacity; 4.00 GiB already allocated; "
      "3.50 "
      "GiB free; 4.25 GiB reserved in total by PyTorch)";
  const std::vector<OomMessage> messages = read_oom_messages(log, "log");
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(key_of(verdict_of(messages[0]).cause), "driver");
  EXPECT_EQ(key_of(verdict_of(messages[1]).cause), "host_memory");
}

TEST(OomMessages, OfNcclNameTheDeviceOfTheirLine) {
  const std::string log =
      "node:1:2 [0] NCCL INFO group.cc:96 -> 3\nnode:3:4 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of "
      "memory'\n"
      "node:3:4 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 1048576 bytes\n";
  EXPECT_EQ(read_oom_messages(log, "log").front().device, 3);
}

TEST(OomMessages, SayWhichRankOrProcessWroteThem) {
  for (const Row& row : rows()) {
    if (row.expected.contains("rank")) {
      EXPECT_EQ(read_oom_messages(row.text, "log").front().source, row.expected["rank"]) << row.name;
    }
  }
}

TEST(OomMessages, SayHowOftenRayRepeatedTheirLine) {
  const std::string message =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 4 has a total capacity of 79.18 GiB "
      "of which "
      "1.04 GiB is free. Of the allocated memory 45.89 GiB is allocated by PyTorch, and 3.01 GiB is reserved by "
      "PyTorch but "
      "unallocated.";
  const std::string end = " [repeated 6x across cluster]\n";
  EXPECT_EQ(read_oom_messages("(RayWorker pid=7) " + message + end, "log").front().source,
            "pid 7, repeated 6x across the cluster");
  EXPECT_EQ(read_oom_messages(message + end, "log").front().source, "repeated 6x across the cluster");
  EXPECT_EQ(read_oom_messages(message + "\n(RayWorker pid=8) something else" + end, "log").front().source, "");
}

TEST(OomMessages, NameTheirKindWhereTheCauseIsNotKnown) {
  for (const Row& row : rows()) {
    const OomMessage message = read_oom_messages(row.text, "log").front();
    const std::string text = verdict_of(message).text;
    EXPECT_FALSE(text.empty()) << row.name;
    if (row.cause == "unknown" && !message.is_of_torch) {
      EXPECT_NE(text.find(message.framework), std::string::npos) << row.name << "\n" << text;
    }
    if (message.is_cut && row.cause == "unknown") {
      EXPECT_NE(text.find("cut off"), std::string::npos) << text;
    }
  }
}

// ---- Through loggers and consoles ----

std::string in_lines(const std::string& text, std::size_t width,
                     const std::function<std::string(std::size_t)>& prefix) {
  std::string out;
  std::size_t number = 0;
  std::string line;
  const auto end_line = [&] {
    out += prefix(number++) + line + "\n";
    line.clear();
  };
  for (const char c : text) {
    if (c == '\n' || line.size() == width) end_line();
    if (c != '\n') line += c;
  }
  end_line();
  return out;
}

std::string utf16(const std::string& text, bool is_little, const std::string& mark) {
  std::string out = mark;
  for (const char c : text) out += is_little ? std::string{c, '\0'} : std::string{'\0', c};
  return out;
}

std::string coloured(const std::string& text, const std::string& on, const std::string& off) {
  std::string out;
  bool is_number = false;
  for (const char c : text) {
    const bool digit = (c >= '0' && c <= '9') || (is_number && c == '.');
    if (digit != is_number) out += digit ? on : off;
    is_number = digit;
    out += c;
  }
  return out + (is_number ? off : "");
}

using Change = std::pair<std::string_view, std::function<std::string(const std::string&)>>;

const std::vector<Change>& changes() {
  const auto none = [](std::size_t) { return std::string(); };
  static const std::vector<Change> changes = {
      {"UTF-16 with a mark", [](const std::string& text) { return utf16(text, true, "\xff\xfe"); }},
      {"UTF-16 without a mark", [](const std::string& text) { return utf16(text, true, ""); }},
      {"big-endian UTF-16", [](const std::string& text) { return utf16(text, false, "\xfe\xff"); }},
      {"UTF-8 with a mark", [](const std::string& text) { return "\xef\xbb\xbf" + text; }},
      {"CRLF",
       [](const std::string& text) {
         std::string out;
         for (const char c : text) out += c == '\n' ? "\r\n" : std::string(1, c);
         return out + "\r\n";
       }},
      {"colours", [](const std::string& text) { return coloured(text, "\x1b[1;32m", "\x1b[0m"); }},
      {"colours without ESC", [](const std::string& text) { return coloured(text, "[1;32m", "[0m"); }},
      {"a console of 80 columns", [=](const std::string& text) { return in_lines(text, 80, none); }},
      {"a console of 37 columns", [=](const std::string& text) { return in_lines(text, 37, none); }},
      {"lines with a time stamp",
       [](const std::string& text) {
         return in_lines(text, 100, [](std::size_t i) {
           return fmt::format("2025-07-11 09:30:{:02},{} - app - INFO - ", i % 60, 40 + i);
         });
       }},
      {"docker compose",
       [](const std::string& text) { return in_lines(text, 90, [](std::size_t) { return "worker-1  | "; }); }},
      {"docker's own log",
       [=](const std::string& text) {
         const auto as_json = [](std::string line) {
           return "{\"log\":" + Json(line + "\n").dump() +
                  ",\"stream\":\"stderr\",\"time\":\"2025-07-11T09:30:40.1Z\"}\n";
         };
         std::istringstream lines(in_lines(text, 100, none));
         std::string out;
         for (std::string line; std::getline(lines, line);) out += as_json(line);
         return out;
       }},
      {"Kubernetes",
       [](const std::string& text) {
         return in_lines(text, 120, [](std::size_t i) {
           return fmt::format("2025-07-11T09:30:40.{:09}Z stderr {} ", 1234 + i, i % 2 == 0 ? 'P' : 'F');
         });
       }},
      {"bold figures", [](const std::string& text) { return coloured(text, "**", "**"); }},
      {"a quoted text", [](const std::string& text) { return in_lines(text, 70, [](std::size_t) { return "> "; }); }},
      {"JSON lines",
       [](const std::string& text) {
         return Json{{"level", "ERROR"}, {"message", text}}.dump() + "\n";
       }},
      {"JSON lines of JSON lines",
       [](const std::string& text) {
         return Json{{"log", Json{{"message", text}}.dump()}, {"stream", "stderr"}}.dump() + "\n";
       }},
      {"a log that goes on",
       [](const std::string& text) {
         return text + "\nTraceback (most recent call last):\n  File \"a.py\", line 7\n";
       }},
      {"a log with times in seconds",
       [](const std::string& text) { return "0.00.811.305 W start\n" + text + "\n0.01.300.388 E stop\n"; }},
      {"a log with an empty line", [](const std::string& text) { return "7\n\n" + text + "\n\n12 of 13\n"; }},
      {"a longer log",
       [](const std::string& text) {
         return "INFO: step 1, 3.5 GiB in use\n" + text +
                "\n2025-07-11 09:30:41 Traceback (most recent call last):" + "\n" + std::string(500, '-') +
                "\nProcess finished with exit code 1\n";
       }},
  };
  return changes;
}

TEST(OomMessages, ReadTheSameThroughLoggersAndConsoles) {
  for (const auto& [name, change] : changes()) {
    for (const Row& row : rows()) EXPECT_EQ(differences(row, change(row.text)), "") << name << ": " << row.name;
  }
}

TEST(OomMessages, OfSeveralRanksAreAllListed) {
  std::string log;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string message = fmt::format(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 79.14 "
        "GiB of which "
        "1.{}0 GiB is free. Including non-PyTorch memory, this process has 77.00 GiB memory in use. Of the allocated "
        "memory 75.00 "
        "GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.",
        rank, rank);
    log += fmt::format("[rank{}]: {}\n", rank, message);
    log += message + "\n";  // its traceback
  }
  const std::vector<OomMessage> messages = read_oom_messages(log, "log");
  ASSERT_EQ(messages.size(), 4u);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(messages[rank].device, static_cast<int>(rank));
    EXPECT_EQ(messages[rank].source, fmt::format("rank {}", rank));
    EXPECT_EQ(name_of(explain_message(messages[rank], std::nullopt)), fmt::format("device {}, rank {}", rank, rank));
  }
}

TEST(OomMessages, OfAProgramThatTriesAgainAreTheLastOnes) {
  std::string log;
  for (int i = 0; i < 100; ++i)
    log += fmt::format("CUDA out of memory. Tried to allocate {}.00 GiB (GPU 0;\n", 200 - i);
  const std::vector<OomMessage> messages = read_oom_messages(log, "log");
  ASSERT_EQ(messages.size(), kMostOfOne);
  EXPECT_EQ(messages.back().requested_bytes, 101 * kGiB);
}

// A search for a rank along the whole line would take minutes.
TEST(OomMessages, OfALongLineAreReadInLittleTime) {
  std::string log;
  for (int i = 0; i < 50000; ++i)
    log += fmt::format("Tried to allocate {}.00 GiB Process 1 has out of memory ", i % 100 + 1);
  EXPECT_EQ(read_oom_messages(log, "log").size(), kMostOfOne);
}

TEST(OomMessages, ThatAreCutOffCountOnlyWhereTheLogDoesNotHaveTheWhole) {
  const std::string whole =
      "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; "
      "1.00 GiB free; "
      "6.10 GiB reserved in total by PyTorch)";
  const std::vector<OomMessage> messages = read_oom_messages(whole.substr(0, 60) + "\n\n" + whole, "log");
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_FALSE(messages.front().is_cut);
}

TEST(OomMessages, ALogWithoutAnyIsRefused) {
  EXPECT_EQ(complaint_about("log", ": ", [] { read_oom_messages("all is well", "log"); }),
            "no message that memory ran out");
  EXPECT_EQ(complaint_about("log", ": ", [] { read_oom_messages("", "log"); }), "no message that memory ran out");
}

TEST(OomMessages, TheirFiguresStandInTextAndJson) {
  const std::string log =
      "(Worker rank=3 pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
      "total capacity of "
      "39.39 GiB of which 9.25 MiB is free. Process 25454 has 3.86 GiB memory in use. Process 104554 has 4.29 GiB "
      "memory in use. "
      "Process 30427 has 31.20 GiB memory in use. Of the allocated memory 30.21 GiB is allocated by PyTorch, with "
      "26.00 MiB allocated "
      "in private pools (e.g., CUDA Graphs), and 217.48 MiB is reserved by PyTorch but unallocated.";
  const Explanation one = explain_message(read_oom_messages(log, "log").front(), std::nullopt);
  const std::string text = text_of(report_of(one, 5), Style());
  for (const char* figure :
       {"other_process: 20.00 MiB was asked for: other processes held 8.15 GiB of", "39.39 GiB, 9.25 MiB free",
        "31.20 GiB (process 30427 of the host)", "8.15 GiB (25454 3.86 GiB, 104554 4.29 GiB)", "26.00 MiB",
        "held outside", "PyTorch on CUDA, rank 3"})
    EXPECT_NE(text.find(figure), std::string::npos) << figure << " is not in\n" << text;
  const Json json = json_of(report_of(one, 5));
  EXPECT_EQ(json["verdict"]["cause"], "other_process");
  EXPECT_EQ(json["message"]["own_process"], 30427);
  EXPECT_EQ(json["message"]["other_processes"].size(), 2u);
  EXPECT_EQ(json["message"]["source"], "rank 3");
  EXPECT_TRUE(json["message"]["allowed_bytes"].is_null());
  EXPECT_NEAR(json["verdict"]["evidence"]["other_process_bytes"].get<double>(), 8.15 * kGiB, 10);
  EXPECT_EQ(json["verdict"]["evidence"]["device_total_bytes"], parse_bytes("39.39 GiB"));
}

TEST(OomMessages, TheSizeOfTheDeviceMayBeGiven) {
  const OomMessage message =
      read_oom_messages("Out of memory allocating 13,958,643,712 bytes (allocated so far: 1,073,741,824 bytes).", "log")
          .front();
  EXPECT_EQ(explain_message(message, std::nullopt).cause, Cause::unknown);
  EXPECT_EQ(explain_message(message, 12 * kGiB).cause, Cause::too_large);
  EXPECT_EQ(explain_message(message, 24 * kGiB).cause, Cause::unknown);
}

// ---- Mutated messages ----

std::string mutated(const std::string& text, const std::string& other, std::mt19937& random) {
  std::string out = text;
  const int edits = 1 + static_cast<int>(random() % 6);
  for (int i = 0; i < edits && !out.empty(); ++i) {
    const std::size_t at = random() % out.size();
    const std::size_t length = std::min<std::size_t>(out.size() - at, 1 + random() % 24);
    switch (random() % 7) {
      case 0:
        out[at] = static_cast<char>(random());
        break;
      case 1:
        out.erase(at, length);
        break;
      case 2:
        out.insert(at, out.substr(random() % out.size(), length));
        break;
      case 3:
        out.insert(at, other.substr(random() % other.size(), 200));
        break;
      case 4:
        out.resize(at);
        break;
      case 5:
        out.insert(at, std::to_string(random()) + std::to_string(random()));
        break;
      default:
        out.insert(at, std::array<std::string_view, 8>{"\x1b[", "\\u00", "\\", "\xff\xfe", "\xe2\x94\x82", "GiB",
                                                       "Process ", "\n"}[random() % 8]);
        break;
    }
  }
  return out;
}

TEST(OomMessages, AreReadOrRefusedWhateverBecameOfThem) {
  std::mt19937 random(20261128);
  std::size_t read = 0;
  const std::size_t mutations = scaled(20000);
  for (std::size_t i = 0; i < mutations; ++i) {
    const Row& row = rows()[random() % rows().size()];
    const std::string text = mutated(row.text, rows()[random() % rows().size()].text, random);
    try {
      for (const OomMessage& message : read_oom_messages(text, "log")) {
        const Explanation one = explain_message(message, i % 2 == 0 ? Bytes(24 * kGiB) : std::nullopt);
        ASSERT_FALSE(one.text.empty());
        ASSERT_NE(one.cause, Cause::none);
        if (i % 16 == 0) {
          ASSERT_FALSE(text_of(report_of(one, 5), Style()).empty());
          ASSERT_FALSE(tools::text_of(json_of(report_of(one, 5))).empty());
        }
        ++read;
      }
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  EXPECT_GT(read, mutations / 2);
}

}  // namespace
}  // namespace cachalot::tools
