// The simulator's output: notes on stderr, and the files of the settings `log` and `report` of CACHALOT_SIM; simulator/README.md
// describes both.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/simulated_device.h"
#include "simulator/models/context_costs.h"

CACHALOT_BEGIN
class JsonWriter;
CACHALOT_END

namespace cachalot::simulator {
class Watch;
}

namespace cachalot::simulator {

// Writes to stderr, each line once, behind "cachalot simulator: ". `note_not_simulated` says "NAME is not simulated". Both are
// thread-safe.
void note_once(std::string_view text);
void note_not_simulated(std::string_view name);

// The kind of NCCL's memory: buffers that it takes for itself, an estimate; or memory that the program requested
// (ncclMemAlloc).
enum class NcclMemory { buffers, asked };

// The CPU accessed memory of a device, which ended the process by SIGSEGV, as it does with a GPU.
struct HostAccess {
  std::uint64_t address = 0;
  int device = 0;
};

class Report {
 public:
  // Throws InvalidArgument, which names the variable, when a file cannot be written. Empty paths: not wanted.
  // `physical_devices`: the number on the machine of each device.
  void open(const std::string& log_path, const std::string& report_path, const std::vector<int>& physical_devices);

  bool logs() const { return log_ != nullptr; }
  void log(int device, const std::vector<LoggedCall>& calls);
  void flush_log() {
    if (log_) std::fflush(log_);
  }

  bool is_wanted() const { return report_ != nullptr; }
  // Memory was asked for: the peak and the first failure are told from it.
  void note_allocation(const SimulatedDevice& device, const char* call, std::size_t bytes, bool worked);
  // The program asked how much memory is free.
  void note_memory_info(int device, std::size_t free_bytes);
  // Likewise of a device's number on the machine, before the program uses CUDA: NVML tells then as well. open() takes it over.
  static void note_early_memory_info(int physical_device, std::size_t free_bytes);
  // NCCL has taken memory of the device, or given it back: a part of the used memory.
  void note_nccl_memory(int device, NcclMemory whose, std::size_t bytes);
  void note_nccl_memory_freed(int device, NcclMemory whose, std::size_t bytes);
  // Notes a device's charge for its context, and the spread of that.
  void note_context(int device, const ContextCharge& charge, const Spread& spread);
  void write(const std::vector<const SimulatedDevice*>& devices, const Watch& watch,
             const std::optional<HostAccess>& host_access);
  // Writes the report of a process that goes on, unless nothing was asked for since the last one. The next one takes its place.
  void write_so_far(const std::vector<const SimulatedDevice*>& devices, const Watch& watch);
  bool is_written() const { return is_written_; }

 private:
  // A moment in a device's life: how many calls for memory came before it, and the time.
  struct Moment {
    std::uint64_t ordinal = 0;
    std::int64_t clock_ns = 0;
  };
  struct Failure {
    Moment moment;
    std::string call;
    std::size_t bytes = 0;
    std::size_t free_bytes = 0;
  };
  // A program's question for the free memory, the last one before the device was asked for more.
  struct Question {
    std::int64_t time_us = 0;  // since 1970, as in PyTorch's history
    std::size_t free_bytes = 0;
    std::uint64_t ordinal = 0;  // as of a Moment
  };
  // The last question about each device before CUDA was used, by its number on the machine.
  static std::map<int, Question>& early_questions();
  struct Summary {
    int physical_device = 0;
    std::uint64_t allocations = 0;  // calls that asked for memory
    std::uint64_t failures = 0;
    std::size_t peak_used_bytes = 0;
    Moment peak;
    std::size_t nccl_bytes = 0;
    std::size_t nccl_peak_bytes = 0;
    std::size_t nccl_buffer_bytes = 0;  // of these
    std::size_t nccl_buffer_peak_bytes = 0;
    std::optional<Failure> first_failure;
    std::vector<Question> questions;
    ContextCharge context;
    Spread context_spread;
  };

  std::string text(const std::vector<const SimulatedDevice*>& devices, const Watch& watch,
                   const std::optional<HostAccess>& host_access, bool is_final) const;
  void replace_file(std::string text);
  static void write(JsonWriter& json, const SimulatedDevice& device, const Summary& summary);
  static void write(JsonWriter& json, const std::optional<Failure>& failure);
  static void write(JsonWriter& json, const std::vector<Question>& questions);
  static void write(JsonWriter& json, const std::optional<HostAccess>& access);
  static void write(JsonWriter& json, const ContextCharge& charge);
  static void write(JsonWriter& json, const Spread& spread);  // its members

  std::FILE* log_ = nullptr;
  std::FILE* report_ = nullptr;
  bool is_written_ = false;
  std::uint64_t allocations_so_far_ = 0;  // when write_so_far wrote last
  std::size_t file_bytes_ = 0;
  std::vector<Summary> summaries_;
};

}  // namespace cachalot::simulator
